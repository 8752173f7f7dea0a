"""Views in transactions, for test_django_routes.py. Imported when Django is set up."""

from __future__ import annotations

from functools import cache
from typing import Any

from django.db import connection
from django.http import HttpResponse, JsonResponse, StreamingHttpResponse
from django.urls import path
from rest_framework.exceptions import ValidationError
from rest_framework.response import Response
from rest_framework.views import APIView

from retrysafe import Answer, Policy
from retrysafe.web.django import conf, idempotent
from retrysafe.web.django.drf import IdempotentMixin

THEN: list[Any] = []
"""What a view does after its write."""
CALLS: list[str] = []
BLOCKS: list[tuple[bool, int]] = []


def account(request: Any) -> str:
    return "alice"


def write(request: Any, handle: Any) -> Any:
    value = request.headers["X-Value"]
    BLOCKS.append((connection.in_atomic_block, len(connection.savepoint_ids)))
    with handle.cursor() as cursor:
        cursor.execute("INSERT INTO effects (value) VALUES (%s)", [value])
    CALLS.append(value)
    return THEN.pop(0)() if THEN else None


@idempotent(scope=account, strength="transaction")
def pay(request: Any, tx: Any) -> Any:
    return write(request, tx) or JsonResponse({"body": request.body.decode()}, status=201)


@idempotent(scope=account, strength="transaction", policy=Policy(failures="release", max_answer=50))
def small(request: Any, tx: Any) -> Any:
    return write(request, tx) or HttpResponse(b"x" * 51)


@idempotent(scope=account, strength="transaction")
def stream(request: Any, tx: Any) -> Any:
    write(request, tx)
    return StreamingHttpResponse(iter([b"a", b"b"]))


@cache
def charging() -> Any:
    """An operation that the worker runs."""
    made = conf.safe().operation("charging", policy=Policy(start="worker", failures="release"))

    @made.foreign
    def charge(value: str, *, key: str) -> str:
        CALLS.append(value)
        return f"ch_{value}"

    @made.body
    def body(value: str) -> Answer:
        return Answer(201, {"charge": charge(value)})

    return made


@idempotent(scope=account, strength="operation")
def submitted(request: Any) -> Any:
    return charging().start(request.headers["X-Value"], key=request.idempotency_key)


class Pay(IdempotentMixin, APIView):
    idempotency_strength = "transaction"
    authentication_classes = ()

    def idempotency_scope(self, request: Any) -> str:
        return "alice"

    def post(self, request: Any, tx: Any) -> Response:
        write(request, tx)
        if request.data.get("wrong"):
            raise ValidationError({"wrong": "it is"})
        return Response({"paid": True}, status=201)


urlpatterns = [
    path("pay", pay),
    path("small", small),
    path("stream", stream),
    path("submitted", submitted),
    path("drf", Pay.as_view()),
]
