"""The schema. All steps run in one transaction (SQL Server can roll back a CREATE) under an application lock. So each
step happens once, also if two migrations run at the same time.
"""

from __future__ import annotations

import secrets

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe_mssql.dialect import COLLATION, DIALECT, bracket_names

_CREATE_META = (
    "CREATE TABLE {meta} (name nvarchar(64) COLLATE {collation} NOT NULL PRIMARY KEY, "
    "value nvarchar(max) COLLATE {collation} NOT NULL)"
)
_UPDATE_VERSION = "UPDATE {meta} SET value = '{version}' WHERE name = 'version'"
_INSERT_VERSION = (
    "INSERT INTO {meta} (name, value) SELECT 'version', '{version}' "
    "WHERE NOT EXISTS (SELECT 1 FROM {meta} WHERE name = 'version')"
)

LOCK_QUERY = """
DECLARE @lock nvarchar(255) = CONCAT('retrysafe-migrate:', :lock);
DECLARE @got int;
EXEC @got = sp_getapplock @Resource = @lock, @LockMode = 'Exclusive', @LockOwner = 'Transaction', @LockTimeout = 10000;
SELECT @got
"""
TABLE_EXISTS_QUERY = "SELECT 1 WHERE OBJECT_ID(:name, 'U') IS NOT NULL"


def fill_collation(statement: str) -> str:
    return statement.replace("{collation}", COLLATION)


def build_script(names: TableNames) -> str:
    """The whole schema as T-SQL, to be applied by hand (`retrysafe migrate --sql`)."""
    meta = bracket_names(names).meta
    parts = [_CREATE_META.format(meta=meta, collation=COLLATION) + ";"]
    for migration in migrations.load_migrations(DIALECT, names):
        parts.append(f"-- {migration.name}")
        parts.extend(f"{fill_collation(statement)};" for statement in migration.statements)
    parts.append(_INSERT_VERSION.format(meta=meta, version=migrations.latest_version(DIALECT, names)) + ";")
    return "\n\n".join(parts) + "\n"


def upgrade(names: TableNames) -> Plan[Statement, list[str]]:
    """Apply the missing migrations inside a transaction. The reply names the applied ones."""
    got = yield Statement(DIALECT.fill(LOCK_QUERY, names), {"lock": names.bare})
    if got[0][0] < 0:
        raise StoreUnavailable("another migration of these tables is under way; try again when it is over")
    meta = bracket_names(names).meta
    found = yield Statement(DIALECT.fill(TABLE_EXISTS_QUERY, names), {"name": meta})
    if not found:
        yield Statement(_CREATE_META.format(meta=meta, collation=COLLATION), {})
    at = yield Statement(f"SELECT value FROM {meta} WHERE name = 'version'", {})
    version = int(at[0][0]) if at else 0
    applied = []
    for migration in migrations.load_migrations(DIALECT, names):
        if migration.version <= version:
            continue
        for statement in migration.statements:
            yield Statement(fill_collation(statement), {})
        applied.append(migration.name)
        version = migration.version
    yield Statement(_UPDATE_VERSION.format(meta=meta, version=version), {})
    yield Statement(_INSERT_VERSION.format(meta=meta, version=version), {})
    # Created once. It shows whether a user's connection is connected to this same database.
    named = yield Statement(DIALECT.load(names)["install"], {})
    if not named:
        yield Statement(DIALECT.load(names)["install_put"], {"value": secrets.token_hex(16)})
    return applied
