"""The table: made, waited for, and set up.

The key is the record's id. The index by state is for workers and people; its sort key is `expires`, so what may be
reaped stands first. Everybody pays per request unless the table is made otherwise beforehand.
"""

from __future__ import annotations

import json
from typing import Any

from retrysafe.errors import SchemaMissing, StoreError
from retrysafe.stores.dynamodb.plans import Plan
from retrysafe.stores.dynamodb.requests import INDEX, Pause, Request
from retrysafe.stores.dynamodb.urls import Location

KEY = [{"AttributeName": "id", "KeyType": "HASH"}]
INDEX_KEY = [{"AttributeName": "shelf", "KeyType": "HASH"}, {"AttributeName": "expires", "KeyType": "RANGE"}]
TTL = "ttl"

POLL = 0.5
LOOKS = 600
"""Five minutes: DynamoDB makes a table in seconds, an index on a full one in longer."""


def definition(table: str) -> dict[str, Any]:
    """What CreateTable is asked for."""
    types = {"id": "B", "shelf": "S", "expires": "N"}
    index = {
        "IndexName": INDEX,
        "KeySchema": INDEX_KEY,
        "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["lease"]},
    }
    return {
        "TableName": table,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()],
        "KeySchema": KEY,
        "GlobalSecondaryIndexes": [index],
        "BillingMode": "PAY_PER_REQUEST",
    }


def script(at: Location) -> str:
    """For those who make it themselves: the input of `aws dynamodb create-table --cli-input-json`."""
    return json.dumps(definition(at.table), indent=2) + "\n"


def migrate(at: Location) -> Plan[list[str]]:
    """Make what is missing; the reply names what was done. Many may run it at once."""
    applied = []
    if (yield from described(at)) is None and (yield from created(at)):
        applied.append(f"table {at.table}")
    yield from active(at)
    if at.ttl and (yield from lives(at)) is None:
        yield Request(
            "update_time_to_live",
            {"TableName": at.table, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": TTL}},
        )
        applied.append("time to live")
    if at.backups and (yield from backed_up(at)) is False:
        recovery = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
        yield Request("update_continuous_backups", {"TableName": at.table, **recovery})
        applied.append("point-in-time recovery")
    return applied


def described(at: Location) -> Plan[dict[str, Any] | None]:
    try:
        found: dict[str, Any] = (yield Request("describe_table", {"TableName": at.table}))["Table"]
    except SchemaMissing:
        return None
    return found


def created(at: Location) -> Plan[bool]:
    """Whether it was us: two may try at the same moment, and one is told that it is there."""
    try:
        yield Request("create_table", definition(at.table))
    except StoreError as error:
        if "ResourceInUseException" in str(error) or (yield from described(at)) is not None:
            return False
        raise
    return True


def active(at: Location) -> Plan[dict[str, Any]]:
    for _ in range(LOOKS):
        found = yield from described(at)
        if found is not None and found["TableStatus"] in ("ACTIVE", "UPDATING") and _index_state(found) == "ACTIVE":
            wrong = misshapen(found)
            if wrong:
                raise StoreError(f"the table {at.table!r} is not one of ours: {wrong}; choose another name in the URL")
            return found
        if found is not None and found["TableStatus"] == "ACTIVE" and _index_state(found) is None:
            raise StoreError(
                f"the table {at.table!r} has no index {INDEX!r}; make the table with retrysafe migrate, or add "
                "the index that retrysafe migrate --sql shows"
            )
        yield Pause(POLL)
    raise StoreError(f"the table {at.table!r} did not become active in {POLL * LOOKS:.0f} s; look at it in the console")


def _index_state(table: dict[str, Any]) -> str | None:
    for index in table.get("GlobalSecondaryIndexes", ()):
        if index["IndexName"] == INDEX:
            return str(index.get("IndexStatus", "ACTIVE"))
    return None


def misshapen(table: dict[str, Any]) -> str:
    """What is wrong with its keys; empty if nothing is."""
    if table["KeySchema"] != KEY:
        return f"its key is {_shown(table['KeySchema'])}, not {_shown(KEY)}"
    for index in table.get("GlobalSecondaryIndexes", ()):
        if index["IndexName"] == INDEX and index["KeySchema"] != INDEX_KEY:
            return f"the key of its index {INDEX!r} is {_shown(index['KeySchema'])}, not {_shown(INDEX_KEY)}"
    return ""


def _shown(schema: list[dict[str, str]]) -> str:
    return " + ".join(part["AttributeName"] for part in schema)


def lives(at: Location) -> Plan[str | None]:
    """The attribute by which DynamoDB deletes, if it does."""
    found = (yield Request("describe_time_to_live", {"TableName": at.table}))["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return str(found.get("AttributeName", ""))
    return None


def backed_up(at: Location) -> Plan[bool | None]:
    """Whether point-in-time recovery is on; None where nobody says (an emulator, or a caller who may not ask)."""
    try:
        found = yield Request("describe_continuous_backups", {"TableName": at.table})
    except StoreError:
        return None
    recovery = found["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    return bool(recovery.get("PointInTimeRecoveryStatus") == "ENABLED")
