"""What the flow of a transaction asks for, and what it is told about the place it runs in."""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

from retrysafe.core.ops import Op
from retrysafe.core.records import Answer
from retrysafe.engine.effects import FlowPause, NotifyWorker
from retrysafe.engine.events import Events
from retrysafe.engine.sealing import Sealer
from retrysafe.stores.mongo.settings import Collections
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.transactions.staging import Staging

R = TypeVar("R")

MAX_RERUNS = 8
"""How often a body is run again after the database undid it. Each time somebody else got on."""


@dataclass(frozen=True, slots=True)
class Begin:
    """Open a transaction; the reply is its dialect. Raises Held when SQLite's lock was not to be had."""


@dataclass(frozen=True, slots=True)
class End:
    """Commit, or roll back."""

    how: Literal["commit", "rollback"]


@dataclass(frozen=True, slots=True)
class Flush:
    """Write what the user's session still holds back, so that the receipt comes last."""


@dataclass(frozen=True, slots=True)
class TxBody:
    """Run the user's code on the open transaction's handle; what it stages is collected."""

    function: Callable[[Any], Any]
    staging: Staging


@dataclass(frozen=True, slots=True)
class AskCommitted:
    """Whether the user's code committed the transaction itself: True, False, or None where the handle does not tell."""


@dataclass(frozen=True, slots=True)
class Plainly:
    """Send it past what the user's handle thinks of its transaction: after an error some refuse everything."""

    statement: Statement


TxEffect = Begin | End | Flush | TxBody | AskCommitted | Plainly | NotifyWorker | Statement | FlowPause | Op[Any]
TxFlow = Generator[TxEffect, Any, R]

BEGIN, FLUSH, COMMIT, ROLLBACK, ASK_COMMITTED = Begin(), Flush(), End("commit"), End("rollback"), AskCommitted()


class TxWork(Protocol):
    """What runs, and what its endings mean."""

    def call(self, handle: Any) -> Any: ...
    def answer(self, result: Any) -> Answer: ...
    def failure(self, error: Exception) -> Answer: ...


@dataclass(slots=True)
class InstallId:
    """What is remembered of a store: which installation it is. Empty until somebody has asked."""

    value: str = ""


@dataclass(frozen=True, slots=True)
class TxContext:
    """Where receipts go, and how. `reruns` is 0 where the body cannot be run again (a `with` block)."""

    names: TableNames | Collections
    install_id: InstallId
    sealer: Sealer
    events: Events
    max_reruns: int = MAX_RERUNS
