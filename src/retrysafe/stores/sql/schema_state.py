"""The state of a schema: which version it has, which code may work on it, and which of its tables and columns
are missing.

Each migration stores its version, and beside it `oldest_reader`: the schema version of the release before. Code that
knows at least that version may work beside the newer schema (rule 17). Older code is refused.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from retrysafe.errors import SchemaRefused
from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames

UPGRADE_COMMAND = "pip install -U retrysafe"

LOSSES = {
    "keys": "all keys are forgotten: a request, job or webhook that is sent again runs again",
    "receipts": "whether a local step of an unfinished run has committed is forgotten: its effect may happen twice",
    "outbox": "the jobs that were staged in it are gone, and its dead letters too",
    "meta": "which version the other tables have is forgotten",
}
"""The tables, by their short names, and what is lost with each."""

COLUMN_FIX = "restore the table from a backup, or add the column as `retrysafe migrate URL --sql` prints it"

REBUILT_UNASKED = frozenset({"outbox"})
"""A new and empty one doubles no effect."""


@runtime_checkable
class RecreatesTables(Protocol):
    """A store that can make lost tables again."""

    recreates_tables: bool

    def migrate(self, recreate: Collection[str] = ()) -> list[str]: ...


@runtime_checkable
class LooksForTables(Protocol):
    """A backend whose store makes its own file and tables at first use. It can look for them without making them."""

    def names(self, url: str) -> TableNames: ...
    def has_tables(self, url: str) -> bool: ...


class SchemaState(NamedTuple):
    version: int
    """0 if nothing is stored."""
    oldest_reader: int | None
    existing: frozenset[str]
    """The short names of the tables that exist."""
    columns: Mapping[str, frozenset[str]] = {}  # never changed
    """The columns of these tables, by the short name. A table is not in it if nobody could look at its columns."""


def read_state(dialect: Dialect, names: TableNames) -> Plan[Statement, SchemaState]:
    """Read the state; missing tables are no error. A dialect that cannot look counts every table as existing."""
    existing = []
    for table in LOSSES:
        if not dialect.find_table or (yield find_table(dialect, names, table)):
            existing.append(table)
    found = (yield select_versions(dialect, names)) if "meta" in existing else []
    version, oldest_reader = read_versions(found)
    columns = {}
    for table in existing if dialect.find_columns else ():
        rows = yield _ask_about_table(dialect, dialect.find_columns, names, table)
        columns[table] = frozenset(str(name) for (name,) in rows)
    # A table without columns is one whose columns this user may not see.
    seen = {table: found for table, found in columns.items() if found}
    return SchemaState(version, oldest_reader, frozenset(existing), seen)


def find_table(dialect: Dialect, names: TableNames, table: str) -> Statement:
    """A statement that has a row if the table exists."""
    return _ask_about_table(dialect, dialect.find_table, names, table)


def _ask_about_table(dialect: Dialect, query: str, names: TableNames, table: str) -> Statement:
    text = query.replace("{table}", f"{{{table}}}").replace("{bare}", f"{{prefix}}_{table}")
    return Statement(dialect.fill(text, names), {}, writes=False)


def select_versions(dialect: Dialect, names: TableNames) -> Statement:
    text = "SELECT name, value FROM {meta} WHERE name IN ('version', 'oldest_reader')"
    return Statement(dialect.fill(text, names), {}, writes=False)


def read_versions(rows: list[tuple[str, str]]) -> tuple[int, int | None]:
    """The version, and the oldest that may work on it."""
    found = {name: int(value) for name, value in rows}
    return found.get("version", 0), found.get("oldest_reader")


def refuse_unreadable(version: int, oldest_reader: int | None, known: int) -> None:
    """Refuse a schema that is more than one release ahead."""
    if oldest_reader is not None and oldest_reader > known:
        raise SchemaRefused(
            f"the schema has version {version}, and this release knows version {known}: it is more than one release "
            f"ahead, and only code that knows version {oldest_reader} may work on it",
            f"upgrade retrysafe here: {UPGRADE_COMMAND}",
        )


def refuse_unmarked(version: int, oldest_reader: int | None, known: int) -> None:
    """Refuse to migrate a later schema that does not say which code may work on it."""
    if version > known and oldest_reader is None:
        raise SchemaRefused(
            f"the schema has version {version}, and this release knows version {known}: nothing says which release "
            "made it",
            f"migrate with that release, or upgrade retrysafe here: {UPGRADE_COMMAND}",
        )


def refuse_lost_tables(names: TableNames, lost: list[str], later: bool) -> None:
    """Refuse to go on without tables that must not be made again unasked. `later`: the schema is a later release's."""
    if not lost:
        return
    shown = ", ".join(f"{names.bare}_{table}" for table in lost)
    losses = "; ".join(LOSSES[table] for table in lost)
    if later:
        todo = "restore from a backup, or run retrysafe migrate with the release that made this schema"
    elif "meta" in lost:
        todo = "restore it from a backup, or store the version of the other tables in it (docs/howto/upgrading.md)"
    else:
        words = " ".join(f"--recreate {table}" for table in lost)
        todo = f"restore from a backup, or accept the loss: retrysafe migrate URL {words}"
    raise SchemaRefused(f"missing: {shown}. If this is really lost, {losses}. Nothing was made again", todo)


def refuse_lost_columns(names: TableNames, lost: Mapping[str, Collection[str]]) -> None:
    """Refuse a table without a column that its version has: no migration drops one, so somebody did."""
    if lost:
        shown = ", ".join(f"{names.bare}_{table}.{column}" for table in lost for column in sorted(lost[table]))
        raise SchemaRefused(f"missing: the column {shown}. What was in it is lost. Nothing was changed", COLUMN_FIX)
