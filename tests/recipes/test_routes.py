"""Recipes that are HTTP routes, called over HTTP."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import httpx
from examples.recipes import forwarded_key, payments_route, shown_once

from retrysafe import RetrySafe
from tests.recipes.test_recipes import stripe_double

__all__ = ["stripe_double"]


def client(app: Any) -> httpx.AsyncClient:
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://shop")


def headers(key: str, account: str = "acct-1") -> dict[str, str]:
    return {"idempotency-key": key, "x-account": account}


async def test_many_clicks_on_pay(stripe_double: Any, tmp_path: Path) -> None:
    safe, pay = forwarded_key.payments(tmp_path, f"http://127.0.0.1:{stripe_double.server_port}")
    stripe_double.fail = 1  # applied, and answered with 500
    body = {"amount": 500, "currency": "usd"}
    async with safe, client(payments_route.application(safe, pay)) as http:
        clicks = [http.post("/payments", json=body, headers=headers("k")) for _ in range(6)]
        answers = await asyncio.gather(*clicks)
        done = [answer for answer in answers if answer.status_code == 201]
        assert {answer.status_code for answer in answers} <= {201, 409}, (
            "one runs it; who comes meanwhile may be told to wait"
        )
        assert done
        again = await http.post("/payments", json=body, headers=headers("k"))
        assert {answer.content for answer in [*done, again]} == {b'{"id":"pi_1"}'}
        assert (len(stripe_double.made), len(set(stripe_double.keys)), len(stripe_double.keys)) == (1, 1, 2)

        other = await http.post("/payments", json={"amount": 501}, headers=headers("k"))
        assert other.status_code == 422
        theirs = await http.post("/payments", json=body, headers=headers("k", "acct-2"))
        assert theirs.json() == {"id": "pi_2"}
        declined = await http.post("/payments", json={"amount": 666}, headers=headers("no"))
        assert (declined.status_code, declined.json()) == (402, {"error": "card_declined"})


async def test_a_secret_is_shown_once_and_stored_nowhere(tmp_path: Path) -> None:
    path = tmp_path / "tokens.db"
    issued: list[str] = []
    safe = RetrySafe(f"sqlite:///{path}")
    safe.migrate()
    async with safe, client(shown_once.application(safe, issued)) as http:
        first = await http.post("/tokens", headers=headers("k"))
        assert (first.status_code, first.json()) == (201, {"token": issued[0]})
        again = await http.post("/tokens", headers=headers("k"))
        assert again.status_code == 410
        assert issued[0] not in again.text
        assert len(issued) == 1, "no second token was made"
    stored = b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert b"completed" in stored
    assert issued[0].encode() not in stored
