"""The doctor of SQL Server: reads a database's settings and says what they mean for durability."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pymssql

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.schema_doctor import diagnose_schema
from retrysafe_mssql.dialect import COLLATION, DIALECT, MssqlLocation, bracket_names
from retrysafe_mssql.pool import connect, quit_quietly
from retrysafe_mssql.protocol import read_last_rows

OLDEST_VERSION = 13
"""SQL Server 2016, the first with DATEDIFF_BIG, OPENJSON and CURRENT_TRANSACTION_ID."""

SETTINGS_QUERY = """
SELECT
    CAST(SERVERPROPERTY('ProductVersion') AS nvarchar(64)) AS version,
    CAST(SERVERPROPERTY('Edition') AS nvarchar(128)) AS edition,
    d.compatibility_level, d.is_read_committed_snapshot_on AS rcsi, d.snapshot_isolation_state AS snapshot,
    d.delayed_durability_desc AS delayed_durability, d.page_verify_option_desc AS page_verify,
    d.recovery_model_desc AS recovery_model, d.is_read_only AS read_only
FROM sys.databases AS d WHERE d.database_id = DB_ID()
"""

TABLE_QUERY = "SELECT collation_name FROM sys.columns WHERE object_id = OBJECT_ID(%(table)s) AND name = 'scope'"

REPLICAS_QUERY = """
SELECT r.availability_mode_desc FROM sys.availability_replicas AS r
JOIN sys.databases AS d ON d.group_database_id IN (
    SELECT s.group_database_id FROM sys.dm_hadr_database_replica_states AS s WHERE s.replica_id = r.replica_id
)
WHERE d.database_id = DB_ID() AND r.replica_server_name <> @@SERVERNAME
"""
"""Needs VIEW SERVER STATE. Without that permission the finding says that nothing is known of replicas."""

Settings = Mapping[str, Any]


def diagnose(at: MssqlLocation) -> Diagnosis:
    connection = connect(at.connect)
    try:
        with connection.cursor(as_dict=True) as cursor:
            found = read_settings(cursor, bracket_names(at.names).keys)
        with connection.cursor() as cursor:
            schema = read_schema(cursor, at.names)
    except pymssql.Error as error:
        raise StoreUnavailable(f"the server cannot be asked: {error}") from error
    finally:
        quit_quietly(connection)
    return Diagnosis(f"SQL Server {found['version']}", (*check_settings(found), *schema))


def read_schema(cursor: Any, names: TableNames) -> list[Finding]:
    """Which tables are missing, and whether the version of the schema fits."""

    def send(statement: Statement) -> list[Any]:
        cursor.execute(statement.sql)
        return list(read_last_rows(cursor))

    return diagnose_schema(DIALECT, names, send)


def read_settings(cursor: Any, table: str) -> Settings:
    cursor.execute(SETTINGS_QUERY)
    found = dict(cursor.fetchone())
    cursor.execute(TABLE_QUERY, {"table": table})
    there = cursor.fetchone()
    return {**found, "collation": there["collation_name"] if there else None, "replicas": _read_replicas(cursor)}


def _read_replicas(cursor: Any) -> list[str] | None:
    try:
        cursor.execute(REPLICAS_QUERY)
        return [row["availability_mode_desc"] for row in cursor.fetchall()]
    except pymssql.Error:
        return None


def check_settings(settings: Settings) -> Iterator[Finding]:
    yield _check_version(str(settings["version"]))
    yield _check_compatibility(int(settings["compatibility_level"]))
    yield _check_durability(settings["delayed_durability"])
    yield _check_page_verify(settings["page_verify"])
    yield _check_role(bool(settings["read_only"]))
    yield _check_replicas(settings["replicas"])
    yield _check_isolation(bool(settings["rcsi"]))
    yield _check_table(settings["collation"])


def _check_version(version: str) -> Finding:
    major = int(version.partition(".")[0])
    if major >= OLDEST_VERSION:
        return good("version", version, "2016 and later understand the statements", invariant="I1")
    why = "before 2016 the statements are not understood"
    return bad("version", version, "best-effort", why, "upgrade the server", invariant="I1")


def _check_compatibility(level: int) -> Finding:
    if level >= OLDEST_VERSION * 10:
        return good("compatibility_level", level, "OPENJSON is there", invariant="I19")
    why = "jobs cannot be marked as published: OPENJSON is not there"
    fix = "ALTER DATABASE CURRENT SET COMPATIBILITY_LEVEL = 130;"
    return bad("compatibility_level", level, "best-effort", why, fix, invariant="I19")


def _check_durability(value: str) -> Finding:
    if value == "DISABLED":
        return good("delayed_durability", value, "a commit is on disk before it is acknowledged")
    fix = "ALTER DATABASE CURRENT SET DELAYED_DURABILITY = DISABLED;"
    if value == "ALLOWED":
        why = "only a commit that asks for it is delayed, and ours do not; a transaction of yours may"
        return bad("delayed_durability", value, "exactly-once-capable", why, fix)
    return bad("delayed_durability", value, "best-effort", "a crash of the server loses the last commits", fix)


def _check_page_verify(value: str) -> Finding:
    if value == "CHECKSUM":
        return good("page_verify", value, "a page torn by a crash is noticed")
    why = "a page torn by a crash may pass for a whole one"
    fix = "ALTER DATABASE CURRENT SET PAGE_VERIFY CHECKSUM;"
    return bad("page_verify", value, "best-effort", why, fix)


def _check_role(read_only: bool) -> Finding:
    if not read_only:
        return good("role", "writable", "it takes claims", invariant="I1")
    fix = "give the primary's address, or ALTER DATABASE CURRENT SET READ_WRITE;"
    return bad("role", "read only", "best-effort", "it takes no claims", fix, invariant="I1")


def _check_replicas(replicas: list[str] | None) -> Finding:
    if replicas is None:
        why = "the user has no permission to see them (VIEW SERVER STATE), so nothing is known of a failover"
        fix = "GRANT VIEW SERVER STATE TO the user, and ask again"
        return bad("replicas", "not known", "at-most-once-until-failover", why, fix)
    if not replicas:
        return good("replicas", "none seen", "there is no failover that could lose anything")
    if all(mode == "SYNCHRONOUS_COMMIT" for mode in replicas):
        return good("replicas", f"{len(replicas)}, synchronous", "a promoted replica has every claim")
    why = "a replica that is promoted may lack the last claims"
    fix = "ALTER AVAILABILITY GROUP … MODIFY REPLICA ON … WITH (AVAILABILITY_MODE = SYNCHRONOUS_COMMIT);"
    return bad("replicas", f"{len(replicas)}, asynchronous", "at-most-once-until-failover", why, fix)


def _check_isolation(versions: bool) -> Finding:
    if versions:
        return good(
            "read_committed_snapshot", "ON", "a replay is read while another transaction writes", invariant="I2"
        )
    why = "right, but a read waits for an open transaction that has the row, for a second at most"
    fix = "ALTER DATABASE CURRENT SET READ_COMMITTED_SNAPSHOT ON;"
    return bad("read_committed_snapshot", "OFF", "exactly-once-capable", why, fix, invariant="I2")


def _check_table(collation: str | None) -> Finding:
    if collation is None:
        why, fix = "nothing can be claimed yet", "retrysafe migrate URL"
        return bad("table", "missing", "best-effort", why, fix, invariant="I1")
    if collation == COLLATION:
        return good("collation", collation, "texts are compared code by code; ids are bytes anyway", invariant="I26")
    why = "lists that are filtered by scope may show records of a scope that only looks the same; claims are safe"
    fix = f"ALTER TABLE … ALTER COLUMN scope nvarchar(max) COLLATE {COLLATION} NOT NULL; and so for the other texts"
    return bad("collation", collation, "exactly-once-capable", why, fix, invariant="I26")
