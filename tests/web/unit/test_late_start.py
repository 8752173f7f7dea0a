"""A process that was paused between its claim and the application: the application runs only if the claim is still its
own."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from retrysafe import Policy
from retrysafe.core.ops import Claim, Renew, Withdraw
from retrysafe.core.states import State
from retrysafe.engine.safe import RetrySafe
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.wsgi import IdempotencyMiddleware as WsgiMiddleware
from tests.unit.engine.test_late_start import AsyncSlow, Slow, Still
from tests.web.unit.harness import WsgiCall, answer, call, who


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> Still:
    return Still(monkeypatch)


async def called(still: Still, colour: str) -> tuple[int, int]:
    """How often the application ran, and the client's answer."""
    safe = RetrySafe(Slow(still), async_store=AsyncSlow(still))
    settings: dict[str, Any] = {"safe": safe, "scope": who, "policy": Policy(lease=10, abandoned="rerun")}
    runs = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        await answer(send, 201, [b"a"])

    def wsgi(environ: Any, start_response: Any) -> list[bytes]:
        runs.append(1)
        start_response("201 Created", [])
        return [b"a"]

    if colour == "async":
        status = (await call(IdempotencyMiddleware(app, **settings))).status
    else:
        status = WsgiCall(WsgiMiddleware(wsgi, **settings)).status
    return len(runs), status


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_taken_over_meanwhile(still: Still, colour: str) -> None:
    still.meanwhile = still.take_over
    runs, status = await called(still, colour)
    assert (runs, status) == (0, 500), "lease-lost: send it again with the same key"
    (record,) = still.memory._records.values()
    assert (record.state, record.attempt) == (State.CLAIMED, 2)


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_still_its_own(still: Still, colour: str) -> None:
    runs, status = await called(still, colour)
    (record,) = still.memory._records.values()
    assert (runs, status, record.state) == (1, 201, State.COMPLETED)


class LateTask(Still):
    """Stands still when the claim is over, before the task of the application begins: a loop that other work blocks."""

    def after(self, op: Any) -> None:
        if isinstance(op, Claim):
            self.op = op

    def stand_still(self) -> None:
        super().after(self.op)


class SlowLoop(IdempotencyMiddleware):
    late: LateTask

    async def _claim_at_edge(self, *args: Any) -> bool:
        admitted = await super()._claim_at_edge(*args)
        self.late.stand_still()
        return admitted


@pytest.mark.parametrize("taken_over", [True, False])
async def test_a_task_that_begins_late(monkeypatch: pytest.MonkeyPatch, taken_over: bool) -> None:
    """I33: the lease is checked where the application begins."""
    late = LateTask(monkeypatch)
    if taken_over:
        late.meanwhile = late.take_over
    runs = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        runs.append(1)
        await answer(send, 201, [b"a"])

    safe = RetrySafe(Slow(late), async_store=AsyncSlow(late))
    middleware = SlowLoop(app, safe=safe, scope=who, policy=Policy(lease=10, abandoned="rerun"))
    middleware.late = late
    status = (await call(middleware)).status
    (record,) = late.memory._records.values()
    if taken_over:
        assert (len(runs), status, record.state, record.attempt) == (0, 500, State.CLAIMED, 2)
    else:
        assert (len(runs), status, record.state) == (1, 201, State.COMPLETED)


class StoppedInRenewal(AsyncSlow):
    """The caller is stopped while it asks for its lease again."""

    stop: BaseException = asyncio.CancelledError()

    async def execute(self, op: Any) -> Any:
        if isinstance(op, Renew):
            raise self.stop
        return await super().execute(op)


class ThreadStoppedInRenewal(Slow):
    def execute(self, op: Any) -> Any:
        if isinstance(op, Renew):
            raise KeyboardInterrupt
        return super().execute(op)


@pytest.mark.parametrize("colour", ["sync", "async"])
async def test_stopped_before_it_began(still: Still, colour: str) -> None:
    """Nothing ran, so nobody is asked how it ended (I32)."""
    safe = RetrySafe(ThreadStoppedInRenewal(still), async_store=StoppedInRenewal(still))

    def never(*_: Any) -> Any:
        raise AssertionError("the application ran")

    if colour == "async":
        with pytest.raises(asyncio.CancelledError):
            await call(IdempotencyMiddleware(never, safe=safe, scope=who, policy=Policy(lease=10)))
    else:
        with pytest.raises(KeyboardInterrupt):
            WsgiCall(WsgiMiddleware(never, safe=safe, scope=who, policy=Policy(lease=10)))
    (record,) = still.memory._records.values()
    assert (record.state, still.seen[-1]) == (State.RELEASED, Withdraw)
