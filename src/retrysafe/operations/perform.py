"""Performing what only operations ask for: a call under somebody else's lease, and a transaction of the user's."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack, ExitStack
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.engine import drive
from retrysafe.engine.bell import Bell
from retrysafe.engine.effects import Announce, Call, Effect, Flow, Ring, Transact
from retrysafe.engine.heartbeat import Lease, current_lease
from retrysafe.engine.perform import Performer
from retrysafe.errors import RetrySafeError, StoreUnavailable
from retrysafe.operations.failures import Unopened, told
from retrysafe.operations.local import Work
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import AfterCommit, AsyncTx, AsyncTxSource, Tx, TxSource
from retrysafe.transactions.drive import send_plainly
from retrysafe.transactions.effects import Committed, Plainly
from retrysafe.transactions.sources import source

if TYPE_CHECKING:
    from retrysafe.engine.aperform import AsyncPerformer
    from retrysafe.engine.safe import RetrySafe


R = TypeVar("R")
_log = logging.getLogger("retrysafe")


class OperationPerformer:
    """Effects of operations, for threads."""

    def __init__(self, performer: Performer, source: Callable[[], TxSource], bell: Bell) -> None:
        self._performer = performer
        self._source = source
        self._bell = bell

    def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Call):
            lease = current_lease()
            if lease is not None and not room(lease, effect.timeout) and not self._performer.renew(lease):
                lease.lost = True
            return begin(lease, effect)
        if isinstance(effect, Transact):
            return self._transact(effect)
        if isinstance(effect, Ring):
            return self._performer(Announce(self._bell.id)) if self._bell.ring() else None
        return self._performer(effect)

    def _transact(self, effect: Transact) -> Any:
        done: Any = None
        try:
            with ExitStack() as stack:
                try:
                    tx = stack.enter_context(self._source().begin())
                except Exception as error:
                    raise unopened(error) from error
                done = drive.run(effect.story(tx), lambda inner: inside(tx, inner))
        except AfterCommit as after:
            # The step is done, and an operation goes on from there; whoever looks after the program has to hear of it.
            _log.error("a hook that ran after the commit of a local step failed", exc_info=after.error)
        return done


def inside(tx: Tx, effect: Any) -> Any:
    """What happens in the open transaction: our statements, the user's function, a flush."""
    if isinstance(effect, Statement):
        return tx.send(effect)
    if isinstance(effect, Work):
        with effect.staging.on(tx.handle):
            return effect.function(tx.handle)
    if isinstance(effect, Committed):
        return getattr(tx, "committed", None)
    if isinstance(effect, Plainly):
        return send_plainly(tx)(effect.statement)
    return tx.flush()


class AsyncOperationPerformer:
    """Effects of operations, for event loops."""

    def __init__(self, performer: AsyncPerformer, source: Callable[[], AsyncTxSource], bell: Bell) -> None:
        self._performer = performer
        self._source = source
        self._bell = bell

    async def __call__(self, effect: Effect) -> Any:
        if isinstance(effect, Call):
            return await self._call(effect)
        if isinstance(effect, Transact):
            return await self._transact(effect)
        if isinstance(effect, Ring):
            return await self._performer(Announce(self._bell.id)) if self._bell.ring() else None
        return await self._performer(effect)

    async def _call(self, effect: Call) -> Any:
        import asyncio

        lease = current_lease()
        if lease is not None and not room(lease, effect.timeout) and not await self._performer.renew(lease):
            lease.lost = True
        async with asyncio.timeout(effect.timeout):
            result = begin(lease, effect)
            return await result if inspect.isawaitable(result) else result

    async def _transact(self, effect: Transact) -> Any:
        async with AsyncExitStack() as stack:
            try:
                tx = await stack.enter_async_context(self._source().begin())
            except Exception as error:
                raise unopened(error) from error
            return await drive.arun(effect.story(tx), lambda inner: ainside(tx, inner))


def unopened(error: Exception) -> Exception:
    """What the step is told: wrong use as it is, anything else (a pool that is not open yet, a server that is away) as
    a transaction that could not be opened."""
    return error if isinstance(error, RetrySafeError) else Unopened(told(error))


async def ainside(tx: AsyncTx, effect: Any) -> Any:
    if isinstance(effect, Statement):
        return await tx.send(effect)
    if isinstance(effect, Work):
        with effect.staging.on(tx.handle):
            result = effect.function(tx.handle)
            return await result if inspect.isawaitable(result) else result
    if isinstance(effect, Committed):
        return getattr(tx, "committed", None)
    if isinstance(effect, Plainly):
        return await send_plainly(tx)(effect.statement)
    return await tx.flush()


def room(lease: Lease, timeout: float | None) -> bool:
    """Whether a call to another system would be over before the lease is. One that was lost gets no other."""
    return lease.lost or lease.fits(timeout or 0.0)


def begin(lease: Lease | None, call: Call) -> Any:
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
    return drive.run(flow, OperationPerformer(safe.performer(), lambda: source(safe.tx, "sync"), safe.bell))


async def run_async(safe: RetrySafe, flow: Flow[R]) -> R:
    performer = AsyncOperationPerformer(safe.async_performer(), lambda: source(safe.tx, "async"), safe.bell)
    return await drive.arun(flow, performer)
