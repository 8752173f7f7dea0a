"""`retrysafe doctor` for DynamoDB: read a table's settings and say what they guarantee.

DynamoDB stores a write in several data centres before it answers, so no flush setting can be wrong. Other things can:
an emulator, a table replicated between regions with "last writer wins", a time to live on the wrong attribute, or a
wrong clock.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import SchemaMissing
from retrysafe.stores.base import follow
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.dynamodb.requests import INDEX_NAME, DynamoRequest
from retrysafe.stores.dynamodb.sync import DynamoStore
from retrysafe.stores.dynamodb.table import (
    TTL_ATTRIBUTE,
    describe_key_mismatch,
    read_backups_enabled,
    read_ttl_attribute,
)
from retrysafe.stores.dynamodb.urls import DynamoLocation

Settings = Mapping[str, Any]


def diagnose(at: DynamoLocation) -> Diagnosis:
    store = DynamoStore(at)
    try:
        found = read_settings(store, at)
    finally:
        store.close()
    name = found["server"] or "DynamoDB"
    return Diagnosis(f"{name} ({at.region}, table {at.table})", tuple(check_settings(found)))


def read_settings(store: DynamoStore, at: DynamoLocation) -> Settings:
    """Read everything that `check_settings` needs."""
    before = time.time()
    try:
        reply = store._call(DynamoRequest("describe_table", {"TableName": at.table}))
    except SchemaMissing:
        return {"table": None, "at": at, "server": ""}
    after = time.time()
    headers = reply["ResponseMetadata"].get("HTTPHeaders", {})
    return {
        "at": at,
        "table": reply["Table"],
        "server": emulator_name(at, headers),
        "ahead": clock_skew(headers.get("date"), before, after),
        "ttl": follow(read_ttl_attribute(at), store._send),
        "backups": follow(read_backups_enabled(at), store._send),
    }


def emulator_name(at: DynamoLocation, headers: Mapping[str, str]) -> str:
    """The name of an emulator. Empty for the real DynamoDB, which has an address at amazonaws.com."""
    if at.endpoint is None or ".amazonaws.com" in at.endpoint:
        return ""
    server = headers.get("server", "")
    return server if "dyn" in server.lower() else f"{server or 'something'} that speaks DynamoDB"


def clock_skew(date: str | None, before: float, after: float) -> float | None:
    """How many seconds this machine's clock is ahead of the server's, by the Date header, which has whole seconds."""
    if not date:
        return None
    server_time = parsedate_to_datetime(date).timestamp()
    if before > server_time + 1:
        return before - (server_time + 1)
    return after - server_time if after < server_time else 0.0


def check_settings(found: Settings) -> Iterator[Finding]:
    at: DynamoLocation = found["at"]
    if found["table"] is None:
        fix = f"retrysafe migrate {at.url}"
        yield bad("table", "missing", "best-effort", "nothing can be claimed", fix, invariant="I1")
        return
    yield _check_server(found["server"])
    yield _check_table(found["table"], at)
    yield _check_replicas(found["table"])
    yield _check_time_to_live(found["ttl"], at)
    yield _check_clock(found["ahead"], at)
    yield _check_backups(found["backups"], at)


def _check_server(name: str) -> Finding:
    if not name:
        return good("durability", "three places", "a write is acknowledged when it is in two of three data centres")
    why = "an emulator is for tests: it promises nothing about a crash"
    return bad("emulator", name, "best-effort", why, "use the real one: leave endpoint= out of the URL")


def _check_table(table: Mapping[str, Any], at: DynamoLocation) -> Finding:
    wrong = describe_key_mismatch(dict(table))
    index = {each["IndexName"]: each for each in table.get("GlobalSecondaryIndexes", ())}.get(INDEX_NAME)
    if wrong:
        fix = "choose another table in the URL"
        return bad("table", wrong, "best-effort", "the store cannot use it", fix, invariant="I1")
    if index is None or index.get("IndexStatus", "ACTIVE") != "ACTIVE":
        why = "listings are empty: unfinished work is not found"
        return bad(
            "table", f"no index {INDEX_NAME}", "best-effort", why, f"retrysafe migrate {at.url}", invariant="I13"
        )
    return good("table", table["TableStatus"].lower(), "its keys are as they must be", invariant="I1")


def _check_replicas(table: Mapping[str, Any]) -> Finding:
    replicas = [each.get("RegionName", "?") for each in table.get("Replicas", ())]
    if not replicas:
        return good("replicas", "none", "one region decides, so one claim wins", invariant="I1")
    shown = ", ".join(replicas)
    if table.get("MultiRegionConsistency") == "STRONG":
        return good("replicas", shown, "strongly consistent over its regions", invariant="I1")
    why = "the last writer wins between regions: each of them may grant the same key"
    fix = "write in one region only, or make it a global table with multi-region strong consistency"
    return bad("replicas", shown, "at-most-once-until-failover", why, fix, invariant="I1")


def _check_time_to_live(attribute: str | None, at: DynamoLocation) -> Finding:
    if attribute is None:
        return good("time to live", "off", "expired records are deleted by the worker, and paid for", invariant="I12")
    if attribute == TTL_ATTRIBUTE:
        return good("time to live", attribute, "only settled records have one", invariant="I12")
    why = "DynamoDB deletes records by an attribute that retrysafe does not use for this"
    fix = (
        f"aws dynamodb update-time-to-live --table-name {at.table} "
        f"--time-to-live-specification Enabled=false,AttributeName={attribute}"
    )
    return bad("time to live", attribute, "best-effort", why, fix, invariant="I13")


def _check_clock(ahead: float | None, at: DynamoLocation) -> Finding:
    allowed = at.skew / SECOND_MICROS
    if ahead is None:
        why = "the server does not send its time: check the clock synchronisation of this machine"
        return good("clock", "unknown", why, invariant="I2")
    if abs(ahead) <= allowed:
        why = f"within the {allowed:g} s that are allowed for"
        return good("clock", f"{ahead:+.1f} s", why, invariant="I2")
    why = f"leases are judged by it, and only {allowed:g} s are allowed for"
    fix = "synchronise this machine's clock (chronyd), or allow for more with ?skew="
    return bad("clock", f"{ahead:+.1f} s", "best-effort", why, fix, invariant="I2")


def _check_backups(on: bool | None, at: DynamoLocation) -> Finding:
    value = {True: "on", False: "off", None: "unknown"}[on]
    why = "against what people delete by mistake; no part of the promise"
    return good("point-in-time recovery", value, why if on else f"{why} (?backups=on and retrysafe migrate turn it on)")
