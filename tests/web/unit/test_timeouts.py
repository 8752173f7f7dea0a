"""A timeout around an awaitable that was begun already (web/timeouts.py)."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any

import pytest

from retrysafe.web.timeouts import finish_until


async def after(signal: asyncio.Event, result: str) -> str:
    await signal.wait()
    await asyncio.sleep(0)
    return result


def deadline(seconds: float) -> float:
    return asyncio.get_running_loop().time() + seconds


async def wait_until(when: float, awaitable: Awaitable[Any]) -> Any:
    """As `AsgiBody.read_all` does it."""
    steps = awaitable.__await__()
    try:
        waits_for = steps.send(None)
    except StopIteration as done:
        return done.value
    return await finish_until(when, steps, waits_for)


async def test_what_has_to_wait_goes_on_where_it_stopped() -> None:
    signal = asyncio.Event()
    waiting = asyncio.create_task(wait_until(deadline(60), after(signal, "late")))
    await asyncio.sleep(0)
    signal.set()
    assert await waiting == "late"


async def test_past_its_deadline_it_is_told_so() -> None:
    cleaned: list[str] = []

    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("yes")

    with pytest.raises(TimeoutError):
        await wait_until(deadline(0), stubborn())
    assert cleaned == ["yes"]


async def test_a_cancellation_reaches_it_and_may_be_answered() -> None:
    seen: list[Any] = []

    async def catches() -> str:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError as error:
            seen.append(error)
            raise
        return "never"

    waiting = asyncio.create_task(wait_until(deadline(60), catches()))
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    assert len(seen) == 1


@pytest.mark.parametrize("stops", [0, 1, 3])
async def test_its_error_comes_through(stops: int) -> None:
    async def fails() -> None:
        for _ in range(stops):
            await asyncio.sleep(0)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        await wait_until(deadline(60), fails())
