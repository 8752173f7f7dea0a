"""Requests to DynamoDB as values, and the conditions under which DynamoDB carries them out.

Every decision is in a condition, so DynamoDB makes it, in one atomic step. A request whose condition does not hold
changes nothing and returns the item as it is (`ConditionFailed`), which says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retrysafe.core.records import Fence
from retrysafe.core.states import OPEN, State
from retrysafe.stores.dynamodb.items import Fields, Item, check_size, drop_absent, encode_bytes, encode_number

INDEX_NAME = "by_state"
_RETURN_OLD_ITEM = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


class DynamoRequest(NamedTuple):
    """One call of the SDK's client: the method's name and its arguments."""

    call: str
    arguments: dict[str, Any]


class DynamoPause(NamedTuple):
    """A request to wait, while a table is being created."""

    seconds: float


Sendable = DynamoRequest | DynamoPause | list[DynamoRequest]
"""The requests of a list are sent in parallel. Their replies come back in order."""


class ConditionFailed(NamedTuple):
    """The condition did not hold. `item` is the item as it is, or None if there is none."""

    item: Item | None


class TransactionConflict(Exception):
    """Another transaction is writing this item: nothing was done."""


@dataclass(slots=True)
class Expression:
    """Collects the names and values of an expression. Every name gets an alias, so reserved words are no problem."""

    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add_name(self, attribute: str) -> str:
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def add_value(self, value: dict[str, Any]) -> str:
        alias = f":v{len(self.values)}"
        self.values[alias] = value
        return alias

    def compare(self, attribute: str, sign: str, value: dict[str, Any]) -> str:
        return f"{self.add_name(attribute)} {sign} {self.add_value(value)}"

    def one_of(self, attribute: str, values: Sequence[dict[str, Any]]) -> str:
        return f"{self.add_name(attribute)} IN ({', '.join(self.add_value(value) for value in values)})"

    def build_arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {"ExpressionAttributeNames": self.names}
        if self.values:
            found["ExpressionAttributeValues"] = self.values
        return found


# Conditions -----------------------------------------------------------------------------------------------------------


def state_condition(found: Expression, allowed: frozenset[State]) -> str:
    return found.one_of("state", [{"S": state.value} for state in sorted(allowed, key=lambda each: each.value)])


def fence_conditions(found: Expression, fence: Fence) -> list[str]:
    """The conditions of the fencing token (I4): an owner that was replaced changes nothing."""
    return [
        found.compare("attempt", "=", encode_number(fence.attempt)),
        found.compare("token", "=", encode_bytes(fence.token)),
    ]


# Requests -------------------------------------------------------------------------------------------------------------


def get(table: str, record_id: bytes) -> DynamoRequest:
    return DynamoRequest(
        "get_item", {"TableName": table, "Key": {"id": encode_bytes(record_id)}, "ConsistentRead": True}
    )


def get_many(table: str, ids: Sequence[bytes]) -> DynamoRequest:
    keys = [{"id": encode_bytes(record_id)} for record_id in ids]
    return DynamoRequest("batch_get_item", {"RequestItems": {table: {"Keys": keys, "ConsistentRead": True}}})


def put_if_absent(table: str, item: Item) -> dict[str, Any]:
    """The arguments of a Put on the condition that there is no record with this id."""
    check_size(item)
    found = Expression()
    condition = f"attribute_not_exists({found.add_name('id')})"
    return {
        "TableName": table,
        "Item": item,
        "ConditionExpression": condition,
        **found.build_arguments(),
        **_RETURN_OLD_ITEM,
    }


class WriteCondition(NamedTuple):
    """The condition of an update: the fence, the allowed states, and further comparisons."""

    fence: Fence
    allowed: frozenset[State] = OPEN
    more: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    """Comparisons: attribute, sign, value."""
    absent: tuple[str, ...] = ()
    """Attributes that must not exist."""
    revision: int | None = None
    """The record must still have this revision, so it has not changed since it was read."""


def update(
    table: str, record_id: bytes, fields: Fields, condition: WriteCondition, copy: dict[str, str] | None = None
) -> DynamoRequest:
    """Set, remove and copy attributes of a record, if the condition holds."""
    check_size(fields)
    found = Expression()
    sets = [f"{found.add_name(name)} = {found.add_value(value)}" for name, value in drop_absent(fields).items()]
    sets += [f"{found.add_name(to)} = {found.add_name(source)}" for to, source in (copy or {}).items()]
    removes = [found.add_name(name) for name, value in fields.items() if value is None]
    expression = f"SET {', '.join(sets)}" if sets else ""
    if removes:
        expression += f" REMOVE {', '.join(removes)}"
    expression += f" ADD {found.add_name('rev')} {found.add_value(encode_number(1))}"
    arguments = {
        "TableName": table,
        "Key": {"id": encode_bytes(record_id)},
        "UpdateExpression": expression.strip(),
        "ConditionExpression": " AND ".join(_build_conditions(found, condition)),
    }
    return DynamoRequest("update_item", {**arguments, **found.build_arguments(), **_RETURN_OLD_ITEM})


def _build_conditions(found: Expression, condition: WriteCondition) -> list[str]:
    texts = fence_conditions(found, condition.fence)
    texts.append(state_condition(found, condition.allowed))
    texts += [found.compare(*comparison) for comparison in condition.more]
    texts += [f"attribute_not_exists({found.add_name(name)})" for name in condition.absent]
    if condition.revision is not None:
        texts.append(found.compare("rev", "=", encode_number(condition.revision)))
    return texts


def delete_expired(table: str, record_id: bytes, judged: int, ended_by: int) -> DynamoRequest:
    found = Expression()
    expired, ended = (
        found.compare("expires", "<=", encode_number(judged)),
        found.compare("lease", "<=", encode_number(ended_by)),
    )
    condition = f"{expired} AND {ended}"
    arguments = {"TableName": table, "Key": {"id": encode_bytes(record_id)}, "ConditionExpression": condition}
    return DynamoRequest("delete_item", {**arguments, **found.build_arguments(), **_RETURN_OLD_ITEM})


def query(table: str, shelf: str, *, before: int | None = None, after: int | None = None, **more: Any) -> DynamoRequest:
    """Read one partition (`shelf`) of the index: all of it, or what expires up to `before` or after `after`."""
    found = Expression()
    condition = found.compare("shelf", "=", {"S": shelf})
    if before is not None:
        condition += f" AND {found.compare('expires', '<=', encode_number(before))}"
    if after is not None:
        condition += f" AND {found.compare('expires', '>', encode_number(after))}"
    lapsed = more.pop("lapsed_at", None)
    if lapsed is not None:
        more["FilterExpression"] = found.compare("lease", "<=", encode_number(lapsed))
    arguments = {"TableName": table, "IndexName": INDEX_NAME, "KeyConditionExpression": condition}
    return DynamoRequest("query", {**arguments, **found.build_arguments(), **_without_none(more)})


def scan(table: str, wanted: dict[str, str], **more: Any) -> DynamoRequest:
    """Scan the table for items with these texts."""
    found = Expression()
    conditions = [_equals_condition(found, name, value) for name, value in wanted.items()]
    if conditions:
        more |= {"FilterExpression": " AND ".join(conditions), **found.build_arguments()}
    return DynamoRequest("scan", {"TableName": table, "ConsistentRead": True, **_without_none(more)})


def _equals_condition(found: Expression, name: str, value: str) -> str:
    if not value:  # an item has no attribute for an empty text
        return f"attribute_not_exists({found.add_name(name)})"
    return found.compare(name, "=", {"S": value})


def _without_none(more: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if value is not None}
