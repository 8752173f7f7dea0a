"""The effects of a transaction's flow: what `flow.py` yields, and `drive.py` performs."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from retrysafe.core.ops import Op
from retrysafe.core.records import Answer
from retrysafe.engine.effects import FlowPause, NotifyWorker
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.staging import Staging

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction. The reply is its dialect. Raises LockNotAvailable if SQLite's write lock was not free."""


@dataclass(frozen=True, slots=True)
class End:
    """Commit, or roll back."""

    how: Literal["commit", "rollback"]


@dataclass(frozen=True, slots=True)
class Flush:
    """Write the pending objects of the user's session, so that the receipt is written after them."""


@dataclass(frozen=True, slots=True)
class TxBody:
    """Run the user's code on the open transaction's handle, and collect the jobs that it stages."""

    function: Callable[[Any], Any]
    staging: Staging


@dataclass(frozen=True, slots=True)
class AskCommitted:
    """Ask the adapter whether the user's code committed the transaction itself: True, False, or None if the adapter
    does not know."""


@dataclass(frozen=True, slots=True)
class SendDirect:
    """Send a statement although the user's handle believes that its transaction has failed. Some handles refuse every
    statement after an error; this one goes to the connection below them."""

    statement: Statement


TxEffect = Begin | End | Flush | TxBody | AskCommitted | SendDirect | NotifyWorker | Statement | FlowPause | Op[Any]
TxFlow = Generator[TxEffect, Any, R]

BEGIN, FLUSH, COMMIT, ROLLBACK, ASK_COMMITTED = Begin(), Flush(), End("commit"), End("rollback"), AskCommitted()


class TxWork(Protocol):
    """The user's work: `call` runs it, `answer` and `failure` encode its result or its exception."""

    def call(self, handle: Any) -> Any: ...
    def answer(self, result: Any) -> Answer: ...
    def failure(self, error: Exception) -> Answer: ...
