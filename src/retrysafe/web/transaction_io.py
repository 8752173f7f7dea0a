"""A route's transaction, sync and async: driving its flows, and running a handler in it.

SyncRequestTransaction       WSGI: everything in the request's own thread
AsyncRequestTransaction      ASGI with an async driver
ThreadedRequestTransaction   ASGI with a sync driver: begin and commit run in a thread, like the handler (`def`)
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
from retrysafe.transactions.drive import AsyncTxDriver, TxDriver, aadvance, advance, await_despite_cancellation
from retrysafe.transactions.effects import FLUSH, TxFlow
from retrysafe.transactions.sources import find_adapter, find_source
from retrysafe.web.capture import Response
from retrysafe.web.exchange import Exchange
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.sync_async import AsyncExchange, SyncExchange
from retrysafe.web.transaction_flow import RequestTransaction

R = TypeVar("R")

TX_ARGUMENT = "tx"
"""The handler's argument for the connection or session, if the framework does not pass it by itself."""

KEYED_MODES = ("required", "generate")

RunInThread = Callable[[Callable[[], Any]], Awaitable[Any]]
"""Runs a function in a thread and waits for it."""


class SyncRequestTransaction:
    """A request's transaction in the request's own thread."""

    def __init__(self, flows: RequestTransaction, tx: Any) -> None:
        self.flows = flows
        self._driver = TxDriver(flows.exchange.settings.safe, find_source(tx, "sync"))

    @property
    def handle(self) -> Any:
        """The user's connection or session, in the open transaction."""
        assert self._driver.tx is not None, "a transaction is open"
        return self._driver.tx.handle

    def open(self) -> None:
        self._drive(self.flows.open_flow())

    def roll_back(self, error: Exception) -> None:
        """The handler raised: roll back before the framework turns the error into an answer. Raises ResponseReady if
        the database rolled back because of other transactions: then the request runs again and needs no answer."""
        self._drive(self.flows.roll_back_flow(error))
        exchange = self.flows.exchange
        exchange.failed_with = error
        if self.flows.must_rerun(error):
            exchange.response = self.settle(exchange.release_flow())
            raise ResponseReady("the database rolled it back") from error

    def settle(self, flow: Flow[Response | None]) -> Response | None:
        try:
            return self._drive(self.flows.settle_flow(flow))
        finally:
            self._driver.close()

    def run_handler(self, call: Callable[[Any], R]) -> R:
        """Call the handler. Raises ResponseReady if the database rolled it back because of other transactions."""
        try:
            with self.flows.staging.collect_on(self.handle):
                result = call(self.handle)
            self.flush()
        except Exception as error:
            self.roll_back(error)
            raise
        return result

    def flush(self) -> None:
        """Send pending writes now, so that the database's errors count as errors of the handler."""
        self._driver.perform(FLUSH)

    def _drive(self, flow: TxFlow[R]) -> R:
        try:
            ended = advance(flow, self._driver, lambda: next(flow))
        except BaseException:
            self._driver.close()
            raise
        return ended  # type: ignore[return-value]  # it stops at a TxBody only with `bodies`


class AsyncRequestTransactionBase(ABC):
    """Base class of the two transactions on an event loop: runs a handler."""

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
        """Call the handler. Raises ResponseReady if the database rolled it back because of other transactions."""
        try:
            with self.flows.staging.collect_on(self.handle):
                result = await call(self.handle)
            await self.flush()
        except Exception as error:
            await self.roll_back(error)
            raise
        return result

    @asynccontextmanager
    async def lend_handle(self, refusal: Callable[[], Exception]) -> AsyncIterator[Any]:
        """The handle for a handler that the framework calls. The framework throws the handler's exception into this
        context manager. `refusal` makes the exception that tells the framework not to answer."""
        try:
            with self.flows.staging.collect_on(self.handle):
                yield self.handle
        except Exception as error:
            try:
                await self.roll_back(error)
            except ResponseReady as stop:
                raise refusal() from stop
            raise


class AsyncRequestTransaction(AsyncRequestTransactionBase):
    """A request's transaction on an event loop, with an async driver."""

    def __init__(self, flows: RequestTransaction, tx: Any) -> None:
        self.flows = flows
        self._driver = AsyncTxDriver(flows.exchange.settings.safe, find_source(tx, "async"))

    @property
    def handle(self) -> Any:
        assert self._driver.tx is not None, "a transaction is open"
        return self._driver.tx.handle

    async def open(self) -> None:
        await self._drive(self.flows.open_flow())

    async def roll_back(self, error: Exception) -> None:
        await self._drive(self.flows.roll_back_flow(error))
        exchange = self.flows.exchange
        exchange.failed_with = error
        if self.flows.must_rerun(error):
            exchange.response = await self.settle(exchange.release_flow())
            raise ResponseReady("the database rolled it back") from error

    async def settle(self, flow: Flow[Response | None]) -> Response | None:
        try:
            return await self._drive(self.flows.settle_flow(flow))
        finally:
            await self._driver.close()

    async def flush(self) -> None:
        await self._driver.perform(FLUSH)

    async def _drive(self, flow: TxFlow[R]) -> R:
        try:
            ended = await aadvance(flow, self._driver, lambda: next(flow))
        except BaseException:
            await self._driver.close()
            raise
        return ended  # type: ignore[return-value]  # it stops at a TxBody only with `bodies`


