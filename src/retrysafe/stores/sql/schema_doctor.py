"""What the doctor of an SQL store says about its schema: tables and columns that are missing, and a version that
does not fit."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

from retrysafe.stores.base import follow
from retrysafe.stores.diagnosis import Finding, bad, good
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.migrations import find_lost_columns, latest_version
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.schema_state import (
    COLUMN_FIX,
    LOSSES,
    REBUILT_UNASKED,
    UPGRADE_COMMAND,
    SchemaState,
    read_state,
)

SCHEMA_SETTING = "schema"
"""What the finding about the version of the schema is called."""


def diagnose_schema(
    dialect: Dialect, names: TableNames, send: Callable[[Statement], list[Any]], *, migrates_itself: bool = False
) -> list[Finding]:
    """Read the schema with `send`, and check it."""
    state = follow(read_state(dialect, names), send)
    found = list(check_schema(state, names, latest_version(dialect, names), migrates_itself=migrates_itself))
    return [*check_columns(find_lost_columns(dialect, names, state), names), *found]


def check_schema(
    state: SchemaState, names: TableNames, known: int, *, migrates_itself: bool = False
) -> Iterator[Finding]:
    """The doctor's findings. Nothing if no table was made yet. `migrates_itself`: opening the store upgrades it."""
    if state.existing:
        yield from _check_tables(state, names)
    if state.version:
        yield from _check_version(state, known, migrates_itself)


def _check_tables(state: SchemaState, names: TableNames) -> Iterator[Finding]:
    for table, loss in LOSSES.items():
        if table not in state.existing:
            fix = "retrysafe migrate URL"
            if table not in REBUILT_UNASKED:
                fix = f"restore it from a backup; {fix} says how to go on without"
            yield bad(f"{names.bare}_{table}", "missing", "best-effort", loss, fix, invariant="I1")


def check_columns(lost: Mapping[str, Collection[str]], names: TableNames) -> Iterator[Finding]:
    """A finding for each column that is missing: no request that needs it is answered."""
    why = "no migration drops it: somebody did, and what was in it is lost"
    for table, columns in lost.items():
        for column in columns:
            setting = f"{names.bare}_{table}.{column}"
            yield bad(setting, "missing", "best-effort", why, COLUMN_FIX, invariant="I1")


def _check_version(state: SchemaState, known: int, migrates_itself: bool) -> Iterator[Finding]:
    value = f"version {state.version}, known: {known}"
    if state.oldest_reader is not None and state.oldest_reader > known:
        why = f"more than one release ahead: only code that knows version {state.oldest_reader} may work on it"
        yield bad(SCHEMA_SETTING, value, "best-effort", why, UPGRADE_COMMAND, invariant="I1")
    elif state.version > known and state.oldest_reader is None:
        why = "nothing says which release made it, and whether this one may work on it"
        yield bad(SCHEMA_SETTING, value, "exactly-once-capable", why, UPGRADE_COMMAND, invariant="I1")
    elif state.version > known:
        yield good(
            SCHEMA_SETTING, value, "the next release's: this one works beside it, upgrade it soon", invariant="I1"
        )
    elif state.version < known and not migrates_itself:
        why = "this release needs what later versions add"
        yield bad(SCHEMA_SETTING, value, "exactly-once-capable", why, "retrysafe migrate URL", invariant="I1")
