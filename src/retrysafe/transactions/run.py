"""Run a body in a transaction with its receipt. Routes and decorators use these functions."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from retrysafe.core.records import Answer
from retrysafe.engine.codecs import encode_exception
from retrysafe.engine.guard import Ended, Task
from retrysafe.errors import UsageError
from retrysafe.transactions.binding import build_tx_context
from retrysafe.transactions.drive import AsyncTxDriver, TxDriver, aadvance, advance
from retrysafe.transactions.effects import TxWork
from retrysafe.transactions.flow import transaction_flow
from retrysafe.transactions.sources import find_source

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe


def perform(safe: RetrySafe, task: Task, given: Any, work: TxWork) -> Ended:
    """Run `work` in a transaction that `given` opens, once for `task`, or return the stored answer."""
    driver = TxDriver(safe, find_source(given, "sync"))
    flow = transaction_flow(task, work, build_tx_context(safe))
    try:
        ended = advance(flow, driver, lambda: next(flow))
    finally:
        driver.close()
    assert isinstance(ended, Ended)
    return ended


async def aperform(safe: RetrySafe, task: Task, given: Any, work: TxWork) -> Ended:
    driver = AsyncTxDriver(safe, find_source(given, "async"))
    flow = transaction_flow(task, work, build_tx_context(safe))
    try:
        ended = await aadvance(flow, driver, lambda: next(flow))
    finally:
        await driver.close()
    assert isinstance(ended, Ended)
    return ended


def run(
    safe: RetrySafe,
    task: Task,
    given: Any,
    body: Callable[[Any], Answer],
    failure: Callable[[Exception], Answer] = encode_exception,
) -> Ended:
    """For routes: `body(handle)` returns the Answer that commits with what it wrote. `failure` makes an Answer of an
    exception that the policy calls final."""
    return perform(safe, task, given, RouteWork(body, failure))


async def arun(
    safe: RetrySafe,
    task: Task,
    given: Any,
    body: Callable[[Any], Awaitable[Answer]],
    failure: Callable[[Exception], Answer] = encode_exception,
) -> Ended:
    """The async form of `run`."""
    return await aperform(safe, task, given, RouteWork(body, failure))


class RouteWork:
    """A callable that returns an Answer, as the work of a transaction."""

    __slots__ = ("_body", "_failure")

    def __init__(self, body: Callable[[Any], Any], failure: Callable[[Exception], Answer]) -> None:
        self._body = body
        self._failure = failure

    def call(self, handle: Any) -> Any:
        return self._body(handle)

    def answer(self, result: Any) -> Answer:
        if not isinstance(result, Answer):
            raise UsageError(f"the body of a transaction returned {result!r}; return an Answer")
        return result

    def failure(self, error: Exception) -> Answer:
        return self._failure(error)
