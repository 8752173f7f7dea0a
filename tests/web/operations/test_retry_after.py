"""409 while an operation runs: `Retry-After` follows how long the operation takes, not how long its lease lasts."""

from __future__ import annotations

import asyncio
import time

import pytest
from fastapi import Depends, FastAPI, Response

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.web.fastapi import idempotent, install, respond
from retrysafe.web.traffic import RouteDurations
from tests.web.frameworks.calling import calling, is_problem

KEY = {"Idempotency-Key": "k"}


class Shop:
    def __init__(self) -> None:
        self.safe = RetrySafe("memory://")
        self.app = FastAPI()
        self.charging, self.may_answer = asyncio.Event(), asyncio.Event()
        install(self.app, safe=self.safe)
        order = self.safe.operation("order")

        @order.foreign(timeout=20)
        async def charge(cents: int, *, key: str) -> str:
            self.charging.set()
            await self.may_answer.wait()
            return "ch_1"

        @order.body
        async def place(cents: int) -> Answer:
            return Answer(201, {"charge": await charge(cents)})

        protected = idempotent(lambda: "ann", Policy(mode="optional"), strength="operation")

        @self.app.post("/orders")
        async def orders(cents: int, key: Key | None = Depends(protected)) -> Response:  # noqa: B008
            return respond(await order.start(cents, key=key or "a request without a key"))


async def test_a_client_of_a_short_operation_is_not_sent_away_for_the_whole_lease() -> None:
    shop = Shop()
    async with calling(shop.app) as http:
        first = asyncio.create_task(http.post("/orders?cents=5", headers=KEY))
        await shop.charging.wait()
        busy = await http.post("/orders?cents=5", headers=KEY)
        shop.may_answer.set()
        assert (await first).status_code == 201
    assert is_problem(busy, 409, "in-progress")
    assert busy.headers["retry-after"] == "1", "nothing is known of this route yet; the lease of 60 s is no estimate"


async def test_the_estimate_is_what_the_route_took_and_a_replay_does_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: list[str] = []
    observe = RouteDurations.observe

    def observe_forty_seconds(durations: RouteDurations, target: str, seconds: float) -> None:
        observed.append(target)
        observe(durations, target, 40.0)

    monkeypatch.setattr(RouteDurations, "observe", observe_forty_seconds)
    shop = Shop()
    shop.may_answer.set()
    async with calling(shop.app) as http:
        for _ in range(3):
            assert (await http.post("/orders?cents=5", headers=KEY)).status_code == 201
        assert observed == ["POST /orders"], "one run, two replays"
        shop.may_answer.clear()
        shop.charging.clear()
        other = {"Idempotency-Key": "k2"}
        second = asyncio.create_task(http.post("/orders?cents=5", headers=other))
        await shop.charging.wait()
        busy = await http.post("/orders?cents=5", headers=other)
        shop.may_answer.set()
        await second
    assert busy.headers["retry-after"] == "40"


async def test_a_run_without_a_key_counts_for_what_it_took(monkeypatch: pytest.MonkeyPatch) -> None:
    observed: list[float] = []
    monkeypatch.setattr(RouteDurations, "observe", lambda durations, target, seconds: observed.append(seconds))
    shop = Shop()
    shop.may_answer.set()
    began = time.monotonic()
    async with calling(shop.app) as http:
        assert (await http.post("/orders?cents=5")).status_code == 201
    (seconds,) = observed
    assert 0 <= seconds <= time.monotonic() - began, "not how long this machine is up"
