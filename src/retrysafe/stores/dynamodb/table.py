"""Creates the table, waits until it is active, and sets it up.

The key is the record's id. The index by state is for workers and people. Its sort key is `expires`, so records that may
be reaped come first. Billing is per request, unless the table was created otherwise before.
"""

from __future__ import annotations

import json
from typing import Any

from retrysafe.errors import SchemaMissing, StoreError
from retrysafe.stores.dynamodb.plans import Plan
from retrysafe.stores.dynamodb.requests import INDEX_NAME, DynamoPause, DynamoRequest
from retrysafe.stores.dynamodb.urls import DynamoLocation

KEY_SCHEMA = [{"AttributeName": "id", "KeyType": "HASH"}]
INDEX_KEY_SCHEMA = [{"AttributeName": "shelf", "KeyType": "HASH"}, {"AttributeName": "expires", "KeyType": "RANGE"}]
TTL_ATTRIBUTE = "ttl"

TABLE_POLL_SECONDS = 0.5
MAX_TABLE_POLLS = 600
"""Together five minutes. DynamoDB creates a table in seconds; an index on a full table takes longer."""


def build_definition(table: str) -> dict[str, Any]:
    """The arguments of CreateTable."""
    types = {"id": "B", "shelf": "S", "expires": "N"}
    index = {
        "IndexName": INDEX_NAME,
        "KeySchema": INDEX_KEY_SCHEMA,
        "Projection": {"ProjectionType": "INCLUDE", "NonKeyAttributes": ["lease"]},
    }
    return {
        "TableName": table,
        "AttributeDefinitions": [{"AttributeName": name, "AttributeType": kind} for name, kind in types.items()],
        "KeySchema": KEY_SCHEMA,
        "GlobalSecondaryIndexes": [index],
        "BillingMode": "PAY_PER_REQUEST",
    }


def build_script(at: DynamoLocation) -> str:
    """The input of `aws dynamodb create-table --cli-input-json`, to create the table by hand."""
    return json.dumps(build_definition(at.table), indent=2) + "\n"


def migrate(at: DynamoLocation) -> Plan[list[str]]:
    """Create what is missing, and return the names of what was created. Several processes may run it at once."""
    applied = []
    if (yield from describe_table(at)) is None and (yield from create_table(at)):
        applied.append(f"table {at.table}")
    yield from wait_until_active(at)
    if at.ttl and (yield from read_ttl_attribute(at)) is None:
        yield DynamoRequest(
            "update_time_to_live",
            {"TableName": at.table, "TimeToLiveSpecification": {"Enabled": True, "AttributeName": TTL_ATTRIBUTE}},
        )
        applied.append("time to live")
    if at.backups and (yield from read_backups_enabled(at)) is False:
        recovery = {"PointInTimeRecoverySpecification": {"PointInTimeRecoveryEnabled": True}}
        yield DynamoRequest("update_continuous_backups", {"TableName": at.table, **recovery})
        applied.append("point-in-time recovery")
    return applied


def describe_table(at: DynamoLocation) -> Plan[dict[str, Any] | None]:
    try:
        found: dict[str, Any] = (yield DynamoRequest("describe_table", {"TableName": at.table}))["Table"]
    except SchemaMissing:
        return None
    return found


def create_table(at: DynamoLocation) -> Plan[bool]:
    """Create the table. False if it exists already: two processes may try at the same time."""
    try:
        yield DynamoRequest("create_table", build_definition(at.table))
    except StoreError as error:
        if "ResourceInUseException" in str(error) or (yield from describe_table(at)) is not None:
            return False
        raise
    return True


def wait_until_active(at: DynamoLocation) -> Plan[dict[str, Any]]:
    for _ in range(MAX_TABLE_POLLS):
        found = yield from describe_table(at)
        if found is not None and found["TableStatus"] in ("ACTIVE", "UPDATING") and _index_state(found) == "ACTIVE":
            wrong = describe_key_mismatch(found)
            if wrong:
                raise StoreError(f"the table {at.table!r} is not one of ours: {wrong}; choose another name in the URL")
            return found
        if found is not None and found["TableStatus"] == "ACTIVE" and _index_state(found) is None:
            raise StoreError(
                f"the table {at.table!r} has no index {INDEX_NAME!r}; create the table with retrysafe migrate, or add "
                "the index that retrysafe migrate --sql shows"
            )
        yield DynamoPause(TABLE_POLL_SECONDS)
    raise StoreError(
        f"the table {at.table!r} did not become active in {TABLE_POLL_SECONDS * MAX_TABLE_POLLS:.0f} s; "
        "look at it in the console"
    )


def _index_state(table: dict[str, Any]) -> str | None:
    for index in table.get("GlobalSecondaryIndexes", ()):
        if index["IndexName"] == INDEX_NAME:
            return str(index.get("IndexStatus", "ACTIVE"))
    return None


def describe_key_mismatch(table: dict[str, Any]) -> str:
    """What is wrong with the keys of a table. Empty if they are right."""
    if table["KeySchema"] != KEY_SCHEMA:
        return f"its key is {_format_keys(table['KeySchema'])}, not {_format_keys(KEY_SCHEMA)}"
    for index in table.get("GlobalSecondaryIndexes", ()):
        if index["IndexName"] == INDEX_NAME and index["KeySchema"] != INDEX_KEY_SCHEMA:
            found, expected = _format_keys(index["KeySchema"]), _format_keys(INDEX_KEY_SCHEMA)
            return f"the key of its index {INDEX_NAME!r} is {found}, not {expected}"
    return ""


def _format_keys(schema: list[dict[str, str]]) -> str:
    return " + ".join(part["AttributeName"] for part in schema)


def read_ttl_attribute(at: DynamoLocation) -> Plan[str | None]:
    """The attribute of the table's time to live. None if it is off."""
    found = (yield DynamoRequest("describe_time_to_live", {"TableName": at.table}))["TimeToLiveDescription"]
    if found.get("TimeToLiveStatus") in ("ENABLED", "ENABLING"):
        return str(found.get("AttributeName", ""))
    return None


def read_backups_enabled(at: DynamoLocation) -> Plan[bool | None]:
    """True if point-in-time recovery is on. None if it is unknown: an emulator, or a caller without the permission."""
    try:
        found = yield DynamoRequest("describe_continuous_backups", {"TableName": at.table})
    except StoreError:
        return None
    recovery = found["ContinuousBackupsDescription"].get("PointInTimeRecoveryDescription", {})
    return bool(recovery.get("PointInTimeRecoveryStatus") == "ENABLED")
