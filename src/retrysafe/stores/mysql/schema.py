"""The schema, applied step by step. A CREATE commits by itself here, so each migration can be repeated (IF NOT EXISTS)
and is written down when it is done: who is interrupted goes on where it stopped. One at a time, by a named lock.
"""

from __future__ import annotations

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan
from retrysafe.stores.mysql.dialect import DIALECT, MARIADB, MysqlDialect
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import TableNames

LOCK_QUERY = "SELECT GET_LOCK(CONCAT(:lock, CRC32(DATABASE())), 10)"
UNLOCK_QUERY = "SELECT RELEASE_LOCK(CONCAT(:lock, CRC32(DATABASE())))"
TABLE_EXISTS_QUERY = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = :name"


def dialect_of(server: str) -> MysqlDialect:
    """By what the server says its version is."""
    return MARIADB if "mariadb" in server.lower() else DIALECT


def upgrade(names: TableNames, to: int | None = None) -> Plan[Statement, list[str]]:
    """Apply what is missing, one at a time over all processes; the reply names what was applied."""
    lock = {"lock": f"rs-migrate:{names.bare[:30]}:"}
    got = yield Statement(DIALECT.fill(LOCK_QUERY, names), lock)
    if got[0][0] != 1:
        raise StoreUnavailable("another migration of these tables is under way; try again when it is over")
    try:
        applied = yield from _upgrade(names, to)
    except Exception:  # not `finally`: who was cancelled sends nothing more, and its connection is closed
        yield Statement(DIALECT.fill(UNLOCK_QUERY, names), lock)
        raise
    yield Statement(DIALECT.fill(UNLOCK_QUERY, names), lock)
    return applied


def _upgrade(names: TableNames, to: int | None) -> Plan[Statement, list[str]]:
    (server,) = (yield Statement("SELECT version()", {}))[0]
    dialect = dialect_of(server)
    found = yield Statement(dialect.fill(TABLE_EXISTS_QUERY, names), {"name": f"{names.bare}_meta"})
    if not found:
        yield Statement(dialect.fill(dialect.create_meta, names), {})
    return (yield from migrations.apply_missing(dialect, names, to))
