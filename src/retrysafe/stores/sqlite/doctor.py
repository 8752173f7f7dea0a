"""The doctor of SQLite: reads a file's file system and settings and says what they mean for durability."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.filesystems import check_filesystem, read_filesystem_kind
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.schema_doctor import diagnose_schema

SYNCHRONOUS_LEVELS = {0: "OFF", 1: "NORMAL", 2: "FULL", 3: "EXTRA"}

Settings = Mapping[str, Any]


def diagnose(path: str, connect: Any, dialect: Dialect, names: TableNames) -> Diagnosis:
    """`connect` opens the file as the store does, because the settings of the store's own connections count."""
    try:
        connection = connect()
        try:
            journal = connection.execute("PRAGMA journal_mode").fetchone()[0]
            synchronous = connection.execute("PRAGMA synchronous").fetchone()[0]
            schema = diagnose_schema(
                dialect, names, lambda sent: connection.execute(sent.sql).fetchall(), migrates_itself=True
            )
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise StoreUnavailable(f"{path} cannot be opened: {error}") from error
    settings = {"journal_mode": journal, "synchronous": synchronous, "filesystem": read_filesystem_kind(Path(path))}
    return Diagnosis(f"SQLite {sqlite3.sqlite_version}", (*check_settings(settings), *schema))


def check_settings(settings: Settings) -> Iterator[Finding]:
    mode = str(settings["journal_mode"]).lower()
    if mode in ("memory", "off"):
        fix = "PRAGMA journal_mode = wal;"
        yield bad("journal_mode", mode, "best-effort", "a crash in mid-write can destroy the file", fix)
    else:
        yield good("journal_mode", mode, "a crash leaves either the whole commit or nothing of it")
    level = SYNCHRONOUS_LEVELS.get(settings["synchronous"], str(settings["synchronous"]))
    if level in ("FULL", "EXTRA"):
        yield good("synchronous", level, "a claim is on disk before it is acknowledged")
    else:
        fix = "nothing to set: the store asks for FULL; a wrapper around sqlite3.connect takes it back"
        yield bad("synchronous", level, "best-effort", "a power cut loses the last commits", fix)
    yield check_filesystem(settings["filesystem"], "two callers may be granted one key")
