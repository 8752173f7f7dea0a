"""MySQL's advisory lock belongs to the session, not to the transaction: it must be given back, and only when the
transaction is over. Until then it is how others know that a commit whose reply was lost may still be under way.

A text of MySQL may be several statements (stores/mysql/protocol.py); here they go one by one, because packets of many
are something a connection has to be opened for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from retrysafe.stores.base import Plan
from retrysafe.stores.mysql import protocol
from retrysafe.stores.mysql.dialect import RELEASE_LOCK
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import Rows

LOCK_PARAMETER = "lock"
"""The parameter that carries a lock's number: who sends it may hold the lock from then on."""


def plan_steps(statement: Statement) -> Plan[str, Rows]:
    """The statement, step by step; what it says in the end."""
    found = yield from protocol.plan_steps(statement)
    return list(found)


def read_rows(found: Iterable[Sequence[Any]] | None, changed: int) -> Rows:
    return list(protocol.read_rows(found, changed))


def build_release_sql(lock: int) -> str:
    """Harmless where the lock was not got."""
    return RELEASE_LOCK.format(int(lock))