class ThreadedRequestTransaction(AsyncRequestTransactionBase):
    """A request's transaction on an event loop, with a sync driver. Begin and commit run in a thread; two threads never
    use the connection at the same time."""

    def __init__(self, inner: SyncRequestTransaction, run_in_thread: RunInThread) -> None:
        self.flows = inner.flows
        self._sync_transaction = inner
        self._run_in_thread = run_in_thread

    @property
    def handle(self) -> Any:
        return self._sync_transaction.handle

    async def open(self) -> None:
        await self._run_in_thread(self._sync_transaction.open)

    async def roll_back(self, error: Exception) -> None:
        await self._run_in_thread(lambda: self._sync_transaction.roll_back(error))

    async def settle(self, flow: Flow[Response | None]) -> Response | None:
        response: Response | None = await self._run_in_thread(lambda: self._sync_transaction.settle(flow))
        return response

    async def flush(self) -> None:
        await self._run_in_thread(self._sync_transaction.flush)


async def run_in_thread(function: Callable[[], R]) -> R:
    """Run it in a thread and wait for it even if the request is cancelled: a commit that has begun must be awaited."""
    return await await_despite_cancellation(asyncio.to_thread(function))


# Claiming --------------------------------------------------------------------------------------------


class TransactionRequest(NamedTuple):
    """What a route asks for: its policy or None, its name, and the source of its transactions (None:
    RetrySafe(tx=…))."""

    policy: Policy | None
    target: str
    tx: Any = None


def claim_in_transaction(
    exchange: SyncExchange, principal: Any, tx_request: TransactionRequest
) -> SyncRequestTransaction:
    """Claim this request's key by opening a transaction. Raises ResponseReady when the handler must not run."""
    tx = choose_tx(exchange, tx_request)
    task = exchange.identify(principal, tx_request.policy, target=tx_request.target, keep=True)
    assert task is not None, "these modes have a key for each request"
    transaction = SyncRequestTransaction(RequestTransaction(exchange, task), tx)
    exchange.transaction = transaction
    transaction.open()
    return transaction


async def aclaim_in_transaction(
    exchange: AsyncExchange, principal: Any, tx_request: TransactionRequest, handler: Any
) -> AsyncRequestTransactionBase:
    """The same on an event loop. The transaction is sync or async, as `handler` is."""
    tx = choose_tx(exchange, tx_request)
    mode = choose_sync_or_async(tx, handler)
    task = await exchange.identify(principal, tx_request.policy, target=tx_request.target, keep=True)
    assert task is not None, "these modes have a key for each request"
    flows = RequestTransaction(exchange, task)
    transaction: AsyncRequestTransactionBase = (
        AsyncRequestTransaction(flows, tx)
        if mode == "async"
        else ThreadedRequestTransaction(SyncRequestTransaction(flows, tx), run_in_thread)
    )
    exchange.transaction = transaction
    await transaction.open()
    return transaction


def choose_tx(exchange: Exchange, tx_request: TransactionRequest) -> Any:
    """The source of the handler's transactions. Raises UsageError if there is none, or if a request may have no key."""
    target, mode = tx_request.target, (tx_request.policy or exchange.policy).mode
    if mode not in KEYED_MODES:
        raise UsageError(
            f"{target} has strength='transaction' and mode={mode!r}, under which a request without a key would "
            "have no transaction to run in; choose mode='required', or mode='generate' for clients that send none yet"
        )
    tx = tx_request.tx if tx_request.tx is not None else exchange.settings.safe.tx
    if tx is None:
        raise UsageError(
            f"{target} has strength='transaction', but there is no tx= to open one from; pass tx= (a pool, a "
            "sessionmaker, 'django:default') beside it, or to RetrySafe"
        )
    return tx


def check_tx(strength: str, tx: Any) -> None:
    if tx is not None and strength != "transaction":
        raise UsageError(f"tx={tx!r} is for strength='transaction', but this has strength={strength!r}")


def choose_sync_or_async(tx: Any, handler: Any) -> SyncMode:
    """Sync or async, as the tx object is. A path or a factory can be both, and is used as the handler is."""
    own: SyncMode = "async" if inspect.iscoroutinefunction(inspect.unwrap(handler)) else "sync"
    adapter = find_adapter(tx, own)
    if adapter is None:
        return "async" if inspect.iscoroutinefunction(tx) else own
    if own == "sync" and adapter.sync_mode == "async":
        name = getattr(handler, "__qualname__", handler)
        raise SyncAsyncMismatch(f"tx={tx!r} is async, but {name} is a plain function; write `async def`")
    return adapter.sync_mode


def _takes_handle(handler: Any) -> bool:
    return TX_ARGUMENT in inspect.signature(handler).parameters


def add_handle(handler: Any, kwargs: dict[str, Any], handle: Any) -> dict[str, Any]:
    """The handler's arguments, with the handle added if the handler has an argument for it."""
    return {**kwargs, TX_ARGUMENT: handle} if _takes_handle(handler) else kwargs
