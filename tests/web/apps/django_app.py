"""The reference application in Django: `wsgi` and `asgi` are the project's two applications, `asgi_inner` is ASGI with
only the middleware in MIDDLEWARE. The views are plain ones; django_async.py has async ones, django_drf.py those
of REST framework."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable
from functools import wraps
from typing import Any

import django
from django.conf import settings
from django.core.asgi import get_asgi_application as plain_asgi
from django.core.wsgi import get_wsgi_application
from django.http import HttpResponse, HttpResponseBase, JsonResponse, StreamingHttpResponse
from django.urls import path

from tests.web.apps import reference

settings.configure(
    ALLOWED_HOSTS=["*"],
    DATA_UPLOAD_MAX_MEMORY_SIZE=None,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": reference.folder() / "project.db"}},
    DEBUG=False,
    INSTALLED_APPS=["django.contrib.contenttypes", "django.contrib.auth", "rest_framework", "retrysafe.web.django"],
    LOGGING={
        "version": 1,
        "handlers": {"console": {"class": "logging.StreamHandler"}},
        "loggers": {"django.request": {"handlers": ["console"], "level": "ERROR"}},
    },
    MIDDLEWARE=[
        "retrysafe.web.django.IdempotencyMiddleware",
        "django.middleware.common.CommonMiddleware",
    ],
    RETRYSAFE={
        "SAFE": reference.make_safe(),
        "POLICY": reference.DEFAULT,
        "STATUS_SCOPE": reference.known_account,
    },
    REST_FRAMEWORK={"UNAUTHENTICATED_USER": None},
    ROOT_URLCONF=__name__,
    SECRET_KEY="for tests",
    USE_TZ=True,
)
django.setup()

from rest_framework.authentication import BaseAuthentication  # noqa: E402  (the settings come first)
from rest_framework.exceptions import AuthenticationFailed, PermissionDenied  # noqa: E402
from rest_framework.permissions import IsAuthenticated  # noqa: E402
from rest_framework.views import APIView  # noqa: E402

from retrysafe.web.django import idempotent  # noqa: E402
from retrysafe.web.django.asgi import get_asgi_application  # noqa: E402
from retrysafe.web.django.drf import IdempotentMixin  # noqa: E402


class Lines:
    """Django keeps one line for each header name; the reference application sends two."""

    more: list[tuple[str, str]]

    def items(self) -> list[tuple[str, str]]:
        return [*super().items(), *self.more]


class Whole(Lines, HttpResponse):
    pass


class Streamed(Lines, StreamingHttpResponse):
    pass


def answered(reply: reference.Reply, *, is_async: bool = False) -> HttpResponseBase:
    chunks: Any = reply.body
    if reply.streamed:
        chunks = in_turn(reply.chunks) if is_async else iter(reply.chunks)
    response: Any = (Streamed if reply.streamed else Whole)(chunks, status=reply.status)
    response.more = []
    del response["Content-Type"]
    for name, value in reply.headers:
        if name in response or name == "Set-Cookie":
            response.more.append((name, value))
        else:
            response[name] = value
    return response


async def in_turn(chunks: list[bytes]) -> AsyncIterator[bytes]:
    for chunk in chunks:
        yield chunk


def asked(request: Any) -> tuple[str, str, str, str, str, bytes]:
    query, tag = request.META.get("QUERY_STRING", ""), request.headers.get("X-Tag", "-")
    return request.method, request.path, query, tag, request.account, request.body


def authenticated(view: Any, *, is_async: bool) -> Any:
    def refused(request: Any) -> HttpResponseBase | None:
        try:
            request.account = reference.authenticate(request.headers.get("Authorization"))
        except reference.Refused as refusal:
            return JsonResponse({"error": "refused"}, status=refusal.status)
        return None

    @wraps(view)
    def checked(request: Any, **kwargs: Any) -> Any:
        return refused(request) or view(request, **kwargs)

    @wraps(view)
    async def achecked(request: Any, **kwargs: Any) -> Any:
        return refused(request) or await view(request, **kwargs)

    return achecked if is_async else checked


def plain(request: Any, **_: str) -> HttpResponseBase:
    return answered(reference.handle(*asked(request)))


async def on_the_loop(request: Any, **_: str) -> HttpResponseBase:
    return answered(await reference.ahandle(*asked(request)), is_async=True)


# DRF ------------------------------------------------------------------------------------------------


class Account:
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.pk = name


class Bearer(BaseAuthentication):
    def authenticate(self, request: Any) -> tuple[Account, None]:
        try:
            return Account(reference.authenticate(request.headers.get("Authorization"))), None
        except reference.Refused as refusal:
            raise (AuthenticationFailed if refusal.status == 401 else PermissionDenied) from None

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


class Everything(IdempotentMixin, APIView):
    authentication_classes = (Bearer,)
    permission_classes = (IsAuthenticated,)

    def get_idempotency_policy(self, request: Any) -> Any:
        return reference.POLICIES.get(reference.endpoint(request.method, request.path))

    def post(self, request: Any, **_: str) -> HttpResponseBase:
        request._request.account = request.user.pk
        return answered(reference.handle(*asked(request._request)))

    put = patch = delete = post


# Routes ---------------------------------------------------------------------------------------------


def health(request: Any) -> JsonResponse:
    return JsonResponse({"ok": True})


def by_method(views: dict[str, Any], *, is_async: bool) -> Any:
    """Several methods on one path, each with its own policy."""

    def choose(request: Any, **kwargs: Any) -> Any:
        return views[request.method](request, **kwargs)

    async def achoose(request: Any, **kwargs: Any) -> Any:
        return await views[request.method](request, **kwargs)

    return achoose if is_async else choose


def protected(view: Any, *, is_async: bool) -> list[Any]:
    found: dict[str, dict[str, Any]] = {}
    for name in reference.ROUTES:
        method, _, place = name.partition(" ")
        policy = reference.POLICIES.get(name, reference.DEFAULT)
        decorate: Callable[[Any], Any] = idempotent(scope=lambda request: request.account, policy=policy, target=name)
        found.setdefault(place, {})[method] = authenticated(decorate(view), is_async=is_async)
    return [path(pattern(place), by_method(views, is_async=is_async)) for place, views in found.items()]


def pattern(place: str) -> str:
    return place.removeprefix("/").replace("{id}", "<str:id>")


PLACES = dict.fromkeys(name.partition(" ")[2] for name in reference.ROUTES)
KINDS: dict[str, Callable[[], list[Any]]] = {
    "plain": lambda: protected(plain, is_async=False),
    "async": lambda: protected(on_the_loop, is_async=True),
    "drf": lambda: [path(pattern(place), Everything.as_view()) for place in PLACES],
}
KIND = os.environ.get("REFERENCE_DJANGO", "plain")
urlpatterns = [path("health", health), *KINDS[KIND]()]

wsgi = get_wsgi_application()
asgi = get_asgi_application()
asgi_inner = plain_asgi()
