"""Performs the effects that only operations have: a call that fits into the lease, and a transaction of the user's."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AbstractContextManager, AsyncExitStack, ExitStack, nullcontext
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.engine import drive
from retrysafe.engine.effects import CallFunction, Effect, Flow, NotifyWaiters, NotifyWorker, RunTransaction
from retrysafe.engine.heartbeat import Lease, current_lease
from retrysafe.engine.perform import Performer
from retrysafe.engine.unstarted import refuse_coroutine
from retrysafe.engine.worker_notify import WorkerNotifier
from retrysafe.errors import RetrySafeError, StoreUnavailable
from retrysafe.operations.errors import TransactionNotOpened, format_error
from retrysafe.operations.local import CallInTransaction
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import AfterCommitError, AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.drive import send_direct
from retrysafe.transactions.effects import AskCommitted, SendDirect
from retrysafe.transactions.sources import find_source

if TYPE_CHECKING:
    from retrysafe.engine.aperform import AsyncPerformer
    from retrysafe.engine.safe import RetrySafe
    from retrysafe.engine.trace import Trace


R = TypeVar("R")
_log = logging.getLogger("retrysafe")


class OperationPerformer:
    """Performs the effects of operations in threads."""

    def __init__(
        self,
        performer: Performer,
        source: Callable[[], TxSource],
        notifier: WorkerNotifier,
        trace: Trace | None = None,
    ) -> None:
        self._performer = performer
        self._trace = trace
        self._source = source
        self._notifier = notifier

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, CallFunction):
            lease = current_lease()
            if lease is not None and not is_call_covered(lease, effect.timeout) and not self._performer.renew(lease):
                lease.lost = True
            with trace_step(self._trace, effect, lease):
                return refuse_coroutine(begin_call(lease, effect))
        if isinstance(effect, RunTransaction):
            return self._transact(effect)
        if isinstance(effect, NotifyWorker):
            return self._performer(NotifyWaiters(self._notifier.id)) if self._notifier.wake_local() else None
        return self._performer(effect)

    def _transact(self, effect: RunTransaction) -> Any:
        done: Any = None
        inside: Exception | None = None
        try:
            with ExitStack() as stack:
                try:
                    tx = stack.enter_context(self._source().begin())
                except Exception as error:
                    raise not_opened_error(error) from error
                try:
                    done = drive.run(effect.flow(tx), lambda inner: perform_inside(tx, inner))
                except Exception as error:
                    inside = error
                    raise
        except Exception as error:
            if inside is not None:
                raise choose_error(inside, error)  # noqa: B904  # it has a cause of its own
            if not isinstance(error, AfterCommitError):
                raise
            # The step is committed, and the operation continues. The error is only logged.
            _log.error("a hook that ran after the commit of a local step failed", exc_info=error.error)
        return done


def choose_error(inside: Exception, outside: Exception) -> Exception:
    """Of the error that was raised inside a transaction, and the one that left it: the first, even if the rollback
    raised another one. A step whose outcome is unknown must not be taken for a failed one and run again."""
    if outside is not inside:
        _log.debug("rolling back failed: %s", outside)
    return inside


def perform_inside(tx: Tx, effect: Any) -> Any:
    """Perform an effect inside the open transaction: a statement of ours, the user's function, or a flush."""
    if isinstance(effect, Statement):
        return tx.send(effect)
    if isinstance(effect, CallInTransaction):
        with effect.staging.collect_on(tx.handle):
            return refuse_coroutine(effect.function(tx.handle))
    if isinstance(effect, AskCommitted):
        return getattr(tx, "committed", None)
    if isinstance(effect, SendDirect):
        return send_direct(tx)(effect.statement)
    return tx.flush()


class AsyncOperationPerformer:
    """Performs the effects of operations on an event loop."""

    def __init__(
        self,
        performer: AsyncPerformer,
        source: Callable[[], AsyncTxSource],
        notifier: WorkerNotifier,
        trace: Trace | None = None,
    ) -> None:
        self._performer = performer
        self._trace = trace
        self._source = source
        self._notifier = notifier

    async def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, CallFunction):
            return await self._call(effect)
        if isinstance(effect, RunTransaction):
            return await self._transact(effect)
        if isinstance(effect, NotifyWorker):
            return await self._performer(NotifyWaiters(self._notifier.id)) if self._notifier.wake_local() else None
        return await self._performer(effect)

    async def _call(self, effect: CallFunction) -> Any:
        import asyncio

        lease = current_lease()
        if lease is not None and not is_call_covered(lease, effect.timeout) and not await self._performer.renew(lease):
            lease.lost = True
        with trace_step(self._trace, effect, lease):
            async with asyncio.timeout(effect.timeout):
                result = begin_call(lease, effect)
                return await result if inspect.isawaitable(result) else result

    async def _transact(self, effect: RunTransaction) -> Any:
        inside: Exception | None = None
        try:
            async with AsyncExitStack() as stack:
                try:
                    tx = await stack.enter_async_context(self._source().begin())
                except Exception as error:
                    raise not_opened_error(error) from error
                try:
                    return await drive.arun(effect.flow(tx), lambda inner: aperform_inside(tx, inner))
                except Exception as error:
                    inside = error
                    raise
        except Exception as error:
            if inside is None:
                raise
            raise choose_error(inside, error)  # noqa: B904  # it has a cause of its own


def not_opened_error(error: Exception) -> Exception:
    """The error if no transaction could be opened. Our own errors (wrong use) stay as they are. Anything else, such as
    a pool that is not open yet or a server that is down, becomes TransactionNotOpened."""
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
    if isinstance(effect, SendDirect):
        return await send_direct(tx)(effect.statement)
    return await tx.flush()


def trace_step(trace: Trace | None, call: CallFunction, lease: Lease | None) -> AbstractContextManager[object]:
    """The span of a foreign step, if there is a trace."""
    if trace is None or not call.step:
        return _NO_SPAN
    from retrysafe.engine.trace import describe_step

    return trace.span("step", describe_step(call, lease))


_NO_SPAN = nullcontext()


def is_call_covered(lease: Lease, timeout: float | None) -> bool:
    """True if the lease outlasts a call with this timeout. True for a lost lease, too: it is not renewed."""
    return lease.lost or lease.fits(timeout or 0.0)


def begin_call(lease: Lease | None, call: CallFunction) -> Any:
    """Check the lease just before a call. An owner that was paused for longer than its lease must not send, and no call
    begins that may outlast the lease (I24, I33). The gap between this check and the sending cannot be closed
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
        flow,
        OperationPerformer(safe.performer(), lambda: find_source(safe.tx, "sync"), safe.worker_notifier, safe.trace),
    )


async def run_async(safe: RetrySafe, flow: Flow[R]) -> R:
    performer = AsyncOperationPerformer(
        safe.async_performer(), lambda: find_source(safe.tx, "async"), safe.worker_notifier, safe.trace
    )
    return await drive.arun(flow, performer)
