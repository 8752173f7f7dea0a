"""Waiting for work although the caller is cancelled: what ends the wait, and what the caller learns."""

from __future__ import annotations

import asyncio

import pytest

from retrysafe.engine.cancellation import HeldCancellations, finish_despite_cancellation

FOREVER = 3600.0


async def test_a_wait_without_cancellation_ends_with_the_work() -> None:
    work = asyncio.ensure_future(asyncio.sleep(0, "done"))
    assert await finish_despite_cancellation(work) == HeldCancellations(None, 0)
    assert work.result() == "done"


async def test_work_that_failed_is_not_raised() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    work.set_exception(LookupError("no"))
    assert await finish_despite_cancellation(work, seconds=0) == HeldCancellations(None, 0)
    assert isinstance(work.exception(), LookupError)


async def test_cancellations_are_held_until_the_work_is_done() -> None:
    work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(finish_despite_cancellation(work, seconds=FOREVER))
    for message in ("first", "second"):
        await asyncio.sleep(0)
        waiting.cancel(message)
        await asyncio.sleep(0)
    assert not waiting.done()
    work.set_result("done")
    held = await waiting
    assert held.number == 2
    assert held.first is not None
    assert held.first.args == ("first",)


@pytest.mark.parametrize("limit", [0, 0.01])
async def test_time_is_limited(limit: float) -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    assert await finish_despite_cancellation(work, seconds=limit) == HeldCancellations(None, 0)
    assert not work.done()
    assert not work.cancelled()


@pytest.mark.parametrize("seconds", [None, FOREVER])
async def test_time_after_a_cancellation_is_limited(seconds: float | None) -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(finish_despite_cancellation(work, seconds=seconds, seconds_after_cancel=0.01))
    await asyncio.sleep(0)
    waiting.cancel()
    held = await waiting
    assert held.number == 1
    assert not work.done()


async def test_a_caller_that_is_cancelled_all_the_time_stops_waiting() -> None:
    work: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    waiting = asyncio.ensure_future(finish_despite_cancellation(work, max_cancels=2))
    for _ in range(3):
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.sleep(0)
    held = await waiting
    assert held.number == 3
    assert not work.done()
