"""A beat that crosses the end of its call: what is refused because the call is over is no lost lease."""

from __future__ import annotations

import asyncio
from typing import Any, TypeVar

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import Complete, Op, Release, Renew, Suspect, Withdraw
from retrysafe.errors import NotFinished
from retrysafe.policy import Policy
from tests.unit.engine.gates import PATIENCE, AsyncWatched

R = TypeVar("R")
ENDS = (Complete, Release, Suspect, Withdraw)


class Crossing(AsyncWatched):
    """The first renewal arrives after what ends the call, and is answered before that is."""

    def __init__(self) -> None:
        super().__init__()
        self.beating, self.ended, self.refused = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def execute(self, op: Op[R]) -> R:
        if isinstance(op, Renew):
            self.beating.set()
            await self.ended.wait()
        reply = await super().execute(op)
        if isinstance(op, ENDS):
            self.ended.set()
            await self.refused.wait()
        elif isinstance(op, Renew):
            assert reply is False
            self.refused.set()  # the heartbeat gets its reply before anything else runs on this loop
        return reply


@pytest.mark.parametrize("how", ["completed", "released", "suspected"])
async def test_a_beat_that_crosses_the_end_is_not_a_lost_lease(how: str) -> None:
    store = Crossing()
    safe = RetrySafe(async_store=store)

    @safe.once("slow:{n}", policy=Policy.preset("function", lease=0.1, failures="release", abandoned="uncertain"))
    async def slow(n: int) -> str:
        await store.beating.wait()
        if how == "released":
            raise ValueError("not yet")
        if how == "suspected":
            raise asyncio.CancelledError
        return "done"

    ended: Any = None
    async with asyncio.timeout(PATIENCE):
        try:
            ended = await slow(1)
        except (ValueError, asyncio.CancelledError) as error:
            ended = type(error)
    assert ended == {"completed": "done", "released": ValueError, "suspected": asyncio.CancelledError}[how]
    assert safe.counters.get(how) == 1
    assert "lease_lost" not in safe.counters
    await safe.aclose()


@pytest.mark.parametrize("how", ["completed", "released"])
async def test_nor_at_the_end_of_an_operation(how: str) -> None:
    store = Crossing()
    safe = RetrySafe(async_store=store)
    operation = safe.operation("slow", policy=Policy(lease=0.1, failures="release", retention=float("inf")))

    @operation.body
    async def slow() -> Answer:
        await store.beating.wait()
        if how == "released":
            raise ValueError("not yet")
        return Answer(200)

    async with asyncio.timeout(PATIENCE):
        if how == "released":
            with pytest.raises(NotFinished):
                await operation(key="k")
        else:
            assert (await operation(key="k")).status == 200
    assert safe.counters.get(how) == 1
    assert "lease_lost" not in safe.counters
    await safe.aclose()
