"""The two loops: what the world answers goes into the flow, and a cancellation waits for the store."""

from __future__ import annotations

import asyncio
import math
import re
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import retrysafe
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Fence
from retrysafe.engine import drive as drive_module
from retrysafe.engine.drive import CancelledDuringOp, arun, run
from retrysafe.engine.effects import INTERRUPTIBLE, Effect, Flow, FlowPause, Invoke
from retrysafe.engine.heartbeat import Lease

OP = Lookup(b"i")
PAUSE = FlowPause(b"i", 1.0)
CALL = Invoke(lambda: None, Lease(b"i", "k", Fence(1, b"t"), math.inf), 1.0)

Drive = Callable[[Flow[Any], Callable[[Effect], Any]], Any]


def sync(flow: Flow[Any], perform: Callable[[Effect], Any]) -> Any:
    return run(flow, perform)


def asynchronous(flow: Flow[Any], perform: Callable[[Effect], Any]) -> Any:
    async def awaited(effect: Effect) -> Any:
        return perform(effect)

    return asyncio.run(arun(flow, awaited))


@pytest.fixture(params=[sync, asynchronous])
def drive(request: pytest.FixtureRequest) -> Drive:
    found: Drive = request.param
    return found


def test_replies_go_in_and_the_result_comes_out(drive: Drive) -> None:
    def flow() -> Flow[Any]:
        first = yield OP
        second = yield PAUSE
        return [first, second]

    assert drive(flow(), lambda effect: effect) == [OP, PAUSE]


def test_a_flow_that_asks_for_nothing(drive: Drive) -> None:
    def flow() -> Flow[int]:
        return 7
        yield OP

    assert drive(flow(), lambda effect: pytest.fail("nothing was asked for")) == 7


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), StopAsyncIteration()], ids=repr)
def test_errors_are_thrown_into_the_flow_which_may_go_on(drive: Drive, error: BaseException) -> None:
    def flow() -> Flow[Any]:
        try:
            yield CALL
        except BaseException as met:
            return [met, (yield OP)]

    def perform(effect: Effect) -> Any:
        if effect is CALL:
            raise error
        return "reply"

    assert drive(flow(), perform) == [error, "reply"]


def test_a_stop_iteration_of_the_user_gets_out_itself() -> None:
    """In a coroutine Python makes a RuntimeError of it anyway."""
    error = StopIteration("empty")

    def inner() -> Flow[Any]:
        yield CALL

    def flow() -> Flow[Any]:
        try:
            yield from inner()
        finally:
            yield OP

    def perform(effect: Effect) -> Any:
        if effect is CALL:
            raise error

    with pytest.raises(StopIteration) as raised:
        run(flow(), perform)
    assert raised.value is error
    assert raised.value.__cause__ is None


def test_a_runtime_error_of_the_user_stays_one() -> None:
    """Also if a StopIteration in a generator of the user's was its cause."""

    def flow() -> Flow[Any]:
        yield CALL

    def perform(effect: Effect) -> Any:
        raise RuntimeError("generator raised StopIteration") from StopIteration()

    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        run(flow(), perform)


def test_an_error_the_flow_does_not_catch_gets_out_itself(drive: Drive) -> None:
    error = ValueError("no")

    def flow() -> Flow[Any]:
        return (yield OP)

    def perform(effect: Effect) -> Any:
        raise error

    with pytest.raises(ValueError, match="no") as met:
        drive(flow(), perform)
    assert met.value is error


def test_an_error_of_the_flow_itself_gets_out(drive: Drive) -> None:
    def flow() -> Flow[Any]:
        yield OP
        raise LookupError("decided")

    with pytest.raises(LookupError, match="decided"):
        drive(flow(), lambda effect: None)


# Cancellation ------------------------------------------------------------------------------------

CAUSE = asyncio.CancelledError("stop")


def interrupted_at(wanted: Effect) -> tuple[list[Effect], Callable[[Effect], Awaitable[Any]]]:
    """A performer whose caller is cancelled during `wanted`, and which gets the reply all the same."""
    seen: list[Effect] = []

    async def perform(effect: Effect) -> Any:
        seen.append(effect)
        if effect is wanted:
            raise CancelledDuringOp(CAUSE, "fetched")
        return "reply"

    return seen, perform


async def test_the_reply_is_delivered_and_nothing_new_begins() -> None:
    met: list[Any] = []

    def flow() -> Flow[Any]:
        met.append((yield OP))
        try:
            yield CALL
        except BaseException as error:
            met.append(error)
            met.append((yield Lookup(b"give it back")))
            raise

    seen, perform = interrupted_at(OP)
    with pytest.raises(asyncio.CancelledError) as stopped:
        await arun(flow(), perform)
    assert stopped.value is CAUSE
    assert met == ["fetched", CAUSE, "reply"]
    assert seen == [OP, Lookup(b"give it back")]


async def test_a_pause_is_something_new_too() -> None:
    def flow() -> Flow[Any]:
        yield OP
        yield PAUSE

    seen, perform = interrupted_at(OP)
    with pytest.raises(asyncio.CancelledError):
        await arun(flow(), perform)
    assert seen == [OP]


async def test_an_interruptible_place_is_where_it_is_delivered() -> None:
    def flow() -> Flow[Any]:
        yield OP
        try:
            yield INTERRUPTIBLE
        except asyncio.CancelledError:
            yield Lookup(b"give it back")
            raise

    seen, perform = interrupted_at(OP)
    with pytest.raises(asyncio.CancelledError):
        await arun(flow(), perform)
    assert seen == [OP, Lookup(b"give it back")]


def test_an_interruptible_place_asks_for_nothing(drive: Drive) -> None:
    def flow() -> Flow[Any]:
        return [(yield INTERRUPTIBLE), (yield OP)]

    assert drive(flow(), lambda effect: effect) == [None, OP]


async def test_a_flow_that_ends_then_is_cancelled_after_all() -> None:
    """The answer is stored, and the caller still learns that it was cancelled."""

    def flow() -> Flow[str]:
        yield OP
        return "done"

    _, perform = interrupted_at(OP)
    with pytest.raises(asyncio.CancelledError) as stopped:
        await arun(flow(), perform)
    assert stopped.value is CAUSE


async def test_an_error_of_the_flow_does_not_swallow_the_cancellation() -> None:
    """The canceller (a timeout, a task group) waits for the cancellation. The error is its cause."""

    def flow() -> Flow[Any]:
        yield OP
        raise LookupError("decided")

    _, perform = interrupted_at(OP)
    with pytest.raises(asyncio.CancelledError) as stopped:
        await arun(flow(), perform)
    assert stopped.value is CAUSE
    assert isinstance(stopped.value.__cause__, LookupError)


# The list of drive.py ---------------------------------------------------------------------------------

PACKAGE = Path(retrysafe.__file__).parent


def resumes_generators(path: Path) -> bool:
    return (
        re.search(r"except StopIteration|suppress\(StopIteration|\bflow\.(send|throw)\(", path.read_text()) is not None
    )


def test_every_file_that_resumes_a_generator_is_named_in_drive_py() -> None:
    named = set(re.findall(r"[a-z_/0-9]+\.py", drive_module.__doc__ or ""))
    resuming = {str(path.relative_to(PACKAGE)) for path in PACKAGE.rglob("*.py") if resumes_generators(path)}
    resuming = {path for path in resuming if not path.startswith("testing/")}
    resuming -= {"engine/drive.py", "core/fingerprint.py"}  # the latter meets the StopIteration of json's own scanner
    assert resuming <= named
    assert {path for path in named if not path.startswith("tests/") and not (PACKAGE / path).exists()} == set()
