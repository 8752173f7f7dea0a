"""The example applications, used as their readers would."""

from __future__ import annotations

import importlib
from typing import Any
from uuid import uuid4

import pytest

from tests.web.frameworks.calling import calling, is_problem, is_replay

EXAMPLES = ("fastapi", "litestar", "quart")
ORDER = {"amount": 10000, "currency": "usd"}


@pytest.fixture(params=EXAMPLES)
def example(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    return load(request.param, monkeypatch)


def load(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The module, fresh, on a store of its own."""
    monkeypatch.setenv("RETRYSAFE_URL", f"memory://{uuid4().hex}")
    return importlib.reload(importlib.import_module(f"examples.{name}_payments.app"))


def sent(token: str = "alice-token", **more: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}", "Idempotency-Key": "k1", **more}


async def test_one_click_one_charge(example: Any) -> None:
    async with calling(example.app) as http:
        first, again = [await http.post("/payments", headers=sent(), json=ORDER) for _ in range(2)]
        bob = await http.post("/payments", headers=sent("bob-token"), json=ORDER)
        nobody = await http.post("/payments", headers=sent("mallory"), json=ORDER)
        other = await http.post("/payments", headers=sent(), json={**ORDER, "amount": 1})
        shown = await http.get(first.headers["location"], headers=sent())
        foreign = await http.get(first.headers["location"], headers=sent("bob-token"))
        charges = (await http.get("/provider/charges")).json()
    assert first.status_code == 201, first.text
    assert is_replay(first, again)
    assert again.headers["location"] == first.headers["location"]
    assert bob.json()["id"] != first.json()["id"]
    assert (nobody.status_code, foreign.status_code) == (401, 404)
    assert is_problem(other, 422, "mismatch")
    assert shown.json() == first.json()
    assert len(charges) == 2, "alice's and bob's"


async def test_operators_see_the_console_and_customers_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("fastapi", monkeypatch)
    async with calling(example.app) as http:
        await http.post("/payments", headers=sent(), json=ORDER)
        assert (await http.get("/console/keys", headers=sent())).status_code == 401
        assert "POST /payments" in (await http.get("/console/keys", headers=sent("olga-token"))).text


async def test_the_operation_of_the_fastapi_example(monkeypatch: pytest.MonkeyPatch) -> None:
    example = load("fastapi", monkeypatch)
    async with calling(example.app) as http:
        first, again = [await http.post("/orders", headers=sent(), json=ORDER) for _ in range(2)]
        other = await http.post("/orders", headers=sent(), json={**ORDER, "amount": 1})
        charges = (await http.get("/provider/charges")).json()
    assert first.status_code == 201
    assert is_replay(first, again)
    assert is_problem(other, 422, "mismatch")
    assert [first.json()["charge"]] == [charge["id"] for charge in charges]
