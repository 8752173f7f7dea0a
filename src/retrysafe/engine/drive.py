"""The only two loops that resume a flow."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.engine.effects import INTERRUPTIBLE, Effect, Flow, Persist

if TYPE_CHECKING:
    import asyncio

R = TypeVar("R")


def run(flow: Flow[R], perform: Callable[[Effect], Any]) -> R:
    """Drive a flow with a blocking `perform`."""
    try:
        effect = next(flow)
        while True:
            try:
                reply = None if effect is INTERRUPTIBLE else perform(effect)
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]


class CancelledDuringOp(BaseException):
    """The caller was cancelled during a storage operation, which was brought to its end all the same: to a reply, or
    to an error."""

    def __init__(self, cause: asyncio.CancelledError, reply: Any, error: Exception | None = None) -> None:
        super().__init__()
        self.cause = cause
        self.reply = reply
        self.error = error


_STORE_EFFECTS = (Op, Persist)


async def arun(flow: Flow[R], perform: Callable[[Effect], Awaitable[Any]]) -> R:
    """Drive a flow with an awaitable `perform`.

    A cancellation that arrives during a storage operation is held back until that operation is settled: the flow
    goes on to give back what it holds, but starts nothing new. Then the cancellation is delivered.
    """
    held: asyncio.CancelledError | None = None
    try:
        effect = next(flow)
        while True:
            if held is not None and not isinstance(effect, _STORE_EFFECTS):
                effect = flow.throw(held)
                continue
            try:
                reply = None if effect is INTERRUPTIBLE else await perform(effect)
            except CancelledDuringOp as stop:
                held = stop.cause
                effect = flow.send(stop.reply) if stop.error is None else flow.throw(stop.error)
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
    except StopIteration as done:
        if held is not None:
            raise held from None
        return done.value  # type: ignore[no-any-return]
    except Exception as error:
        if held is not None:  # what the flow made of it is less than what its caller asked for
            raise held from error
        raise
