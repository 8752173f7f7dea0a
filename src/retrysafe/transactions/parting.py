"""Whether a body that fails had committed before: then what it wrote stays, and it must not run again."""

from __future__ import annotations

import logging
from collections.abc import Generator
from typing import Any, Protocol, TypeVar

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.receipts import TxMarker
from retrysafe.transactions.effects import ASK_COMMITTED, Plainly
from retrysafe.transactions.failures import undoes_transaction

R = TypeVar("R")
_log = logging.getLogger("retrysafe")
ROLL_BACK = Statement("ROLLBACK", {})


class Tells(Protocol):
    """Statements about a marked transaction."""

    def committed(self, mark: TxMarker) -> Plan[Any, bool | None]: ...


def parted(
    statements: Tells, mark: TxMarker, other: Plan[Any, bool], error: Exception | None = None
) -> Generator[Any, Any, bool]:
    """`other` asks whether the open transaction is another one than the marked one. After an error PostgreSQL answers
    nothing before a rollback, and then tells whether the marked transaction was committed. On other databases nobody
    can ask after a deadlock: it took the whole transaction with it.

    An error that looks like a lost connection is no reason not to ask: it may come from another system that the body
    called. A connection that is really lost does not answer, and then only the handle may have seen a commit."""
    if error is None or not undoes_transaction(error):
        try:
            if not (yield from other):
                return False
        except Exception as silent:
            _log.debug("the transaction does not answer: %s", silent)
        else:
            return (yield ASK_COMMITTED) is not False
    seen: bool | None = yield ASK_COMMITTED
    try:
        told = yield from plainly(statements.committed(mark))
    except Exception as unheard:
        _log.debug("whether it was committed cannot be asked: %s", unheard)
        told = None
    return bool(told or seen)


def plainly(plan: Plan[Any, R]) -> Generator[Any, Any, R]:
    """A plan that is carried out past what the user's handle thinks of its transaction, after a rollback of it."""
    reply: Any = None
    rolled_back = False
    try:
        statement = next(plan)
        while True:
            if not rolled_back:
                yield Plainly(ROLL_BACK)
                rolled_back = True
            reply = yield Plainly(statement)
            statement = plan.send(reply)
    except StopIteration as done:
        result: R = done.value
        return result
