"""The schema, applied step by step. A CREATE commits by itself here, so each migration can be repeated (IF NOT EXISTS)
and is written down when it is done: who is interrupted goes on where it stopped. The caller holds a named lock.
"""

from __future__ import annotations

import secrets

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan
from retrysafe.stores.mysql.dialect import DIALECT, quoted
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import Names

_META = (
    "CREATE TABLE IF NOT EXISTS {meta} (name varchar(64) NOT NULL PRIMARY KEY, value longtext NOT NULL) "
    "ENGINE = InnoDB DEFAULT CHARACTER SET utf8mb4 COLLATE {collation}"
)
_PUT = "INSERT INTO {meta} (name, value) VALUES ('version', '{version}') ON DUPLICATE KEY UPDATE value = '{version}'"

LOCK = "SELECT GET_LOCK(CONCAT(:lock, CRC32(DATABASE())), 10)"
UNLOCK = "SELECT RELEASE_LOCK(CONCAT(:lock, CRC32(DATABASE())))"


MARIADB, MYSQL = "utf8mb4_nopad_bin", "utf8mb4_0900_bin"
"""What each of the two calls the collation that compares code by code, trailing spaces included."""


def script(names: Names, collation: str) -> str:
    """The whole schema as SQL, for those who apply it themselves (`retrysafe migrate --sql`)."""
    meta = quoted(names).meta
    parts = [_META.format(meta=meta, collation=collation) + ";"]
    for migration in migrations.load(DIALECT, names):
        parts.append(f"-- {migration.name}")
        parts.extend(f"{_collated(statement, collation)};" for statement in migration.statements)
    parts.append(_PUT.format(meta=meta, version=migrations.latest(DIALECT, names)) + ";")
    return "\n\n".join(parts) + "\n"


def upgrade(names: Names) -> Plan[Statement, list[str]]:
    """Apply what is missing, one at a time over all processes; the reply names what was applied."""
    lock = {"lock": f"rs-migrate:{names.bare[:30]}:"}
    got = yield Statement(DIALECT.fill(LOCK, names), lock)
    if got[0][0] != 1:
        raise StoreUnavailable("another migration of these tables is under way; try again when it is over")
    try:
        applied = yield from _upgrade(names)
    except Exception:  # not `finally`: who was cancelled sends nothing more, and its connection is closed
        yield Statement(DIALECT.fill(UNLOCK, names), lock)
        raise
    yield Statement(DIALECT.fill(UNLOCK, names), lock)
    return applied


def _upgrade(names: Names) -> Plan[Statement, list[str]]:
    (version_and_name,) = (yield Statement("SELECT version()", {}))[0]
    collation = MARIADB if "mariadb" in version_and_name.lower() else MYSQL
    meta = quoted(names).meta
    found = yield Statement(_THERE, {"name": f"{names.bare}_meta"})
    if not found:
        yield Statement(_META.format(meta=meta, collation=collation), {})
    at = yield Statement(f"SELECT value FROM {meta} WHERE name = 'version'", {})
    version = int(at[0][0]) if at else 0
    applied = []
    for migration in migrations.load(DIALECT, names):
        if migration.version <= version:
            continue
        for statement in migration.statements:
            yield Statement(_collated(statement, collation), {})
        yield Statement(_PUT.format(meta=meta, version=migration.version), {})
        applied.append(migration.name)
    # Minted once: how a user's connection is recognised as being to this very database.
    put = DIALECT.load(names)["install_put"]
    yield Statement(put, {"value": secrets.token_hex(16)})
    return applied


def _collated(statement: str, collation: str) -> str:
    return statement.replace("{collation}", collation)


_THERE = "SELECT 1 FROM information_schema.tables WHERE table_schema = DATABASE() AND table_name = %(name)s"
