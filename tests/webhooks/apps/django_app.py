"""The receiver in Django: WSGI with a plain view, ASGI with an async view. Requests are atomic, as in many projects."""

from __future__ import annotations

import django
from django.conf import settings
from django.core.asgi import get_asgi_application
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, HttpResponse
from django.urls import path

from retrysafe.webhooks.django import async_endpoint, endpoint
from tests.webhooks.apps.hooks import FOLDER, stripe

settings.configure(
    SECRET_KEY="test",
    ALLOWED_HOSTS=["*"],
    ROOT_URLCONF=__name__,
    MIDDLEWARE=["django.middleware.csrf.CsrfViewMiddleware"],
    DATABASES={
        "default": {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": str(FOLDER / "django.db"),
            "ATOMIC_REQUESTS": True,
        }
    },
)
django.setup()


def health(request: HttpRequest) -> HttpResponse:
    return HttpResponse()


urlpatterns = [
    path("hook", endpoint(stripe)),
    path("async-hook", async_endpoint(stripe)),
    path("health", health),
]
wsgi = get_wsgi_application()
asgi = get_asgi_application()
