"""Performing what only operations ask for: a call under somebody else's lease, and a transaction of the user's."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.engine import drive
from retrysafe.engine.effects import CallFunction, Effect, Flow, NotifyWaiters, NotifyWorker, RunTransaction
from retrysafe.engine.heartbeat import Lease, current_lease
from retrysafe.engine.perform import Performer
from retrysafe.engine.worker_notify import WorkerNotifier
from retrysafe.errors import RetrySafeError, StoreUnavailable
from retrysafe.operations.failures import TransactionNotOpened, format_error
from retrysafe.operations.local import CallInTransaction
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import AfterCommitError, AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.drive import send_plainly
from retrysafe.transactions.effects import AskCommitted, Plainly
from retrysafe.transactions.sources import find_source

if TYPE_CHECKING:
    from retrysafe.engine.aperform import AsyncPerformer
    from retrysafe.engine.safe import RetrySafe


R = TypeVar("R")
_log = logging.getLogger("retrysafe")


class OperationPerformer:
    """Effects of operations, for threads."""

    def __init__(self, performer: Performer, source: Callable[[], TxSource], bell: WorkerNotifier) -> None:
        self._performer = performer
        self._source = source
        self._bell = bell

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, CallFunction):
            lease = current_lease()
            if lease is not None and not has_room(lease, effect.timeout) and not self._performer.renew(lease):
                lease.lost = True
            return begin_call(lease, effect)
        if isinstance(effect, RunTransaction):
            return self._transact(effect)
        if isinstance(effect, NotifyWorker):
            return self._performer(NotifyWaiters(self._bell.id)) if self._bell.wake_local() else None
        return self._performer(effect)

    def _transact(self, effect: RunTransaction) -> Any:
        done: Any = None
        first = FirstError()
        try:
            with first.kept(), ExitStack() as stack:
                try:
                    tx = stack.enter_context(self._source().begin())
                except Exception as error:
                    raise not_opened_error(error) from error
                with first.noted():
                    done = drive.run(effect.flow(tx), lambda inner: perform_inside(tx, inner))
        except AfterCommitError as after:
            # The step is done, and an operation goes on from there; whoever looks after the program has to hear of it.
            _log.error("a hook that ran after the commit of a local step failed", exc_info=after.error)
        return done


class FirstError:
    """What went wrong inside a transaction is what its step is told, whatever rolling it back raises after that: a step
    whose outcome is unknown must not be taken for one that failed, and run again."""

    def __init__(self) -> None:
        self._error: Exception | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._error = error
            raise

    @contextmanager
    def kept(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            if self._error is None or error is self._error:
                raise
            _log.debug("rolling back failed: %s", error)
            raise self._error  # noqa: B904  # it has a cause of its own


def perform_inside(tx: Tx, effect: Any) -> Any:
    """What happens in the open transaction: our statements, the user's function, a flush."""
    if isinstance(effect, Statement):
        return tx.send(effect)
    if isinstance(effect, CallInTransaction):
        with effect.staging.collect_on(tx.handle):
            return effect.function(tx.handle)
    if isinstance(effect, AskCommitted):
        return getattr(tx, "committed", None)
    if isinstance(effect, Plainly):
        return send_plainly(tx)(effect.statement)
    return tx.flush()


class AsyncOperationPerformer:
    """Effects of operations, for event loops."""

    def __init__(self, performer: AsyncPerformer, source: Callable[[], AsyncTxSource], bell: WorkerNotifier) -> None:
        self._performer = performer
        self._source = source
        self._bell = bell

    async def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, CallFunction):
            return await self._call(effect)
        if isinstance(effect, RunTransaction):
            return await self._transact(effect)
        if isinstance(effect, NotifyWorker):
            return await self._performer(NotifyWaiters(self._bell.id)) if self._bell.wake_local() else None
        return await self._performer(effect)

    async def _call(self, effect: CallFunction) -> Any:
        import asyncio

        lease = current_lease()
        if lease is not None and not has_room(lease, effect.timeout) and not await self._performer.renew(lease):
            lease.lost = True
        async with asyncio.timeout(effect.timeout):
            result = begin_call(lease, effect)
            return await result if inspect.isawaitable(result) else result

    async def _transact(self, effect: RunTransaction) -> Any:
        first = FirstError()
        with first.kept():
            async with AsyncExitStack() as stack:
                try:
                    tx = await stack.enter_async_context(self._source().begin())
                except Exception as error:
                    raise not_opened_error(error) from error
                with first.noted():
                    return await drive.arun(effect.flow(tx), lambda inner: aperform_inside(tx, inner))


def not_opened_error(error: Exception) -> Exception:
    """What the step is told: wrong use as it is, anything else (a pool that is not open yet, a server that is away) as
    a transaction that could not be opened."""
    return error if isinstance(error, RetrySafeError) else TransactionNotOpened(format_error(error))


async def aperform_inside(tx: AsyncTx, effect: Any) -> Any:
    if isinstance(effect, Statement):
        return await tx.send(effect)
    if isinstance(effect, CallInTransaction):
        with effect.staging.collect_on(tx.handle):
            result = effect.function(tx.handle)
            return await result if inspect.isawaitable(result) else result
    if isinstance(effect, AskCommitted):
        return getattr(tx, "committed", None)
    if isinstance(effect, Plainly):
        return await send_plainly(tx)(effect.statement)
    return await tx.flush()


def has_room(lease: Lease, timeout: float | None) -> bool:
    """Whether a call to another system would be over before the lease is. One that was lost gets no other."""
    return lease.lost or lease.fits(timeout or 0.0)


def begin_call(lease: Lease | None, call: CallFunction) -> Any:
    """The last look before a call: who was paused for longer than its lease must not send any more, and nobody begins
    what may outlast it (I24, I33). Between this look and the wire there is a gap that nobody closes
    (docs/explanation/guarantees.md)."""
    if lease is not None:
        lease.check()
        if not lease.fits(call.timeout or 0.0):
            raise StoreUnavailable(
                f"the lease was renewed too slowly: less than the call's timeout={call.timeout:g} s is left of it"
            )
    return call.function()


def run_sync(safe: RetrySafe, flow: Flow[R]) -> R:
    return drive.run(
        flow, OperationPerformer(safe.performer(), lambda: find_source(safe.tx, "sync"), safe.worker_notifier)
    )


async def run_async(safe: RetrySafe, flow: Flow[R]) -> R:
    performer = AsyncOperationPerformer(
        safe.async_performer(), lambda: find_source(safe.tx, "async"), safe.worker_notifier
    )
    return await drive.arun(flow, performer)
