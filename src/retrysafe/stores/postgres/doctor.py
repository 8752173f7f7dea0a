"""The doctor's checks of a PostgreSQL server: its version, durability, role, standbys, isolation and tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row, tuple_row

from retrysafe.core.urls import safe_url
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.postgres.dialect import DIALECT, PostgresLocation
from retrysafe.stores.sql.schema_doctor import diagnose_schema

OLDEST_VERSION = 140000

SETTINGS_QUERY = """
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int AS version_number,
       current_setting('fsync') AS fsync,
       current_setting('full_page_writes') AS full_page_writes,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('synchronous_standby_names') AS synchronous_standby_names,
       current_setting('default_transaction_isolation') AS isolation,
       current_setting('transaction_read_only') AS read_only,
       pg_is_in_recovery() AS standby,
       (SELECT count(*) FROM pg_stat_replication) AS standbys,
       (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum')) AS synchronous,
       (SELECT count(sync_state) FROM pg_stat_replication) AS shown,
       inet_server_port() AS port,
       (SELECT relpersistence FROM pg_class WHERE oid = to_regclass(%(table)s)) AS persistence
"""

Settings = Mapping[str, Any]


def diagnose(at: PostgresLocation) -> Diagnosis:
    try:
        with psycopg.connect(at.conninfo, connect_timeout=5, row_factory=dict_row) as connection:
            found = connection.execute(SETTINGS_QUERY, {"table": at.names.keys}).fetchone()
            asked = connection.info.port
            plain = connection.cursor(row_factory=tuple_row)
            schema = diagnose_schema(DIALECT, at.names, lambda sent: plain.execute(sent.sql).fetchall())
    except psycopg.Error as error:
        raise StoreUnavailable(f"{safe_url(at.url)} cannot be queried: {error}") from error
    assert found is not None, "a SELECT without FROM has one row"
    findings = [*check_settings({**found, "asked_port": asked}), *schema]
    return Diagnosis(f"PostgreSQL {found['version']}", tuple(findings))


def check_settings(settings: Settings) -> Iterator[Finding]:
    yield _check_version(settings)
    yield _check_switch(
        settings, "fsync", "a commit is on disk before it is acknowledged", "a crash can lose or tear commits"
    )
    yield _check_switch(
        settings,
        "full_page_writes",
        "a page that a crash has torn is repaired",
        "a crash during a write can damage a page for ever",
    )
    yield _check_synchronous_commit(settings)
    yield _check_role(settings)
    yield from _check_standbys(settings)
    yield _check_isolation(settings)
    yield _check_table(settings)
    if settings["port"] is not None and settings["port"] != settings["asked_port"]:
        way = f"{settings['asked_port']} leads to {settings['port']}"
        yield good(
            "pooler",
            way,
            "there is a pooler or a proxy; the store keeps no state in a session, so that is fine",
            invariant="I1",
        )


def _check_version(settings: Settings) -> Finding:
    if settings["version_number"] >= OLDEST_VERSION:
        return good("version", settings["version"], "14 and later are tested", invariant="I1")
    return bad(
        "version",
        settings["version"],
        "best-effort",
        "only 14 and later are tested",
        "upgrade the server",
        invariant="I1",
    )


def _check_switch(settings: Settings, name: str, fine: str, wrong: str) -> Finding:
    if settings[name] == "on":
        return good(name, "on", fine)
    return bad(name, settings[name], "best-effort", wrong, f"ALTER SYSTEM SET {name} = on; SELECT pg_reload_conf();")


def _check_synchronous_commit(settings: Settings) -> Finding:
    value = settings["synchronous_commit"]
    if value != "off":
        return good("synchronous_commit", value, "a commit is acknowledged after it is on disk")
    fix = "ALTER SYSTEM SET synchronous_commit = on; SELECT pg_reload_conf(); (or ALTER ROLE … SET, where it was set)"
    return bad("synchronous_commit", value, "best-effort", "the last commits before a crash are lost", fix)


def _check_role(settings: Settings) -> Finding:
    if settings["standby"]:
        return bad(
            "role", "standby", "best-effort", "a standby takes no claims", "give the primary's address", invariant="I1"
        )
    if settings["read_only"] == "on":
        fix = "ALTER DATABASE … SET default_transaction_read_only = off; or use another role"
        return bad("role", "read-only", "best-effort", "claims are refused", fix, invariant="I1")
    return good("role", "primary", "it takes claims", invariant="I1")


def _check_standbys(settings: Settings) -> Iterator[Finding]:
    count, synchronous = settings["standbys"], settings["synchronous_standby_names"]
    if not count:
        yield good("standbys", "none", "there is no failover that could lose anything")
    elif not synchronous or settings["synchronous_commit"] not in ("on", "remote_apply"):
        fix = "ALTER SYSTEM SET synchronous_standby_names = 'ANY 1 (*)'; SELECT pg_reload_conf();"
        why = "a standby that is promoted may lack the last claims"
        yield bad("standbys", f"{count}, asynchronous", "at-most-once-until-failover", why, fix)
    elif settings["shown"] and not settings["synchronous"]:
        # A role outside pg_monitor cannot read sync_state; then only the setting is known.
        fix = f"let a standby connect under a name that {synchronous!r} names, or name one that does"
        why = "those it waits for are not connected, and those that are may lack the last claims"
        yield bad("standbys", f"{count}, none of them in {synchronous}", "at-most-once-until-failover", why, fix)
    elif settings["shown"] > settings["synchronous"]:
        some = f"{settings['synchronous']} of {count} synchronous: {synchronous}"
        yield good("standbys", some, "promote a synchronous one: it has every claim")
    else:
        yield good("standbys", f"{count}, synchronous: {synchronous}", "a promoted standby has every claim")


def _check_isolation(settings: Settings) -> Finding:
    value = settings["isolation"]
    if value in ("read committed", "read uncommitted"):
        return good("isolation", value, "what the statements are written for", invariant="I2")
    why = "correct, but claims of one key at the same time fail with serialization errors and are retried"
    return good("isolation", value, why, invariant="I2")


def _check_table(settings: Settings) -> Finding:
    kind = settings["persistence"]
    if kind is None:
        return bad(
            "table", "missing", "best-effort", "nothing can be claimed yet", "retrysafe migrate URL", invariant="I1"
        )
    if kind in ("u", b"u"):
        fix = "ALTER TABLE … SET LOGGED;"
        return bad("table", "unlogged", "best-effort", "a crash empties it", fix)
    return good("table", "logged", "it survives a crash")
