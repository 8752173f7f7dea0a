"""The doctor's checks of a MySQL or MariaDB server: its version, durability, replicas, role, tables and packet size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.mysql.dialect import CONNECT_TIMEOUT_SECONDS, MysqlLocation, dialect_of
from retrysafe.stores.mysql.errors import unreachable_error
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.schema_doctor import diagnose_schema

OLDEST_VERSIONS = {"MySQL": (8, 0, 19), "MariaDB": (10, 6, 0)}
"""The first versions that understand the statements. docs/reference/stores.md names the tested versions."""

WANTED_VARIABLES = (
    "version", "innodb_flush_log_at_trx_commit", "sync_binlog", "log_bin", "read_only", "super_read_only",
    "innodb_doublewrite", "transaction_isolation", "tx_isolation", "binlog_format", "max_allowed_packet",
)  # fmt: skip

TABLE_QUERY = """
SELECT engine AS engine, table_collation AS collation FROM information_schema.tables
WHERE table_schema = DATABASE() AND table_name = %s
"""

REPLICAS_QUERY = "SELECT count(*) AS replicas FROM information_schema.processlist WHERE command LIKE 'Binlog Dump%'"
"""A user without the PROCESS privilege sees none."""

GARBLED_TEXT_CODE, MAX_PROCESSLIST_TRIES = 3854, 100
"""The list shows the current statement of every connection. MySQL fails with 3854 if one is not valid text, which our
binary values are not."""

MIN_PACKET_BYTES = 4 << 20

Settings = Mapping[str, Any]


def diagnose(at: MysqlLocation) -> Diagnosis:
    try:
        connection = pymysql.connect(
            **at.connect, connect_timeout=CONNECT_TIMEOUT_SECONDS, read_timeout=CONNECT_TIMEOUT_SECONDS
        )
    except (pymysql.MySQLError, OSError, RuntimeError) as error:
        raise unreachable_error(error) from error
    try:
        with connection, connection.cursor(DictCursor) as cursor:
            found = read_settings(cursor, f"{at.names.bare}_keys")
            schema = diagnose_schema(dialect_of(found["version"]), at.names, partial(_send, connection))
    except pymysql.MySQLError as error:
        raise StoreUnavailable(f"the server cannot be queried: {error}") from error
    return Diagnosis(f"{found['product']} {found['version']}", (*check_settings(found), *schema))


def _send(connection: Any, statement: Statement) -> list[Any]:
    with connection.cursor() as cursor:
        cursor.execute(statement.sql)
        return list(cursor.fetchall())


def read_settings(cursor: Any, table: str) -> Settings:
    """The settings by lower-case name, without those that this server does not have."""
    cursor.execute(
        f"SHOW GLOBAL VARIABLES WHERE Variable_name IN ({', '.join(['%s'] * len(WANTED_VARIABLES))})", WANTED_VARIABLES
    )
    found = {row["Variable_name"].lower(): str(row["Value"]) for row in cursor.fetchall()}
    cursor.execute(TABLE_QUERY, [table])
    table_row = cursor.fetchone() or {}
    query_processlist(cursor, REPLICAS_QUERY)
    replicas = int((cursor.fetchone() or {}).get("replicas", 0))
    cursor.execute("SHOW GLOBAL STATUS LIKE 'Rpl\\_semi\\_sync\\_%\\_status'")
    semi_sync = any(str(row["Value"]) == "ON" for row in cursor.fetchall())
    product = "MariaDB" if "mariadb" in found["version"].lower() else "MySQL"
    state = {"product": product, "replicas": replicas, "semi_sync": semi_sync}
    return {**found, **state, "engine": table_row.get("engine"), "collation": table_row.get("collation")}


def query_processlist(cursor: Any, question: str, values: Sequence[Any] | None = None) -> None:
    """Query the list of connections, and repeat it while a statement that is not valid text is in the list."""
    for left in reversed(range(MAX_PROCESSLIST_TRIES)):
        try:
            cursor.execute(question, values)
            return
        except pymysql.MySQLError as error:
            if error.args[0] != GARBLED_TEXT_CODE or not left:
                raise


def check_settings(settings: Settings) -> Iterator[Finding]:
    yield _check_version(settings)
    yield _check_flush(settings)
    yield _check_binlog(settings)
    yield _check_replicas(settings)
    yield _check_doublewrite(settings)
    yield _check_role(settings)
    yield _check_isolation(settings)
    yield _check_table(settings)
    if settings["engine"] is not None:
        yield _check_collation(settings)
    yield _check_packet(settings)


def _check_version(settings: Settings) -> Finding:
    product = settings["product"]
    number = settings["version"].partition("-")[0]
    parts = tuple(int(part) for part in number.split(".") if part.isdigit())
    oldest = ".".join(map(str, OLDEST_VERSIONS[product]))
    if parts >= OLDEST_VERSIONS[product]:
        return good("version", number, f"{product} {oldest} and later understand the statements", invariant="I1")
    why = f"{product} before {oldest} does not understand all statements"
    return bad("version", number, "best-effort", why, "upgrade the server", invariant="I1")


def _check_flush(settings: Settings) -> Finding:
    name = "innodb_flush_log_at_trx_commit"
    value = settings[name]
    if value == "1":
        return good(name, value, "a commit is on disk before it is acknowledged")
    who = "the machine" if value == "2" else "the server or the machine"
    why = f"a crash of {who} loses the last second of commits"
    fix = f"SET PERSIST {name} = 1;" if _is_mysql(settings) else _set_command(name, "1")
    return bad(name, value, "best-effort", why, fix)


def _check_binlog(settings: Settings) -> Finding:
    if settings.get("log_bin", "OFF") == "OFF":
        return good("sync_binlog", "no binary log", "nothing is replicated")
    value = settings.get("sync_binlog", "")
    if value == "1":
        return good("sync_binlog", value, "what replicas get is on disk with the commit")
    why = "after a crash the binary log may lack commits that were acknowledged, and so may every replica"
    fix = "SET PERSIST sync_binlog = 1;" if _is_mysql(settings) else _set_command("sync_binlog", "1")
    return bad("sync_binlog", value, "at-most-once-until-failover", why, fix)


def _check_replicas(settings: Settings) -> Finding:
    count = settings["replicas"]
    if not count:
        return good("replicas", "none seen", "there is no failover that could lose anything")
    if settings["semi_sync"]:
        return good("replicas", f"{count}, semi-synchronous", "a promoted replica has every claim")
    why = "a replica that is promoted may lack the last claims"
    fix = "install the semi-synchronous plugins and SET GLOBAL rpl_semi_sync_source_enabled = 1;"
    return bad("replicas", f"{count}, asynchronous", "at-most-once-until-failover", why, fix)


def _check_doublewrite(settings: Settings) -> Finding:
    value = settings.get("innodb_doublewrite", "ON")
    if value not in ("OFF", "0", "DETECT_ONLY"):
        return good("innodb_doublewrite", value, "a page that a crash has torn is repaired")
    why = "a crash during a write can damage a page for ever"
    return bad("innodb_doublewrite", value, "best-effort", why, "set innodb_doublewrite = ON and restart the server")


def _check_role(settings: Settings) -> Finding:
    for name in ("super_read_only", "read_only"):
        if settings.get(name, "OFF") not in ("OFF", "0"):
            why, fix = "a replica takes no claims", f"give the source's address, or SET GLOBAL {name} = OFF;"
            return bad("role", f"{name} = {settings[name]}", "best-effort", why, fix, invariant="I1")
    return good("role", "writable", "it takes claims", invariant="I1")


def _check_isolation(settings: Settings) -> Finding:
    value = settings.get("transaction_isolation") or settings.get("tx_isolation") or "?"
    why = "our own connections set READ COMMITTED themselves; a transaction of yours keeps what you chose"
    return good("isolation", value, why, invariant="I2")


def _check_table(settings: Settings) -> Finding:
    engine = settings["engine"]
    if engine is None:
        why = "nothing can be claimed yet"
        return bad("table", "missing", "best-effort", why, "retrysafe migrate URL", invariant="I1")
    if engine.lower() == "innodb":
        return good("table", engine, "it commits and survives a crash")
    why = "without transactions nothing commits together, and a crash may tear it"
    return bad("table", engine, "best-effort", why, "ALTER TABLE … ENGINE = InnoDB;")


def _check_collation(settings: Settings) -> Finding:
    value = settings["collation"]
    if value.endswith(("_nopad_bin", "_0900_bin")):
        return good("collation", value, "texts are compared code by code; ids are bytes anyway", invariant="I26")
    why = "lists that are filtered by scope may show records of a scope that only looks the same; claims are safe"
    fix = "ALTER TABLE … CONVERT TO CHARACTER SET utf8mb4 COLLATE " + (
        "utf8mb4_0900_bin;" if _is_mysql(settings) else "utf8mb4_nopad_bin;"
    )
    return bad("collation", value, "exactly-once-capable", why, fix, invariant="I26")


def _check_packet(settings: Settings) -> Finding:
    value = int(settings.get("max_allowed_packet", "0"))
    if value >= MIN_PACKET_BYTES:
        return good("max_allowed_packet", value, "answers up to about half of it can be stored", invariant="I6")
    why = "an answer larger than about half of it cannot be stored, and its key stays unfinished"
    fix = f"SET GLOBAL max_allowed_packet = {64 << 20};"
    return bad("max_allowed_packet", value, "exactly-once-capable", why, fix, invariant="I6")


def _is_mysql(settings: Settings) -> bool:
    return bool(settings["product"] == "MySQL")


def _set_command(name: str, value: str) -> str:
    return f"SET GLOBAL {name} = {value}; and the same under [mariadbd] in its configuration file"
