"""A route's transaction in its colours: who drives its flows, and how a handler is run in it.

SyncJoined       WSGI: everything in the request's own thread
AsyncJoined      ASGI, on an async driver
ThreadedJoined   ASGI, on a sync driver: begin and commit in a thread, as the handler itself (`def`)
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, TypeVar

from retrysafe.engine.effects import Flow
from retrysafe.errors import SyncAsyncMismatch, UsageError
from retrysafe.policy import Policy
from retrysafe.transactions.base import SyncMode
from retrysafe.transactions.drive import AsyncTxDriver, TxDriver, aadvance, advance, wait_through_cancels
from retrysafe.transactions.effects import FLUSH, TxFlow
from retrysafe.transactions.sources import find_adapter, find_source
from retrysafe.web.capture import Response
from retrysafe.web.exchange import Exchange
from retrysafe.web.response_ready import ResponseReady
from retrysafe.web.sync_async import AsyncExchange, SyncExchange
from retrysafe.web.transaction_flow import RequestTransaction

R = TypeVar("R")

TX_ARGUMENT = "tx"
"""The argument of a handler that gets the connection or session, where its framework does not hand it over itself."""

KEYED_MODES = ("required", "generate")

RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Run a function in a thread, and wait for it there."""


class SyncRequestTransaction:
    """Threads."""

    def __init__(self, joint: RequestTransaction, given: Any) -> None:
        self.flows = joint
        self._stage = TxDriver(joint.exchange.settings.safe, find_source(given, "sync"))

    @property
    def handle(self) -> Any:
        """The user's connection or session, in the open transaction."""
        assert self._stage.tx is not None, "a transaction is open"
        return self._stage.tx.handle

    def open(self) -> None:
        self._drive(self.flows.open_flow())

    def roll_back(self, error: Exception) -> None:
        """The handler raised: undo what it wrote before anybody makes an answer of the error. Raises ResponseReady if
        the database had undone it because of others: then there is nothing to make an answer of."""
        self._drive(self.flows.undo_flow(error))
        exchange = self.flows.exchange
        exchange.failed_with = error
        if self.flows.must_rerun(error):
            exchange.response = self.settle(exchange.release_flow())
            raise ResponseReady("the database undid it") from error

    def settle(self, flow: Flow[Response | None]) -> Response | None:
        try:
            return self._drive(self.flows.settle_flow(flow))
        finally:
            self._stage.close()

    def run_handler(self, call: Callable[[Any], R]) -> R:
        """Call the handler. Raises ResponseReady where the database undid it because of others."""
        try:
            result = call(self.handle)
            self.flush()
        except Exception as error:
            self.roll_back(error)
            raise
        return result

    def flush(self) -> None:
        """Now and not at the end: what the database says to it is the handler's to answer for."""
        self._stage.perform(FLUSH)

    def _drive(self, flow: TxFlow[R]) -> R:
        try:
            ended = advance(flow, self._stage, lambda: next(flow))
        except BaseException:
            self._stage.close()
            raise
        return ended  # type: ignore[return-value]  # only without `bodies` does it stop at a Body


class AsyncRequestTransactionBase(ABC):
    """What the two kinds on an event loop share: how a handler is run."""

    flows: RequestTransaction

    @property
    @abstractmethod
    def handle(self) -> Any: ...
    @abstractmethod
    async def open(self) -> None: ...
    @abstractmethod
    async def roll_back(self, error: Exception) -> None: ...
    @abstractmethod
    async def settle(self, flow: Flow[Response | None]) -> Response | None: ...
    @abstractmethod
    async def flush(self) -> None: ...

    async def run_handler(self, call: Callable[[Any], Awaitable[R]]) -> R:
        """Call the handler. Raises ResponseReady where the database undid it because of others."""
        try:
            result = await call(self.handle)
            await self.flush()
        except Exception as error:
            await self.roll_back(error)
            raise
        return result

    @asynccontextmanager
    async def hand_over_handle(self, refusal: Callable[[], Exception]) -> AsyncIterator[Any]:
        """The handle for a handler that somebody else calls, who throws in here what it raised. `refusal` is how
        that framework is told that there is no answer to make."""
        try:
            yield self.handle
        except Exception as error:
            try:
                await self.roll_back(error)
            except ResponseReady as stop:
                raise refusal() from stop
            raise


class AsyncRequestTransaction(AsyncRequestTransactionBase):
    """Event loops, on an async driver."""

    def __init__(self, joint: RequestTransaction, given: Any) -> None:
        self.flows = joint
        self._stage = AsyncTxDriver(joint.exchange.settings.safe, find_source(given, "async"))

    @property
    def handle(self) -> Any:
        assert self._stage.tx is not None, "a transaction is open"
        return self._stage.tx.handle

    async def open(self) -> None:
        await self._drive(self.flows.open_flow())

    async def roll_back(self, error: Exception) -> None:
        await self._drive(self.flows.undo_flow(error))
        exchange = self.flows.exchange
        exchange.failed_with = error
        if self.flows.must_rerun(error):
            exchange.response = await self.settle(exchange.release_flow())
            raise ResponseReady("the database undid it") from error

    async def settle(self, flow: Flow[Response | None]) -> Response | None:
        try:
            return await self._drive(self.flows.settle_flow(flow))
        finally:
            await self._stage.close()

    async def flush(self) -> None:
        await self._stage.perform(FLUSH)

    async def _drive(self, flow: TxFlow[R]) -> R:
        try:
            ended = await aadvance(flow, self._stage, lambda: next(flow))
        except BaseException:
            await self._stage.close()
            raise
        return ended  # type: ignore[return-value]  # only without `bodies` does it stop at a Body


