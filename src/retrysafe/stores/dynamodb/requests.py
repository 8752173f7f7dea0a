"""What is sent: requests as values, and the conditions under which DynamoDB carries them out.

Everything that decides is in a condition, so DynamoDB decides, in one step. A request whose condition does not hold
changes nothing and brings back the item as it is (`Refused`), which says why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from retrysafe.core.records import Fence
from retrysafe.core.states import OPEN, State
from retrysafe.stores.dynamodb.items import Fields, Item, fitting, number, present, raw

INDEX = "by_state"
_OLD = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}


class Request(NamedTuple):
    """One call of the SDK's client: the method's name and its arguments."""

    call: str
    arguments: dict[str, Any]


class Pause(NamedTuple):
    """Wait so many seconds: while a table is made."""

    seconds: float


Sent = Request | Pause | list[Request]
"""A list goes out together; its replies come back in order."""


class Refused(NamedTuple):
    """The condition did not hold; the item as it is, or None if there is none."""

    item: Item | None


class Held(Exception):
    """A transaction on this very item is under way: nothing was done."""


@dataclass(slots=True)
class Expression:
    """Collects the names and values of an expression. Every name goes by an alias: no word is reserved then."""

    names: dict[str, str] = field(default_factory=dict)
    values: dict[str, dict[str, Any]] = field(default_factory=dict)

    def name(self, attribute: str) -> str:
        self.names[f"#{attribute}"] = attribute
        return f"#{attribute}"

    def value(self, value: dict[str, Any]) -> str:
        alias = f":v{len(self.values)}"
        self.values[alias] = value
        return alias

    def compare(self, attribute: str, sign: str, value: dict[str, Any]) -> str:
        return f"{self.name(attribute)} {sign} {self.value(value)}"

    def one_of(self, attribute: str, values: Sequence[dict[str, Any]]) -> str:
        return f"{self.name(attribute)} IN ({', '.join(self.value(value) for value in values)})"

    def arguments(self) -> dict[str, Any]:
        found: dict[str, Any] = {"ExpressionAttributeNames": self.names}
        if self.values:
            found["ExpressionAttributeValues"] = self.values
        return found


# Conditions -----------------------------------------------------------------------------------------------------------


def states(found: Expression, allowed: frozenset[State]) -> str:
    return found.one_of("state", [{"S": state.value} for state in sorted(allowed, key=lambda each: each.value)])


def fenced(found: Expression, fence: Fence) -> list[str]:
    """I4: who was replaced changes nothing."""
    return [
        found.compare("attempt", "=", number(fence.attempt)),
        found.compare("token", "=", raw(fence.token)),
    ]


# Requests -------------------------------------------------------------------------------------------------------------


def get(table: str, record_id: bytes) -> Request:
    return Request("get_item", {"TableName": table, "Key": {"id": raw(record_id)}, "ConsistentRead": True})


def get_many(table: str, ids: Sequence[bytes]) -> Request:
    keys = [{"id": raw(record_id)} for record_id in ids]
    return Request("batch_get_item", {"RequestItems": {table: {"Keys": keys, "ConsistentRead": True}}})


def put_if_absent(table: str, item: Item) -> dict[str, Any]:
    """The arguments of a Put that is carried out only where there is no record at all."""
    fitting(item)
    found = Expression()
    condition = f"attribute_not_exists({found.name('id')})"
    return {"TableName": table, "Item": item, "ConditionExpression": condition, **found.arguments(), **_OLD}


class Guard(NamedTuple):
    """Under which circumstances an update is carried out: the fence, the states, and what else has to hold."""

    fence: Fence
    allowed: frozenset[State] = OPEN
    more: tuple[tuple[str, str, dict[str, Any]], ...] = ()
    """Comparisons: attribute, sign, value."""
    absent: tuple[str, ...] = ()
    """Attributes that must not be there."""
    revision: int | None = None
    """The record must not have changed at all since it had this revision."""


def update(table: str, record_id: bytes, fields: Fields, guard: Guard, copy: dict[str, str] | None = None) -> Request:
    """Set, remove and copy attributes of a record, if the guard holds."""
    fitting(fields)
    found = Expression()
    sets = [f"{found.name(name)} = {found.value(value)}" for name, value in present(fields).items()]
    sets += [f"{found.name(to)} = {found.name(source)}" for to, source in (copy or {}).items()]
    gone = [found.name(name) for name, value in fields.items() if value is None]
    expression = f"SET {', '.join(sets)}" if sets else ""
    if gone:
        expression += f" REMOVE {', '.join(gone)}"
    expression += f" ADD {found.name('rev')} {found.value(number(1))}"
    arguments = {
        "TableName": table,
        "Key": {"id": raw(record_id)},
        "UpdateExpression": expression.strip(),
        "ConditionExpression": " AND ".join(_conditions(found, guard)),
    }
    return Request("update_item", {**arguments, **found.arguments(), **_OLD})


def _conditions(found: Expression, guard: Guard) -> list[str]:
    conditions = fenced(found, guard.fence)
    conditions.append(states(found, guard.allowed))
    conditions += [found.compare(*comparison) for comparison in guard.more]
    conditions += [f"attribute_not_exists({found.name(name)})" for name in guard.absent]
    if guard.revision is not None:
        conditions.append(found.compare("rev", "=", number(guard.revision)))
    return conditions


def delete_expired(table: str, record_id: bytes, judged: int, ended_by: int) -> Request:
    found = Expression()
    expired, ended = found.compare("expires", "<=", number(judged)), found.compare("lease", "<=", number(ended_by))
    condition = f"{expired} AND {ended}"
    arguments = {"TableName": table, "Key": {"id": raw(record_id)}, "ConditionExpression": condition}
    return Request("delete_item", {**arguments, **found.arguments(), **_OLD})


def query(table: str, shelf: str, *, before: int | None = None, after: int | None = None, **more: Any) -> Request:
    """What is on one shelf of the index; of it, what expires up to `before`, or after `after`."""
    found = Expression()
    condition = found.compare("shelf", "=", {"S": shelf})
    if before is not None:
        condition += f" AND {found.compare('expires', '<=', number(before))}"
    if after is not None:
        condition += f" AND {found.compare('expires', '>', number(after))}"
    lapsed = more.pop("lapsed_at", None)
    if lapsed is not None:
        more["FilterExpression"] = found.compare("lease", "<=", number(lapsed))
    arguments = {"TableName": table, "IndexName": INDEX, "KeyConditionExpression": condition}
    return Request("query", {**arguments, **found.arguments(), **_given(more)})


def scan(table: str, wanted: dict[str, str], **more: Any) -> Request:
    """Every item, of which those are shown that have these texts."""
    found = Expression()
    conditions = [_same(found, name, value) for name, value in wanted.items()]
    if conditions:
        more |= {"FilterExpression": " AND ".join(conditions), **found.arguments()}
    return Request("scan", {"TableName": table, "ConsistentRead": True, **_given(more)})


def _same(found: Expression, name: str, value: str) -> str:
    if not value:  # what is empty is left out of an item
        return f"attribute_not_exists({found.name(name)})"
    return found.compare(name, "=", {"S": value})


def _given(more: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in more.items() if value is not None}
