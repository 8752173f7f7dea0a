"""SQLite's write lock and MySQL's advisory lock, which do not simply begin and end with a transaction.

SQLite has one write lock for the file, and it is taken before anything is read. A deferred transaction that reads first
and writes later fails at once if another connection wrote in between, whatever its busy timeout says. So the
transaction begins with BEGIN IMMEDIATE. Where something else has sent a plain BEGIN already (Django, an event hook of
SQLAlchemy), that empty transaction is ended first.

MySQL's advisory lock (GET_LOCK) belongs to the session, not to the transaction. It must be released, and only after the
transaction has ended: until then other callers see by the lock that a commit whose reply was lost may still be running.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from retrysafe.stores.base import LockNotAvailable, Plan
from retrysafe.stores.mysql import protocol
from retrysafe.stores.mysql.dialect import RELEASE_LOCK
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import LOCK_TIMEOUT_SECONDS, Rows
from retrysafe.transactions.failures import ErrorClass, classify_error

# SQLite -------------------------------------------------------------------------------------------


def take_write_lock(*, begun: bool) -> Plan[Statement, None]:
    """Take the write lock, or raise LockNotAvailable. The connection's own busy timeout is restored afterwards.
    `begun`: the connection is in an empty transaction already."""
    found = yield Statement("PRAGMA busy_timeout", {})
    own_timeout = int(found[0][0])
    yield Statement(f"PRAGMA busy_timeout = {min(own_timeout, round(LOCK_TIMEOUT_SECONDS * 1000))}", {})
    if begun:
        yield Statement("ROLLBACK", {})
    try:
        yield Statement("BEGIN IMMEDIATE", {})
    except Exception as error:
        if classify_error(error) is not ErrorClass.RETRYABLE:
            raise
        yield Statement(f"PRAGMA busy_timeout = {own_timeout}", {})
        raise LockNotAvailable(str(error)) from error
    yield Statement(f"PRAGMA busy_timeout = {own_timeout}", {})


# MySQL and MariaDB --------------------------------------------------------------------------------

LOCK_PARAMETER = "lock"
"""The parameter that carries a lock's number. A connection that has sent it may hold the lock."""


def plan_steps(statement: Statement) -> Plan[str, Rows]:
    """The statements of one text, sent one by one; the reply is the last one's. (Our own connections send several in a
    packet, which a connection has to be opened for.)"""
    found = yield from protocol.plan_steps(statement)
    return list(found)


def read_rows(found: Iterable[Sequence[Any]] | None, changed: int) -> Rows:
    return list(protocol.read_rows(found, changed))


def build_release_sql(lock: int) -> str:
    """The statement that releases the lock. It does nothing if the session does not hold it."""
    return RELEASE_LOCK.format(int(lock))
