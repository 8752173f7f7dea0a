"""The schema. All steps run in one transaction (SQL Server can roll back a CREATE) under an application lock. So each
step happens once, also if two migrations run at the same time.
"""

from __future__ import annotations

from collections.abc import Collection

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.schema_state import find_table
from retrysafe_mssql.dialect import DIALECT

LOCK_QUERY = """
DECLARE @lock nvarchar(255) = CONCAT('retrysafe-migrate:', :lock);
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 10000;
SELECT @got
"""
_INSERT_META = "INSERT INTO {meta} (name, value) VALUES ('version', '{version}'), ('oldest_reader', '{oldest}')"


def build_script(names: TableNames) -> str:
    """The whole schema as T-SQL, to be applied by hand (`retrysafe migrate --sql`)."""
    parts = [DIALECT.fill(DIALECT.create_meta, names) + ";"]
    for migration in migrations.load_migrations(DIALECT, names):
        parts.append(f"-- {migration.name}")
        parts.extend(f"{statement};" for statement in migration.statements)
    stored = DIALECT.fill(_INSERT_META, names).replace("{version}", str(migrations.latest_version(DIALECT, names)))
    parts.append(stored.replace("{oldest}", str(DIALECT.oldest_reader)) + ";")
    return "\n\n".join(parts) + "\n"


def upgrade(names: TableNames, recreate: Collection[str] = ()) -> Plan[Statement, list[str]]:
    """Apply the missing migrations inside a transaction. The reply names the applied ones. Lost tables are refused,
    unless nothing depends on them or `recreate` has their short names."""
    got = yield Statement(DIALECT.fill(LOCK_QUERY, names), {"lock": names.bare})
    if got[0][0] < 0:
        raise StoreUnavailable("another migration of these tables is under way; try again when it is over")
    if not (yield find_table(DIALECT, names, "meta")):
        yield Statement(DIALECT.fill(DIALECT.create_meta, names), {})
    return (yield from migrations.apply_missing(DIALECT, names, recreate=recreate))
