"""Performing what only operations ask for: a call under somebody else's lease, and a transaction of the user's."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Sequence
from contextvars import Token
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.jobs import Stage
from retrysafe.core.ops import Op
from retrysafe.engine import drive
from retrysafe.engine.effects import Call, Effect, Flow, Transact
from retrysafe.engine.perform import AsyncPerformer, Performer
from retrysafe.errors import LeaseLost, OperationError
from retrysafe.operations import run, staging
from retrysafe.operations.staging import Staging
from retrysafe.stores.base import afollow, follow
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import Names
from retrysafe.stores.sql.plans import Plans
from retrysafe.transactions.base import AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.place import tables
from retrysafe.transactions.sources import source

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe


R = TypeVar("R")


@lru_cache(maxsize=16)
def plans_of(dialect: Dialect, names: Names) -> Plans:
    return Plans(dialect, names)


class OperationPerformer:
    """Effects of operations, for threads."""

    def __init__(self, performer: Performer, source: Callable[[], TxSource], names: Callable[[], Names]) -> None:
        self._performer = performer
        self._source = source
        self._names = names

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Call):
            return effect.function()
        if isinstance(effect, Transact):
            return self._transact(effect)
        return self._performer(effect)

    def _transact(self, effect: Transact) -> Any:
        with self._source().begin() as tx:
            jobs, token = collecting(tx.handle)
            try:
                result = effect.function(tx.handle)
            finally:
                staging.current.reset(token)
            tx.flush()
            for op in carried(effect.settle(result), jobs):
                accept(op, self._follow(tx, op))
        return result

    def _follow(self, tx: Tx, op: Op[Any]) -> Any:
        return follow(plans_of(tx.dialect, self._names()).of(self._performer.seal(op)), tx.send)


class AsyncOperationPerformer:
    """Effects of operations, for event loops."""

    def __init__(
        self, performer: AsyncPerformer, source: Callable[[], AsyncTxSource], names: Callable[[], Names]
    ) -> None:
        self._performer = performer
        self._source = source
        self._names = names

    async def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Call):
            return await self._call(effect)
        if isinstance(effect, Transact):
            return await self._transact(effect)
        return await self._performer(effect)

    async def _call(self, effect: Call) -> Any:
        async with asyncio.timeout(effect.timeout):
            result = effect.function()
            return await result if inspect.isawaitable(result) else result

    async def _transact(self, effect: Transact) -> Any:
        async with self._source().begin() as tx:
            jobs, token = collecting(tx.handle)
            try:
                result = effect.function(tx.handle)
                if inspect.isawaitable(result):
                    result = await result
            finally:
                staging.current.reset(token)
            await tx.flush()
            for op in carried(effect.settle(result), jobs):
                accept(op, await self._follow(tx, op))
        return result

    async def _follow(self, tx: AsyncTx, op: Op[Any]) -> Any:
        return await afollow(plans_of(tx.dialect, self._names()).of(self._performer.seal(op)), tx.send)


def collecting(handle: object) -> tuple[Staging, Token[Staging | None]]:
    """From here until the step ends `stage` puts its jobs there."""
    attempt = run.current.get()
    jobs = Staging(attempt.record.run if attempt else b"", str(attempt.place if attempt else 0), handle, allowed=True)
    return jobs, staging.current.set(jobs)


def carried(ops: Sequence[Op[Any]], staged: Staging) -> list[Op[Any]]:
    """What goes into the user's commit: the jobs first, the recovery point and the answer last."""
    return [*([Stage(tuple(staged.jobs))] if staged.jobs else []), *ops]


def accept(op: Op[Any], reply: Any) -> None:
    if reply is False:
        attempt = run.current.get()
        assert attempt is not None, "a fenced operation belongs to an attempt"
        raise LeaseLost(attempt.record.key, attempt.fence.attempt)


def run_sync(safe: RetrySafe, flow: Flow[R]) -> R:
    return drive.run(flow, OperationPerformer(safe.performer(), lambda: sync_source(safe), lambda: tables(safe)))


async def run_async(safe: RetrySafe, flow: Flow[R]) -> R:
    performer = AsyncOperationPerformer(safe.async_performer(), lambda: async_source(safe), lambda: tables(safe))
    return await drive.arun(flow, performer)


def sync_source(safe: RetrySafe) -> TxSource:
    if safe.tx is None:
        raise no_transactions(safe)
    return source(safe.tx, "sync")


def async_source(safe: RetrySafe) -> AsyncTxSource:
    if safe.tx is None:
        raise no_transactions(safe)
    return source(safe.tx, "async")


def no_transactions(safe: RetrySafe) -> OperationError:
    return OperationError(
        f"{safe!r} was given no `tx`, so a local step has no transaction to run in; "
        "pass RetrySafe(url, tx=your_sessionmaker_or_pool), or make it a foreign step"
    )
