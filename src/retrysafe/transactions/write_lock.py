"""SQLite's one write lock, taken before anything is read.

A deferred transaction that reads first and writes later fails at once when somebody wrote in between, whatever
its busy timeout says. So the lock comes first, by BEGIN IMMEDIATE; and where somebody else has sent a plain BEGIN
already (Django, an event hook of SQLAlchemy), that empty transaction is ended first.
"""

from __future__ import annotations

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import LOCK_TIMEOUT_SECONDS, LockNotAvailable
from retrysafe.transactions.failures import ErrorClass, classify_error


def take_write_lock(*, begun: bool) -> Plan[Statement, None]:
    """Hold the write lock, or raise Held. The connection's own busy timeout is put back."""
    told = yield Statement("PRAGMA busy_timeout", {})
    own = int(told[0][0])
    yield Statement(f"PRAGMA busy_timeout = {min(own, round(LOCK_TIMEOUT_SECONDS * 1000))}", {})
    if begun:
        yield Statement("ROLLBACK", {})
    try:
        yield Statement("BEGIN IMMEDIATE", {})
    except Exception as error:
        if classify_error(error) is not ErrorClass.RETRYABLE:
            raise
        yield Statement(f"PRAGMA busy_timeout = {own}", {})
        raise LockNotAvailable(str(error)) from error
    yield Statement(f"PRAGMA busy_timeout = {own}", {})
