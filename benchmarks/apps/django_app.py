"""The same work in Django REST framework: `python -m benchmarks.apps.django_app KIND PORT URL`.

One gunicorn worker with eight threads. Database kinds get a PostgreSQL URL for the project's own database
and keep their connections.
"""

# Django and gunicorn ship no types.
# mypy: disable-error-code="import-untyped, misc"

from __future__ import annotations

import sys
import time
from typing import Any
from urllib.parse import urlsplit

WAIT = 0.0005
RECEIPT = {"id": "pay_4127", "status": "succeeded", "amount": 10000, "note": "x" * 140}

PEER = "drf_idempotency.middleware.IdempotencyMiddleware"
PEER_DATABASE = {"BACKEND": "drf_idempotency.backends.database.DatabaseBackend"}
OURS = "retrysafe.web.django.IdempotencyMiddleware"


def database(url: str) -> dict[str, Any]:
    if not url.startswith("postgresql://"):
        return {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}
    at = urlsplit(url)
    where = {"HOST": at.hostname, "PORT": at.port, "USER": at.username, "NAME": at.path.lstrip("/")}
    return {"ENGINE": "django.db.backends.postgresql", "CONN_MAX_AGE": None, **where}


def peer_redis(url: str) -> dict[str, Any]:
    return {"BACKEND": "drf_idempotency.backends.redis.RedisBackend", "BACKEND_OPTIONS": {"url": url}}


def settings_of(kind: str, url: str) -> dict[str, Any]:
    """Each as its own documentation says."""
    apps, middleware = ["rest_framework"], []
    extra: dict[str, Any] = {}
    if kind == "ours":
        apps.append("retrysafe.web.django")
        middleware.append(OURS)
        extra["RETRYSAFE"] = {"SCOPE": lambda request: request.headers["Authorization"], "POLICY": {"mode": "optional"}}
        if not url.startswith("postgresql://"):
            extra["RETRYSAFE"]["URL"] = url
    if kind.startswith("peer"):
        apps.append("drf_idempotency")
        middleware.append(PEER)
        extra["IDEMPOTENCY"] = PEER_DATABASE if kind == "peer-database" else peer_redis(url)
    return {
        "SECRET_KEY": "only here",
        "ALLOWED_HOSTS": ["*"],
        "ROOT_URLCONF": __name__,
        "USE_TZ": True,
        "INSTALLED_APPS": apps,
        "MIDDLEWARE": middleware,
        "DATABASES": {"default": database(url)},
        "REST_FRAMEWORK": {"UNAUTHENTICATED_USER": None, "DEFAULT_AUTHENTICATION_CLASSES": []},
        **extra,
    }


def prepared(kind: str, url: str) -> Any:
    """Django set up, its tables made; the WSGI application."""
    import django
    from django.conf import settings
    from django.core.management import call_command
    from django.core.wsgi import get_wsgi_application

    settings.configure(**settings_of(kind, url))
    django.setup()
    if url.startswith("postgresql://"):
        call_command("migrate", verbosity=0)
    elif kind == "ours":
        from retrysafe import RetrySafe

        RetrySafe(url).migrate()
    return get_wsgi_application()


def view(kind: str) -> Any:
    from rest_framework.response import Response
    from rest_framework.views import APIView

    class Payments(APIView):
        def post(self, request: Any) -> Any:
            time.sleep(WAIT)
            return Response({**RECEIPT, "amount": request.data["amount"]}, status=201)

    if kind != "ours":
        return Payments.as_view()
    from retrysafe.web.django.drf import IdempotentMixin

    class Protected(IdempotentMixin, Payments):
        """As docs/howto/django.md has it."""

    return Protected.as_view()


def main() -> None:
    from django.urls import path
    from gunicorn.app.base import BaseApplication

    kind, port, url = sys.argv[1:]
    application = prepared(kind, url)
    module = sys.modules[__name__]
    module.urlpatterns = [path("payments", view(kind))]  # type: ignore[attr-defined]  # Django looks for the name

    class Server(BaseApplication):
        def load_config(self) -> None:
            chosen = {
                "bind": f"127.0.0.1:{port}",
                "workers": 1,
                "worker_class": "gthread",
                "threads": 8,
                "keepalive": 3600,
                "timeout": 0,
                "loglevel": "error",
                "accesslog": None,
            }
            for name, value in chosen.items():
                self.cfg.set(name, value)

        def load(self) -> Any:
            return application

    Server().run()


if __name__ == "__main__":
    main()
