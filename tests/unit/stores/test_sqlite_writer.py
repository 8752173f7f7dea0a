"""The thread that writes for an event loop."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from retrysafe.stores.sqlite.writer import Writer
from tests.waiting import until

NAME = "retrysafe-test-writer"


def alive() -> bool:
    return any(thread.name == NAME for thread in threading.enumerate())


async def test_calls_are_done_in_their_order_by_one_thread() -> None:
    writer, done = Writer(NAME), []

    def note(number: int) -> int:
        done.append((number, threading.current_thread().name))
        return number * 2

    assert await asyncio.gather(*(writer.call(note, number) for number in range(20))) == list(range(0, 40, 2))
    assert done == [(number, NAME) for number in range(20)]
    writer.stop()
    until(lambda: not alive(), 10, "the thread to end")


async def test_what_a_call_raises_is_raised_where_it_was_made() -> None:
    writer = Writer(NAME)

    def broken() -> None:
        raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError, match="a bug"):
        await writer.call(broken)
    assert await writer.call(int, "7") == 7, "and the thread goes on"
    writer.stop()


async def test_a_cancelled_caller_leaves_its_call_to_be_done() -> None:
    writer, gate, done = Writer(NAME), threading.Event(), threading.Event()

    async def caller() -> Any:
        await writer.call(gate.wait)
        return None

    task = asyncio.create_task(caller())
    await asyncio.sleep(0)
    behind = writer.call(done.set)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    behind.cancel()
    gate.set()
    until(done.is_set, 10, "the call of a caller that went")
    assert await writer.call(int, "7") == 7
    writer.stop()


async def test_stopping_ends_the_thread_after_what_was_called_and_the_next_call_starts_another() -> None:
    writer = Writer(NAME)
    last = writer.call(int, "1")
    writer.stop()
    writer.stop()
    assert await last == 1
    until(lambda: not alive(), 10, "the thread to end")
    assert await writer.call(int, "2") == 2
    writer.stop()


def test_a_loop_that_was_closed_meanwhile_does_not_stop_the_thread() -> None:
    writer, gate = Writer(NAME), threading.Event()

    async def go() -> None:
        writer.call(gate.wait).add_done_callback(lambda told: None)
        await asyncio.sleep(0)

    asyncio.run(go())
    gate.set()

    async def again() -> int:
        return await writer.call(int, "7")

    assert asyncio.run(again()) == 7
    writer.stop()
