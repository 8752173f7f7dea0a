"""The doctor of DuckDB: reads a file's file system and settings and says what they mean for durability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import duckdb

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.duckdb.dialect import DIALECT, DuckdbLocation
from retrysafe.stores.duckdb.errors import open_error
from retrysafe.stores.filesystems import check_filesystem, read_filesystem_kind
from retrysafe.stores.sql.schema_doctor import diagnose_schema

OLDEST_VERSION = (2, 0)
"""The oldest version that the test suite runs."""

Settings = Mapping[str, Any]


def diagnose(at: DuckdbLocation) -> Diagnosis:
    """In the process that has the file open, this reads the settings of that database. Any other process is refused."""
    if not Path(at.path).exists():
        raise StoreUnavailable(f"{at.path} is not there yet; make it: retrysafe migrate duckdb:///{at.path}")
    try:
        connection = duckdb.connect(at.path)
    except duckdb.Error as error:
        raise open_error(error, at.path) from error
    try:
        found = read_settings(connection, f"{at.names.bare}_keys")
        schema = diagnose_schema(
            DIALECT, at.names, lambda sent: connection.execute(sent.sql).fetchall(), migrates_itself=True
        )
    except duckdb.Error as error:
        raise StoreUnavailable(f"{at.path} cannot be read: {error}") from error
    finally:
        connection.close()
    return Diagnosis(
        f"DuckDB {found['version']}",
        (*check_settings({**found, "filesystem": read_filesystem_kind(Path(at.path))}), *schema),
    )


def read_settings(connection: duckdb.DuckDBPyConnection, table: str) -> Settings:
    settings = dict(
        connection.execute(
            "SELECT name, value FROM duckdb_settings() WHERE name IN ('fsync_mode', 'checkpoint_threshold')"
        ).fetchall()
    )
    count = connection.execute("SELECT count(*) FROM duckdb_tables() WHERE table_name = ?", [table]).fetchone()
    return {**settings, "version": duckdb.__version__, "table": bool(count and count[0])}


def check_settings(settings: Settings) -> Iterator[Finding]:
    yield _check_version(str(settings["version"]))
    yield good("processes", "one", "a second process is refused, so no other process can race", invariant="I1")
    yield _check_fsync(settings.get("fsync_mode"))
    threshold = settings.get("checkpoint_threshold", "?")
    yield good("checkpoint_threshold", threshold, "the log is replayed when the file is opened after a crash")
    if not settings["table"]:
        why, fix = "nothing can be claimed yet", "retrysafe migrate URL"
        yield bad("table", "missing", "best-effort", why, fix, invariant="I1")
    yield check_filesystem(settings["filesystem"], "two processes may open the file")


def _check_version(version: str) -> Finding:
    parts = tuple(int(part) for part in version.split(".")[:2] if part.isdigit())
    if parts >= OLDEST_VERSION:
        return good("version", version, "the suite runs 2.0", invariant="I1")
    why = "the test suite does not run this version: it runs 2.0"
    return bad("version", version, "best-effort", why, "pip install -U duckdb", invariant="I1")


def _check_fsync(mode: str | None) -> Finding:
    if mode is None:
        return good("fsync_mode", "not a setting of this version", "every commit is flushed before it is acknowledged")
    if str(mode).upper() != "NONE":
        return good("fsync_mode", mode, "a commit is on disk before it is acknowledged")
    why = "a power cut loses the last commits, or the file"
    return bad("fsync_mode", mode, "best-effort", why, "SET GLOBAL fsync_mode = 'STANDARD';")
