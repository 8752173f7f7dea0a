"""Versioned schemas: the files `migrations/NNNN_name.sql` of a store, applied in order.

The caller holds a lock on the installation, so two upgrades at the same time apply each migration once. The caller also
opens a transaction, if the database can roll back a CREATE.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Collection
from importlib.resources import files
from typing import NamedTuple

from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.schema_state import (
    LOSSES,
    REBUILT_UNASKED,
    SchemaState,
    read_state,
    refuse_lost_columns,
    refuse_lost_tables,
    refuse_unmarked,
    refuse_unreadable,
)

_TABLE = re.compile(r"CREATE TABLE (?:IF NOT EXISTS )?(\S+)")
_ALTERED = re.compile(r"ALTER (?:/\*.*?\*/ )?TABLE (\S+)")
_INDEX = re.compile(r"CREATE INDEX (?:IF NOT EXISTS )?(\S+) ON (\S+)")
_KEY = re.compile(r"ADD KEY (\S+)")
_COLUMN = re.compile(r"ADD COLUMN (?:IF NOT EXISTS )?(\w+)")
_CREATED_COLUMN = re.compile(r"^ {4}[`\[]?([a-z_]+)[`\]]? ", re.MULTILINE)
"""A column in a CREATE TABLE: each has a line of its own, and constraints are in capitals."""


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
    return [
        *meta,
        *_find_migration(dialect, names, version).statements,
        _put_version(dialect, names, version),
        _put_oldest_reader(dialect, names),
    ]


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


def _put_oldest_reader(dialect: Dialect, names: TableNames) -> str:
    text = dialect.put_version.replace("'version'", "'oldest_reader'")
    return dialect.fill(text, names).replace("{version}", str(dialect.oldest_reader))


# Upgrade ------------------------------------------------------------------------------------------


def upgrade(
    dialect: Dialect, names: TableNames, to: int | None = None, recreate: Collection[str] = ()
) -> Plan[Statement, list[str]]:
    """Apply the missing migrations, up to version `to` if given, and return their names. Lost tables are refused,
    unless nothing depends on them or `recreate` has their short names."""
    yield Statement(dialect.fill(dialect.create_meta, names), {})
    return (yield from apply_missing(dialect, names, to, recreate))


def apply_missing(
    dialect: Dialect, names: TableNames, to: int | None = None, recreate: Collection[str] = ()
) -> Plan[Statement, list[str]]:
    """Like `upgrade`, when the meta table is known to exist."""
    state = yield from read_state(dialect, names)
    known = load_migrations(dialect, names)
    refuse_unreadable(state.version, state.oldest_reader, known[-1].version)
    refuse_unmarked(state.version, state.oldest_reader, known[-1].version)
    refuse_lost_columns(names, find_lost_columns(dialect, names, state))
    applied = yield from _recreate_tables(dialect, names, state, recreate)
    for migration in known:
        if migration.version <= state.version or (to is not None and migration.version > to):
            continue
        # The version is stored after each migration: if a CREATE commits by itself, the next upgrade continues there.
        for text in (*migration.statements, _put_version(dialect, names, migration.version)):
            yield Statement(text, {})
        applied.append(migration.name)
    if state.version <= known[-1].version:  # a later release has stored its own
        yield Statement(_put_oldest_reader(dialect, names), {})
    # Drawn once: the name by which a user's connection is recognised as one to this database.
    yield Statement(dialect.load(names)["install_put"], {"value": secrets.token_hex(16)})
    return applied


# Lost tables and columns ----------------------------------------------------------------------------


def find_lost_tables(dialect: Dialect, names: TableNames, state: SchemaState) -> dict[str, int]:
    """The short names of the tables that the applied migrations made and that are missing, each with the version that
    made it. `meta` counts as lost if there are tables and no version."""
    if not dialect.find_table:
        return {}
    short = {dialect.fill(f"{{{table}}}", names): table for table in LOSSES}
    made = {
        short[table]: migration.version
        for migration in load_migrations(dialect, names)
        for table in created_tables(dialect, names, migration.version)
    }
    if not state.version:
        return _find_lost_without_version(dialect, names, state.existing - {"meta"})
    return {
        table: version
        for table, version in sorted(made.items())
        if version <= state.version and table not in state.existing
    }


def _find_lost_without_version(dialect: Dialect, names: TableNames, existing: frozenset[str]) -> dict[str, int]:
    """No version is stored. If there are tables, it was lost, unless each CREATE commits by itself: then the first
    migration may have been interrupted, and can be repeated. The keys are the first table, so the others show that
    there were keys."""
    repeatable = "IF NOT EXISTS" in _find_migration(dialect, names, 1).statements[0]
    lost = {} if repeatable or not existing else {"meta": 0}
    return lost if "keys" in existing or not existing else {**lost, "keys": 1}


def find_lost_columns(dialect: Dialect, names: TableNames, state: SchemaState) -> dict[str, list[str]]:
    """The columns that the applied migrations made and that are missing, by the short name of their table."""
    found = {}
    for table, columns in state.columns.items():
        lost = made_columns(dialect, names, table, state.version) - columns
        if lost:
            found[table] = sorted(lost)
    return found


def made_columns(dialect: Dialect, names: TableNames, table: str, version: int) -> set[str]:
    """The columns that the migrations up to this version make in a table. No migration makes the meta table."""
    found: set[str] = set()
    for text in table_statements(dialect, names, table, version):
        if _TABLE.match(text):
            found |= set(_CREATED_COLUMN.findall(text))
        elif _ALTERED.match(text):
            found |= set(_COLUMN.findall(text))
    return found


def table_statements(dialect: Dialect, names: TableNames, table: str, version: int) -> list[str]:
    """The statements of all migrations up to a version that make one table, its later columns and its indexes."""
    quoted = dialect.fill(f"{{{table}}}", names)
    texts = [
        text
        for migration in load_migrations(dialect, names)
        if migration.version <= version
        for text in migration.statements
    ]
    return [text for text in texts if _find_target(text) == quoted]


def _find_target(text: str) -> str:
    """The table that a statement creates, alters or indexes; empty if it is none of these."""
    index = _INDEX.match(text)
    if index:
        return index.group(2)
    match = _TABLE.match(text) or _ALTERED.match(text)
    return match.group(1) if match else ""


def _recreate_tables(
    dialect: Dialect, names: TableNames, state: SchemaState, recreate: Collection[str]
) -> Plan[Statement, list[str]]:
    """Make lost tables again, empty. Returns a sentence for each."""
    lost = find_lost_tables(dialect, names, state)
    if state.version > latest_version(dialect, names):
        refuse_lost_tables(names, list(lost), later=True)
    refuse_lost_tables(names, [table for table in lost if table not in {*REBUILT_UNASKED, *recreate}], later=False)
    if lost:
        # Where a CREATE commits by itself, an interruption leaves this lower version: the next upgrade goes on from it.
        yield Statement(_put_version(dialect, names, min(lost.values()) - 1), {})
        for table in lost:
            for text in table_statements(dialect, names, table, state.version):
                yield Statement(text, {})
        yield Statement(_put_version(dialect, names, state.version), {})
    return [f"recreated {names.bare}_{table}: it was missing; {LOSSES[table]}" for table in lost]
