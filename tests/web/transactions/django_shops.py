"""The same payment behind Django and Django REST framework, in this process. `shops.py` has the other frameworks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.web.frameworks import django_project as project  # sets Django up, so it comes first

# isort: split
from django.core.handlers.asgi import ASGIHandler
from django.core.handlers.wsgi import WSGIHandler
from django.http import HttpResponse
from django.test import override_settings
from django.urls import path
from rest_framework.views import APIView

from retrysafe.web.django import idempotent
from retrysafe.web.django.asgi import get_asgi_application
from retrysafe.web.django.drf import IdempotentMixin
from tests.web.transactions.shops import KINDS, Desk, Kind, Told, authorized


class Executing:
    """Django's connection with the `execute` that the desk calls."""

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, sql: str, values: Any = None) -> None:
        with self._connection.cursor() as cursor:
            cursor.execute(sql.replace("?", "%s"), values)


def paid(desk: Desk, tx: Any, sent: Any, files: Any) -> HttpResponse:
    more = files.get("more")
    told = desk.pay(Executing(tx), sent["value"] + (more.read().decode() if more else ""))
    return answer(told)


def answer(told: Told) -> HttpResponse:
    return HttpResponse(told.body, status=told.status, headers=dict(told.headers))


def views(desk: Desk, route: dict[str, Any]) -> tuple[Any, ...]:
    import json

    protect = idempotent(scope=authorized, strength="transaction", **route)

    @protect
    def pay(request: Any, tx: Any) -> HttpResponse:
        return paid(desk, tx, json.loads(request.body), {})

    @protect
    def form(request: Any, tx: Any) -> HttpResponse:
        return paid(desk, tx, request.POST, request.FILES)

    return path("pay", pay), path("form", form)


def api_views(desk: Desk, route: dict[str, Any]) -> tuple[Any, ...]:
    class Pay(IdempotentMixin, APIView):
        authentication_classes = ()
        idempotency_strength = "transaction"
        idempotency_policy, idempotency_tx = route["policy"], route["tx"]

        def idempotency_scope(self, request: Any) -> str:
            return authorized(request)

        def post(self, request: Any, tx: Any) -> HttpResponse:
            return paid(desk, tx, request.data, request.FILES)

    view = Pay.as_view()
    return path("pay", view), path("form", view)


def opened(make: Callable[..., Any], handler: Callable[[], Any], *middleware: str) -> Callable[..., Any]:
    """A builder, as those of shops.py. The settings are in force until the shop is closed."""

    def build(desk: Desk, **how: Any) -> Any:
        route, safe = how.pop("route"), how.pop("safe")
        settings = {"SAFE": safe, **{name.upper(): value for name, value in how.items()}}
        enabled = override_settings(
            RETRYSAFE=settings,
            ROOT_URLCONF=make(desk, route),
            MIDDLEWARE=[*middleware, *project.REST],
            ALLOWED_HOSTS=["shop"],
        )
        enabled.enable()
        desk.closers.append(enabled.disable)
        return handler()

    return build


DJANGO = {
    "django": Kind(opened(views, WSGIHandler, project.OURS), "django", False),
    "django-asgi": Kind(opened(views, ASGIHandler, project.OURS), "django", True),
    "django-around": Kind(opened(views, get_asgi_application, project.OURS), "django", True),
    "drf": Kind(opened(api_views, WSGIHandler, project.OURS), "django", False),
}

EVERY = KINDS | DJANGO
