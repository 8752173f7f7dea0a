"""`with safe.transaction(…) as tx:` and `async with`: the body of the transaction is the block itself."""

from __future__ import annotations

from contextlib import ExitStack
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Record
from retrysafe.engine.arguments import fingerprint_call
from retrysafe.engine.codecs import encode_exception
from retrysafe.engine.drive import is_same_stop
from retrysafe.engine.guard import Ended, Task
from retrysafe.errors import NoAnswer, UsageError
from retrysafe.policy import Policy
from retrysafe.transactions.binding import build_tx_context
from retrysafe.transactions.drive import AsyncTxDriver, TxDriver, aadvance, advance, settle_despite_cancellation
from retrysafe.transactions.effects import TxBody, TxEffect, TxFlow
from retrysafe.transactions.flow import transaction_flow
from retrysafe.transactions.sources import find_source

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe


RELEASE_POLICY = Policy(failures="release")
"""The default: an exception is not stored as an answer. Everything was rolled back, so a retry may run the block."""


def build_block_task(
    safe: RetrySafe, key: str | Key, scope: str | None, *, request: Any, target: str, policy: Policy | None
) -> Task:
    if not isinstance(key, Key):
        key = Key(key, scope or "")
    elif scope is not None and scope != key.scope:
        raise UsageError(f"scope={scope!r} is not the scope of {key!r}; give a Key, or a text and its scope")
    fingerprint = fingerprint_call("safe.transaction", {"request": request, "target": target}, frozenset())
    return safe.build_task(key, target, fingerprint, policy or safe.policy or RELEASE_POLICY)


class Block:
    """One transaction with a key. A block cannot be run again, so a deadlock or serialization failure is raised as
    RolledBack."""

    def __init__(self, safe: RetrySafe, given: Any, task: Task) -> None:
        self._safe = safe
        self._given = given
        self._task = task
        self._flow: TxFlow[Ended] | None = None
        self._driver: TxDriver | AsyncTxDriver | None = None
        self._ended: Ended | None = None
        self._answer: Answer | None = None
        self._staging = ExitStack()

    # What the block uses --------------------------------------------------------------------

    @property
    def replayed(self) -> bool:
        """Whether the work was done before. Then `answer` is the stored one, and nothing may be written."""
        return self._ended is not None and self._ended.replayed

    @property
    def handle(self) -> Any:
        """Your connection or session, in the transaction that commits with the answer."""
        if self.replayed:
            raise UsageError(
                f"idempotency key {self._task.key.value!r} was done before, so no transaction is open; "
                "begin the block with: if tx.replayed: return tx.answer"
            )
        if self._driver is None or self._driver.tx is None:
            raise UsageError("the transaction is open only inside its with block")
        return self._driver.tx.handle

    @property
    def answer(self) -> Answer:
        """The stored answer on a replay, else the one you set."""
        if self._answer is None:
            raise UsageError("tx.answer is not set yet; set it before the block ends")
        return self._answer

    @answer.setter
    def answer(self, value: Answer) -> None:
        if self.replayed:
            raise UsageError(f"idempotency key {self._task.key.value!r} has its answer; a replay cannot change it")
        if not isinstance(value, Answer):
            raise UsageError(f"tx.answer = {value!r}: give an Answer, like Answer(201, {{'id': 7}})")
        self._answer = value

    @property
    def record(self) -> Record:
        """The stored record, after the block has ended."""
        if self._ended is None:
            raise UsageError("the record exists when the block has ended")
        return self._ended.record

    # Around the block -----------------------------------------------------------------------

    def _begin(self) -> TxFlow[Ended]:
        if self._flow is not None:
            raise UsageError("a transaction block is used once; call safe.transaction(...) again")
        self._flow = transaction_flow(self._task, BlockWork(), build_tx_context(self._safe, max_reruns=0))
        return self._flow

    def _on_body_reached(self, reached: Ended | TxBody) -> None:
        if isinstance(reached, Ended):
            self._ended, self._answer = reached, reached.answer
            return
        reached.staging.block = self
        self._staging.enter_context(reached.staging.collect_on(self.handle))

    def _resume(self, error: BaseException | None) -> TxEffect:
        assert self._flow is not None
        if error is not None:
            return self._flow.throw(error)
        if self._answer is None:
            return self._flow.throw(NoAnswer(self._task.key.value))
        return self._flow.send(self._answer)

    def _on_flow_ended(self, reached: Ended | TxBody) -> None:
        assert isinstance(reached, Ended), "a block is not run again"
        self._ended = reached

    # Sync and async -------------------------------------------------------------------------

    def __enter__(self) -> Self:
        flow = self._begin()
        driver = self._driver = TxDriver(self._safe, find_source(self._given, "sync"))
        try:
            self._on_body_reached(advance(flow, driver, lambda: next(flow), bodies=False))
        except BaseException:
            driver.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._staging.close()
        flow, driver = self._flow, self._driver
        assert flow is not None
        assert isinstance(driver, TxDriver)
        try:
            if not self.replayed and not isinstance(error, GeneratorExit):
                self._on_flow_ended(advance(flow, driver, lambda: self._resume(error), bodies=False))
        except BaseException as raised:
            if raised is not error and not is_same_stop(raised, error):  # else Python raises the block's own error
                raise
        finally:
            driver.close()

    async def __aenter__(self) -> Self:
        flow = self._begin()
        driver = self._driver = AsyncTxDriver(self._safe, find_source(self._given, "async"))
        try:
            self._on_body_reached(await aadvance(flow, driver, lambda: next(flow), bodies=False))
        except BaseException:
            await driver.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        self._staging.close()
        flow, driver = self._flow, self._driver
        assert flow is not None
        assert isinstance(driver, AsyncTxDriver)
        try:
            if self.replayed or isinstance(error, GeneratorExit):
                pass
            elif error is not None and not isinstance(error, Exception):
                await settle_despite_cancellation(flow, driver, error)
            else:
                self._on_flow_ended(await aadvance(flow, driver, lambda: self._resume(error), bodies=False))
        except Exception as raised:
            if raised is not error and not is_same_stop(raised, error):  # else Python raises the block's own error
                raise
        finally:
            await driver.close()


class BlockWork:
    """A block as the work of a transaction. Its result is the answer that was set."""

    def call(self, handle: Any) -> Any:
        raise AssertionError("a block is its own body")

    def answer(self, result: Answer) -> Answer:
        return result

    def failure(self, error: Exception) -> Answer:
        return encode_exception(error)
