"""Django REST framework: every request is authorized first, and only then may it get a replay."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retrysafe.core.problem_names import problem_name
from tests.web.frameworks import django_project as project  # sets Django up, so it comes first

# isort: split
from django.core.management import call_command
from django.db import connection, connections
from django.http import FileResponse, HttpResponse
from django.test import Client, override_settings
from django.urls import path
from rest_framework import serializers, status
from rest_framework.authentication import BaseAuthentication
from rest_framework.decorators import api_view, authentication_classes, permission_classes
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.permissions import BasePermission, IsAuthenticated
from rest_framework.response import Response
from rest_framework.throttling import BaseThrottle
from rest_framework.views import APIView
from rest_framework.viewsets import ViewSet

from retrysafe import Policy
from retrysafe.web.django import conf, idempotent
from retrysafe.web.django.drf import IdempotentMixin

fresh = project.fresh


class Account:
    is_authenticated = True

    def __init__(self, name: str) -> None:
        self.pk = name


TOKENS = {"t-alice": "alice", "t-alice-fresh": "alice", "t-bob": "bob"}
EXPIRED: set[str] = set()
FORBIDDEN: set[str] = set()
THROTTLED: set[str] = set()


class Bearer(BaseAuthentication):
    def authenticate(self, request: Any) -> Any:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        if not token:
            return None
        if token not in TOKENS or token in EXPIRED:
            raise AuthenticationFailed
        return Account(TOKENS[token]), token

    def authenticate_header(self, request: Any) -> str:
        return "Bearer"


class Allowed(BasePermission):
    def has_permission(self, request: Any, view: Any) -> bool:
        return request.user.pk not in FORBIDDEN


class Slow(BaseThrottle):
    def allow_request(self, request: Any, view: Any) -> bool:
        return request.user.pk not in THROTTLED

    def wait(self) -> float:
        return 7.0


class PaymentIn(serializers.Serializer[Any]):
    amount = serializers.IntegerField(min_value=1)


class Payments(IdempotentMixin, APIView):
    authentication_classes = (Bearer,)
    permission_classes = (IsAuthenticated, Allowed)
    throttle_classes = (Slow,)

    def post(self, request: Any) -> Response:
        project.ran(request)
        given = PaymentIn(data=request.data)
        given.is_valid(raise_exception=True)
        told = {"id": fresh(), "account": request.user.pk, "atomic": connection.in_atomic_block}
        return Response(told, status=status.HTTP_201_CREATED)

    def get(self, request: Any) -> Response:
        return Response({"n": fresh()})


class Boom(Payments):
    def post(self, request: Any) -> Response:
        project.ran(request)
        raise ZeroDivisionError("secret detail")


class Released(Boom):
    idempotency_policy = Policy(failures="release")


class Receipt(Payments):
    def idempotency_scope(self, request: Any) -> str:
        return f"shop-{request.user.pk}"

    def post(self, request: Any) -> HttpResponse:
        project.ran(request)
        return FileResponse([project.PDF], content_type="application/pdf")


class Orders(IdempotentMixin, ViewSet):
    authentication_classes = (Bearer,)
    permission_classes = (IsAuthenticated,)

    def create(self, request: Any) -> Response:
        project.ran(request)
        return Response({"id": fresh(), "key": request.idempotency_key.value}, status=201)

    def destroy(self, request: Any, pk: str) -> Response:
        project.ran(request)
        return Response(status=204)


@api_view(["POST"])
@authentication_classes([Bearer])
@permission_classes([IsAuthenticated])
@idempotent(scope=lambda request: request.user.pk)
def function(request: Any) -> Response:
    project.ran(request)
    return Response({"id": fresh(), "sent": request.data}, status=201)


urlpatterns = [
    path("payments", Payments.as_view()),
    path("boom", Boom.as_view()),
    path("released", Released.as_view()),
    path("receipt", Receipt.as_view()),
    path("function", function),
    path("orders", Orders.as_view({"post": "create"})),
    path("orders/<pk>", Orders.as_view({"delete": "destroy"})),
]


@pytest.fixture(scope="module", autouse=True)
def _project() -> Iterator[None]:
    call_command("migrate", verbosity=0)
    with override_settings(ROOT_URLCONF=__name__):
        yield
    conf.safe().close()
    connections.close_all()


@pytest.fixture(autouse=True)
def _everybody_may() -> None:
    for names in (EXPIRED, FORBIDDEN, THROTTLED):
        names.clear()


def send(
    where: str, key: str | None, token: str = "t-alice", *, method: str = "POST", data: bytes = b'{"amount": 10}'
) -> Any:
    headers = {"X-Tag": key or "-", **({"Idempotency-Key": key} if key else {})}
    if token:
        headers["Authorization"] = f"Bearer {token}"
    client = Client(raise_request_exception=False)
    response = client.generic(method, where, data, content_type="application/json", headers=headers)
    response.whole = b"".join(response) if response.streaming else response.content
    return response


def runs(key: str) -> int:
    return project.RAN.count(key)


@pytest.mark.parametrize("where", ["/payments", "/receipt", "/function", "/orders"])
def test_it_runs_once(where: str) -> None:
    key = fresh()
    first, again = send(where, key), send(where, key)
    assert first.status_code in (200, 201)
    assert (first.status_code, first.whole) == (again.status_code, again.whole)
    assert first.headers["Content-Type"] == again.headers["Content-Type"]
    assert again.headers["Idempotent-Replayed"] == "true"
    assert runs(key) == 1
    if where == "/receipt":
        assert again.whole == project.PDF


@pytest.mark.parametrize("where", ["/payments", "/function"])
def test_a_replay_needs_credentials(where: str) -> None:
    """A bug of a similar package: its middleware answers before DRF authenticates."""
    key = fresh()
    first = send(where, key)
    for token in ("", "t-unknown"):
        refused = send(where, key, token)
        assert refused.status_code == 401
        assert first.json()["id"] not in refused.whole.decode()
    EXPIRED.add("t-alice")
    assert send(where, key).status_code == 401
    assert send(where, key, "t-alice-fresh").whole == first.whole
    assert runs(key) == 1


def test_a_replay_after_the_permission_was_revoked_is_refused() -> None:
    key = fresh()
    first = send("/payments", key)
    FORBIDDEN.add("alice")
    refused = send("/payments", key)
    assert refused.status_code == 403
    assert first.json()["id"] not in refused.whole.decode()
    FORBIDDEN.clear()
    assert send("/payments", key).whole == first.whole
    assert runs(key) == 1


def test_refusals_before_the_claim_are_not_replayed() -> None:
    """These must not be replayed: the 401 of an expired token, the 429 of a throttled client, a 403 after access was
    granted."""
    key = fresh()
    EXPIRED.add("t-alice")
    assert send("/payments", key).status_code == 401
    FORBIDDEN.add("alice")
    assert send("/payments", key, "t-alice-fresh").status_code == 403
    FORBIDDEN.clear()
    THROTTLED.add("alice")
    throttled = send("/payments", key, "t-alice-fresh")
    assert throttled.status_code == 429
    assert throttled.headers["Retry-After"] == "7"
    THROTTLED.clear()
    assert send("/payments", key, "t-alice-fresh").status_code == 201
    assert runs(key) == 1


def test_two_accounts_share_nothing() -> None:
    key = fresh()
    assert send("/payments", key).json()["account"] == "alice"
    assert send("/payments", key, "t-bob").json()["account"] == "bob"
    assert runs(key) == 2


def test_the_same_json_in_other_words_and_another_amount() -> None:
    key = fresh()
    first = send("/payments", key)
    assert send("/payments", key, data=b'{ "amount" : 10 }').whole == first.whole
    assert send("/payments", key, data=b'{"amount": 11}').status_code == 422


def test_what_the_framework_makes_of_an_exception_is_an_answer() -> None:
    key = fresh()
    first, again = (send("/payments", key, data=b'{"amount": 0}') for _ in range(2))
    assert first.status_code == 400
    assert first.whole == again.whole
    assert again.headers["Idempotent-Replayed"] == "true"
    assert runs(key) == 1


def test_an_uncaught_exception_is_stored() -> None:
    """A bug of a similar package: the key answered 409 for an hour."""
    key = fresh()
    first, again = send("/boom", key), send("/boom", key)
    assert first.status_code == 500
    assert problem_name(first.json()["type"]) == "failed"
    assert first.whole == again.whole
    assert runs(key) == 1


def test_a_policy_of_the_view() -> None:
    key = fresh()
    assert [send("/released", key).status_code for _ in range(2)] == [500, 500]
    assert runs(key) == 2


def test_a_method_the_view_does_not_have_claims_nothing() -> None:
    key = fresh()
    assert send("/payments", key, method="DELETE").status_code == 405
    assert send("/payments", key).status_code == 201


def test_safe_methods_need_no_key() -> None:
    assert send("/payments", None, method="GET").status_code == 200
    assert send("/payments", None).status_code == 400


def test_a_view_set_without_a_body() -> None:
    key = fresh()
    first, again = (send("/orders/7", key, method="DELETE", data=b"") for _ in range(2))
    assert first.status_code == again.status_code == 204
    assert again.headers["Idempotent-Replayed"] == "true"
    assert runs(key) == 1


def test_the_handler_is_inside_the_requests_transaction(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(connections.settings["default"], "ATOMIC_REQUESTS", True)
    key = fresh()
    first = send("/payments", key)
    assert first.json()["atomic"] is True
    assert send("/payments", key).whole == first.whole