class ThreadedRequestTransaction(AsyncRequestTransactionBase):
    """Event loops, on a sync driver: its connection is opened and ended in a thread, and never used in two at once."""

    def __init__(self, inner: SyncRequestTransaction, hop: RunInThread) -> None:
        self.flows = inner.flows
        self.inner = inner
        self._run_in_thread = hop

    @property
    def handle(self) -> Any:
        return self.inner.handle

    async def open(self) -> None:
        await self._run_in_thread(self.inner.open)

    async def roll_back(self, error: Exception) -> None:
        await self._run_in_thread(lambda: self.inner.roll_back(error))

    async def settle(self, flow: Flow[Response | None]) -> Response | None:
        told: Response | None = await self._run_in_thread(lambda: self.inner.settle(flow))
        return told

    async def flush(self) -> None:
        await self._run_in_thread(self.inner.flush)


async def run_in_thread(function: Callable[[], R]) -> R:
    """A commit that has begun is not left because its request was cancelled."""
    return await wait_through_cancels(asyncio.to_thread(function))


# Joining --------------------------------------------------------------------------------------------


class TransactionRequest(NamedTuple):
    """What a route asks for: its policy or None, its name, and where its transactions come from (None: RetrySafe's)."""

    policy: Policy | None
    target: str
    tx: Any = None


def claim_in_transaction(exchange: SyncExchange, principal: Any, wanted: TransactionRequest) -> SyncRequestTransaction:
    """Claim this request's key by opening a transaction. Raises ResponseReady when the handler must not run."""
    given = choose_tx(exchange, wanted)
    task = exchange.identify(principal, wanted.policy, target=wanted.target, keep=True)
    assert task is not None, "these modes have a key for each request"
    joined = SyncRequestTransaction(RequestTransaction(exchange, task), given)
    exchange.transaction = joined
    joined.open()
    return joined


async def aclaim_in_transaction(
    exchange: AsyncExchange, principal: Any, wanted: TransactionRequest, handler: Any
) -> AsyncRequestTransactionBase:
    """The same on an event loop. `handler` says in which colour its transaction is used."""
    given = choose_tx(exchange, wanted)
    colour = choose_sync_or_async(given, handler)
    task = await exchange.identify(principal, wanted.policy, target=wanted.target, keep=True)
    assert task is not None, "these modes have a key for each request"
    joint = RequestTransaction(exchange, task)
    joined: AsyncRequestTransactionBase = (
        AsyncRequestTransaction(joint, given)
        if colour == "async"
        else ThreadedRequestTransaction(SyncRequestTransaction(joint, given), run_in_thread)
    )
    exchange.transaction = joined
    await joined.open()
    return joined


def choose_tx(exchange: Exchange, wanted: TransactionRequest) -> Any:
    """Where the handler's transactions come from; every request must have one."""
    mode = (wanted.policy or exchange.policy).mode
    if mode not in KEYED_MODES:
        raise UsageError(
            f"{wanted.target} has strength='transaction' and mode={mode!r}, under which a request without a key would "
            "have no transaction to run in; choose mode='required', or mode='generate' for clients that send none yet"
        )
    given = wanted.tx if wanted.tx is not None else exchange.settings.safe.tx
    if given is None:
        raise UsageError(
            f"{wanted.target} has strength='transaction', but nobody says how to open one; pass tx= (a pool, a "
            "sessionmaker, 'django:default') beside it, or to RetrySafe"
        )
    return given


def check_tx(strength: str, tx: Any) -> None:
    if tx is not None and strength != "transaction":
        raise UsageError(f"tx={tx!r} is for strength='transaction', but this has strength={strength!r}")


def choose_sync_or_async(given: Any, handler: Any) -> SyncMode:
    """An object has its own colour; a path or a factory takes that of the handler which uses it."""
    own: SyncMode = "async" if inspect.iscoroutinefunction(inspect.unwrap(handler)) else "sync"
    adapter = find_adapter(given, own)
    if adapter is None:
        return "async" if inspect.iscoroutinefunction(given) else own
    if own == "sync" and adapter.sync_mode == "async":
        name = getattr(handler, "__qualname__", handler)
        raise SyncAsyncMismatch(f"tx={given!r} is async, but {name} is a plain function; write `async def`")
    return adapter.sync_mode


def takes_handle(handler: Any) -> bool:
    return TX_ARGUMENT in inspect.signature(handler).parameters


def add_handle(handler: Any, kwargs: dict[str, Any], handle: Any) -> dict[str, Any]:
    """The handler's arguments, with the handle where it asks for one."""
    return {**kwargs, TX_ARGUMENT: handle} if takes_handle(handler) else kwargs
