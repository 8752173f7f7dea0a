"""A step that still runs when the body ends, in a task or a thread of the user's: the run is not settled over it.

It was: the answer was stored before the call was sent, and an undo came before what it should undo."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Stop, Undo
from retrysafe.core.states import State
from retrysafe.errors import OperationError, OutcomeUnknown
from tests.operations.world import World, make_world

STORES = [pytest.param(store, id=store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres")]


@pytest.fixture(params=STORES)
def aw(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = make_world(request, tmp_path, request.param, "async")
    yield world
    world.close()


class Charging:
    """An operation whose body does not await its charge. The provider answers when the test says so."""

    def __init__(self, w: World, ending: str, *, repeatable: bool = True) -> None:
        self.op = op = w.safe.operation("charging")
        self.happened: list[str] = []
        self.begun, self.may_answer = asyncio.Event(), asyncio.Event()
        self.tasks: list[asyncio.Task[Any]] = []

        async def refund(result: str | None, key: str) -> None:
            self.happened.append(f"refund of {result}")

        @op.foreign(undo=refund, repeatable=repeatable, tries=1)
        async def charge(*, key: str) -> str:
            self.begun.set()
            await self.may_answer.wait()
            self.happened.append("charge")
            return "ch"

        @op.body
        async def body() -> Answer:
            self.tasks.append(asyncio.ensure_future(charge()))
            await asyncio.sleep(0)  # it begins
            await self.begun.wait()
            if ending == "undo":
                raise Undo(409, {})
            if ending == "stop":
                raise Stop(402, {})
            if ending == "wait":
                await asyncio.Event().wait()
            return Answer(201, {"paid": True})


@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(("ending", "status"), [("answer", 201), ("undo", 409), ("stop", 402)])
def test_it_is_awaited_before_the_run_is_settled(aw: World, ending: str, status: int, repeatable: bool) -> None:
    async def play() -> Charging:
        shop = Charging(aw, ending, repeatable=repeatable)
        call = asyncio.ensure_future(shop.op(key="k"))
        await shop.begun.wait()
        await asyncio.sleep(0)  # the body ends
        shop.may_answer.set()
        with pytest.raises(OperationError, match="'charge' was called, but not awaited"):
            await call
        assert shop.happened == ["charge"]
        assert aw.state() is State.RELEASED
        assert (await shop.op(key="k")).status == status, "the next attempt finds its result"
        return shop

    assert aw.loop is not None
    shop = aw.loop.run(play())
    assert shop.happened == (["charge", "refund of ch"] if ending == "undo" else ["charge"])


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_cancellation_reaches_it(aw: World, repeatable: bool) -> None:
    async def play() -> Charging:
        shop = Charging(aw, "wait", repeatable=repeatable)
        call = asyncio.ensure_future(shop.op(key="k"))
        await shop.begun.wait()
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        assert shop.tasks[0].cancelled()
        return shop

    assert aw.loop is not None
    shop = aw.loop.run(play())
    assert shop.happened == []
    assert aw.state() is (State.RELEASED if repeatable else State.UNCERTAIN)


def test_no_step_begins_after_the_body_has_ended(aw: World) -> None:
    op, sent = aw.safe.operation("late"), list[str]()

    @op.foreign
    async def charge(*, key: str) -> str:
        sent.append(key)
        return "ch"

    async def play() -> None:
        may_begin, tasks = asyncio.Event(), list[asyncio.Task[Any]]()

        async def call_late() -> None:
            await may_begin.wait()
            await charge()

        @op.body
        async def body() -> Answer:
            tasks.append(asyncio.ensure_future(call_late()))
            return Answer(201, {})

        assert (await op(key="k")).status == 201
        may_begin.set()
        with pytest.raises(OperationError, match="'charge' was called, but not awaited"):
            await tasks[0]

    assert aw.loop is not None
    aw.loop.run(play())
    assert sent == []


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("ending", ["answer", "undo"])
def test_in_a_thread_its_outcome_is_unknown(request: pytest.FixtureRequest, tmp_path: Path, ending: str) -> None:
    """Nobody can wait for it, so a person decides. Nothing is undone before it happened."""
    w = make_world(request, tmp_path, "sqlite", "sync")
    op, happened = w.safe.operation("threaded"), list[str]()
    begun, may_answer = threading.Event(), threading.Event()

    @op.foreign(undo=lambda result, key: happened.append("refund"))
    def charge(*, key: str) -> str:
        begun.set()
        assert may_answer.wait(30)
        happened.append("charge")
        return "ch"

    threads: list[threading.Thread] = []

    @op.body
    def body() -> Answer:
        threads.append(threading.Thread(target=contextvars.copy_context().run, args=(charge,)))
        threads[0].start()
        assert begun.wait(30)
        if ending == "undo":
            raise Undo(409, {})
        return Answer(201, {})

    with pytest.raises(OutcomeUnknown, match="still running when the body ended"):
        op(key="k")
    assert w.state() is State.UNCERTAIN
    may_answer.set()
    threads[0].join()
    assert happened == ["charge"]
    w.close()
