"""Schemas, versioned. `migrations/NNNN_name.sql` of a store, applied in order inside one transaction; the caller
holds a lock on the installation, so running it twice, or twice at once, does each step once.
"""

from __future__ import annotations

import secrets
from importlib.resources import files
from typing import NamedTuple

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import Names


class Migration(NamedTuple):
    version: int
    name: str
    statements: tuple[str, ...]


def load(dialect: Dialect, names: Names) -> list[Migration]:
    """All migrations of a dialect, oldest first."""
    folder = files(dialect.package).joinpath("migrations")
    found = []
    for item in sorted(folder.iterdir(), key=lambda each: each.name):
        if item.name.endswith(".sql"):
            name = item.name.removesuffix(".sql")
            text = dialect.fill(item.read_text(), names)
            statements = tuple(part.strip() for part in text.split(";") if part.strip())
            found.append(Migration(int(name.partition("_")[0]), name, statements))
    return found


def script(dialect: Dialect, names: Names) -> str:
    """The whole schema as SQL, for those who apply it themselves (`retrysafe migrate --sql`)."""
    parts = [_CREATE_META.format(meta=names.meta) + ";"]
    for migration in load(dialect, names):
        parts.append(f"-- {migration.name}")
        parts.extend(f"{statement};" for statement in migration.statements)
    latest = load(dialect, names)[-1].version
    parts.append(
        f"INSERT INTO {names.meta} (name, value) VALUES ('version', '{latest}') ON CONFLICT (name) DO NOTHING;"
    )
    return "\n\n".join(parts) + "\n"


_CREATE_META = "CREATE TABLE IF NOT EXISTS {meta} (name text NOT NULL PRIMARY KEY, value text NOT NULL)"


def upgrade(dialect: Dialect, names: Names) -> Plan[Statement, list[str]]:
    """Apply what is missing; the reply names what was applied."""
    parameter = dialect.parameter.format
    yield Statement(_CREATE_META.format(meta=names.meta), {})
    at = yield Statement(f"SELECT value FROM {names.meta} WHERE name = 'version'", {})
    version = int(at[0][0]) if at else 0
    applied = []
    for migration in load(dialect, names):
        if migration.version <= version:
            continue
        for statement in migration.statements:
            yield Statement(statement, {})
        applied.append(migration.name)
        version = migration.version
    put = (
        f"INSERT INTO {names.meta} (name, value) VALUES ({parameter('name')}, {parameter('value')}) "
        "ON CONFLICT (name) DO "
    )
    yield Statement(put + "UPDATE SET value = excluded.value", {"name": "version", "value": str(version)})
    # Minted once: how a user's connection is recognised as being to this very database.
    yield Statement(put + "NOTHING", {"name": "install", "value": secrets.token_hex(16)})
    return applied


def latest(dialect: Dialect, names: Names) -> int:
    return load(dialect, names)[-1].version
