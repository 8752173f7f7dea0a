"""SQLite's one write lock, taken before anything is read.

A deferred transaction that reads first and writes later fails at once when somebody wrote in between, whatever
its busy timeout says. So the lock comes first: by BEGIN IMMEDIATE, or, where somebody else has sent a BEGIN already
(Django, an event hook of SQLAlchemy), by a statement that asks for the lock and writes nothing.
"""

from __future__ import annotations

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions.base import PATIENCE, Held
from retrysafe.transactions.failures import Trouble, trouble

# Any table serves, and this one is always there. The statement plans to write, so it takes the lock; it finds nothing.
LOCK_BY_WRITING = "DELETE FROM sqlite_master WHERE 0"


def locked(*, begun: bool) -> Plan[Statement, None]:
    """Hold the write lock, or raise Held. The connection's own busy timeout is put back."""
    told = yield Statement("PRAGMA busy_timeout", {})
    own = int(told[0][0])
    yield Statement(f"PRAGMA busy_timeout = {min(own, round(PATIENCE * 1000))}", {})
    try:
        yield Statement("BEGIN IMMEDIATE", {}) if not begun else Statement(LOCK_BY_WRITING, {})
    except Exception as error:
        if trouble(error) is Trouble.AGAIN:
            yield Statement(f"PRAGMA busy_timeout = {own}", {})
            raise Held(str(error)) from error
        raise
    yield Statement(f"PRAGMA busy_timeout = {own}", {})
