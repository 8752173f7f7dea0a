"""Versioned schemas: the files `migrations/NNNN_name.sql` of a store, applied in order.

The caller holds a lock on the installation, so two upgrades at the same time apply each migration once. The caller also
opens a transaction, if the database can roll back a CREATE.
"""

from __future__ import annotations

import re
import secrets
from importlib.resources import files
from typing import NamedTuple

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames

_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\S+)")
_ALTERED = re.compile(r"ALTER (?:/\*.*?\*/ )?TABLE (\S+)")
_INDEX = re.compile(r"CREATE INDEX (?:IF NOT EXISTS )?(\S+) ON (\S+)")
_KEY = re.compile(r"ADD KEY (\S+)")
_COLUMN = re.compile(r"ADD COLUMN (?:IF NOT EXISTS )?(\w+)")


class Migration(NamedTuple):
    version: int
    name: str
    statements: tuple[str, ...]


def load_migrations(dialect: Dialect, names: TableNames) -> list[Migration]:
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


def latest_version(dialect: Dialect, names: TableNames) -> int:
    return load_migrations(dialect, names)[-1].version


# SQL texts -----------------------------------------------------------------------------------------


def build_script(dialect: Dialect, names: TableNames) -> str:
    """The whole schema as SQL, for users who apply it themselves (`retrysafe migrate --sql`)."""
    parts = []
    for migration in load_migrations(dialect, names):
        parts.append(f"-- {migration.name}")
        parts.extend(f"{text};" for text in forward_statements(dialect, names, migration.version))
    return "\n\n".join(parts) + "\n"


def forward_statements(dialect: Dialect, names: TableNames, version: int) -> list[str]:
    """The statements from the version before to this one."""
    meta = [dialect.fill(dialect.create_meta, names)] if version == 1 else []
    return [*meta, *_find_migration(dialect, names, version).statements, _put_version(dialect, names, version)]


def backward_statements(dialect: Dialect, names: TableNames, version: int) -> list[str]:
    """The statements from this version to the one before. They drop what it created, with the data in it."""
    dropped = drop_index_statements(dialect, names, version)
    dropped += [f"ALTER TABLE {table} DROP COLUMN {column}" for table, column in added_columns(dialect, names, version)]
    dropped += [f"DROP TABLE IF EXISTS {table}" for table in reversed(created_tables(dialect, names, version))]
    return [*dropped, _put_version(dialect, names, version - 1)] if version > 1 else dropped


def drop_index_statements(dialect: Dialect, names: TableNames, version: int) -> list[str]:
    """Drop the indexes that one version created on tables of earlier ones. Their columns are dropped after them."""
    made = created_tables(dialect, names, version)
    dropped = []
    for text in _find_migration(dialect, names, version).statements:
        altered, index = _ALTERED.match(text), _INDEX.match(text)
        if altered:
            dropped += [f"ALTER TABLE {altered.group(1)} DROP KEY {key}" for key in _KEY.findall(text)]
        elif index and index.group(2) not in made:
            schema = index.group(2).rpartition(".")[0]
            dropped.append(f"DROP INDEX IF EXISTS {schema + '.' if schema else ''}{index.group(1)}")
    return dropped


def added_columns(dialect: Dialect, names: TableNames, version: int) -> list[tuple[str, str]]:
    """The columns that one version adds to tables of earlier ones: the quoted table and the column."""
    found = []
    for text in _find_migration(dialect, names, version).statements:
        altered = _ALTERED.match(text)
        if altered:
            found += [(altered.group(1), column) for column in _COLUMN.findall(text)]
    return found


def created_tables(dialect: Dialect, names: TableNames, version: int) -> list[str]:
    """The quoted tables that one version creates."""
    made = [dialect.fill(dialect.create_meta, names)] if version == 1 else []
    found = (_TABLE.match(text) for text in (*made, *_find_migration(dialect, names, version).statements))
    return [match.group(1) for match in found if match]


def _find_migration(dialect: Dialect, names: TableNames, version: int) -> Migration:
    return next(migration for migration in load_migrations(dialect, names) if migration.version == version)


def _put_version(dialect: Dialect, names: TableNames, version: int) -> str:
    return dialect.fill(dialect.put_version, names).replace("{version}", str(version))


# Upgrade ------------------------------------------------------------------------------------------


def upgrade(dialect: Dialect, names: TableNames, to: int | None = None) -> Plan[Statement, list[str]]:
    """Apply the missing migrations, up to version `to` if given, and return their names."""
    yield Statement(dialect.fill(dialect.create_meta, names), {})
    return (yield from apply_missing(dialect, names, to))


def apply_missing(dialect: Dialect, names: TableNames, to: int | None = None) -> Plan[Statement, list[str]]:
    """Like `upgrade`, when the meta table is known to exist."""
    at = yield Statement(dialect.fill("SELECT value FROM {meta} WHERE name = 'version'", names), {})
    version = int(at[0][0]) if at else 0
    applied = []
    for migration in load_migrations(dialect, names):
        if migration.version <= version or (to is not None and migration.version > to):
            continue
        # The version is stored after each migration: if a CREATE commits by itself, the next upgrade continues there.
        for text in (*migration.statements, _put_version(dialect, names, migration.version)):
            yield Statement(text, {})
        applied.append(migration.name)
    # Drawn once: the name by which a user's connection is recognised as one to this database.
    yield Statement(dialect.load(names)["install_put"], {"value": secrets.token_hex(16)})
    return applied
