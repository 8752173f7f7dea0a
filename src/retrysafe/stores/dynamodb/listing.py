"""Everything at once: listing, counting, reaping.

A listing of one state reads the index by state and then the records themselves, consistently. The index follows the
table within moments, so what changed just now may be missing or shown late; what stays is shown. A listing of all
states reads the whole table instead: between two states of the index a moving record could be missed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from retrysafe.core.moves import KEPT_AFTER_COMPLETION_MICROS, reapable
from retrysafe.core.ops import List, Op, Page, Reap, Stats, StatsReply
from retrysafe.core.records import Record
from retrysafe.core.states import SETTLED, State
from retrysafe.core.times import FOREVER_MICROS
from retrysafe.errors import UsageError
from retrysafe.stores.base import read_page
from retrysafe.stores.dynamodb.items import SHARD_COUNT, Item, from_item, shelf_name
from retrysafe.stores.dynamodb.plans import Plan, TableRef, read_clock
from retrysafe.stores.dynamodb.requests import ConditionFailed, DynamoRequest, delete_expired, get_many, query, scan

MAX_PAGE_REQUESTS = 20
"""A page that is still not full after so many looks is given as it is, with the place to go on."""

MAX_GET_ITEMS = 100
"""As many records as one request may ask for."""

MAX_PARALLEL_DELETES = 16
"""Deletions that go out at once."""


# List -----------------------------------------------------------------------------------------------------------------


class Cursor(NamedTuple):
    """Where the next page begins: which shelf (-1: the table), and after which key."""

    shelf: int
    key: Item | None


def read_cursor(text: str) -> Cursor:
    if not text:
        return Cursor(0, None)
    try:
        shelf, key = json.loads(bytes.fromhex(text))
        return Cursor(shelf, None if key is None else {name: _decode_key_value(value) for name, value in key.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"cursor {text[:40]!r} is none of ours: begin without one") from error


def write_cursor(cursor: Cursor) -> str:
    key = None if cursor.key is None else {name: _encode_key_value(value) for name, value in cursor.key.items()}
    return json.dumps([cursor.shelf, key]).encode().hex()


def _encode_key_value(value: dict[str, Any]) -> dict[str, Any]:
    return {kind: bytes(held).hex() if kind == "B" else held for kind, held in value.items()}


def _decode_key_value(value: dict[str, Any]) -> dict[str, Any]:
    return {kind: bytes.fromhex(held) if kind == "B" else held for kind, held in value.items()}


def list_records(op: List, place: TableRef) -> Plan[Page]:
    judged = read_clock(op, place).judged
    if (op.lapsed and op.state not in (None, State.CLAIMED)) or (op.resting and op.state not in (None, State.RELEASED)):
        return Page((), "")
    if op.lapsed and op.resting:
        return Page((), "")
    one_state = op.lapsed or op.resting or op.state is not None
    look = _build_index_reader(op, place, judged) if one_state else _build_table_reader(op, place)
    found: list[Record] = []
    damaged: list[bytes] = []
    cursor = read_cursor(op.cursor)
    for _ in range(MAX_PAGE_REQUESTS):
        items, following = yield from look(cursor, op.limit - len(found))
        records, unreadable = read_page(items, from_item, lambda item: bytes(item["id"]["B"]))
        found += [record for record in records if matches_list(record, op, judged)]
        damaged += unreadable
        if following is None:
            return Page(tuple(found), "", tuple(damaged))
        cursor = following
        if len(found) >= op.limit:
            break
    return Page(tuple(found), write_cursor(cursor), tuple(damaged))


PageReader = Callable[[Cursor, int], Plan[tuple[list[Item], Cursor | None]]]


def _build_table_reader(op: List, place: TableRef) -> PageReader:
    wanted = {"ns": op.namespace, "kind": op.kind, "scope": op.scope}
    texts = {name: value for name, value in wanted.items() if value is not None}

    def look(cursor: Cursor, limit: int) -> Plan[tuple[list[Item], Cursor | None]]:
        found = yield scan(place.table, texts, Limit=limit, ExclusiveStartKey=cursor.key)
        last = found.get("LastEvaluatedKey")
        return list(found["Items"]), None if last is None else Cursor(0, last)

    return look


def _build_index_reader(op: List, place: TableRef, judged: int) -> PageReader:
    state = op.state or (State.RELEASED if op.resting else State.CLAIMED)

    def look(cursor: Cursor, limit: int) -> Plan[tuple[list[Item], Cursor | None]]:
        found = yield query(
            place.table,
            shelf_name(state, cursor.shelf),
            lapsed_at=judged if op.lapsed else None,
            # What was released at a recovery point never expires: it stands at the end of its shelf.
            after=FOREVER_MICROS - 1 if op.resting else None,
            Limit=limit,
            ExclusiveStartKey=cursor.key,
        )
        items = yield from read_all(place, [item["id"]["B"] for item in found["Items"]])
        last = found.get("LastEvaluatedKey")
        if last is not None:
            return items, Cursor(cursor.shelf, last)
        return items, Cursor(cursor.shelf + 1, None) if cursor.shelf + 1 < SHARD_COUNT else None

    return look


def read_all(place: TableRef, ids: Sequence[bytes]) -> Plan[list[Item]]:
    """The items, in the order of their ids; one that has gone meanwhile is left out."""
    items: dict[bytes, Item] = {}
    for start in range(0, len(ids), MAX_GET_ITEMS):
        request = get_many(place.table, ids[start : start + MAX_GET_ITEMS])
        while True:
            found = yield request
            items |= {bytes(item["id"]["B"]): item for item in found["Responses"].get(place.table, ())}
            left = found.get("UnprocessedKeys")
            if not left:
                break
            request = DynamoRequest("batch_get_item", {"RequestItems": left})
    return [items[bytes(each)] for each in ids if bytes(each) in items]


def matches_list(record: Record, op: List, now: int) -> bool:
    """Whether a record, as it is now, is among those asked for."""
    wanted = {"namespace": op.namespace, "state": op.state, "kind": op.kind, "scope": op.scope}
    same = all(getattr(record, name) == value for name, value in wanted.items() if value is not None)
    if op.state is State.RELEASED and record.expired(now):
        return False
    resting = record.state is State.RELEASED and record.point != ""
    return same and (not op.lapsed or record.lapsed(now)) and (not op.resting or resting)


# Stats ----------------------------------------------------------------------------------------------------------------


class IndexCount(NamedTuple):
    """One question to the index, and which numbers of the reply its answer adds to."""

    seen: str
    passed: str
    request: DynamoRequest


def build_counts(place: TableRef, judged: int) -> Iterator[IndexCount]:
    for shard in range(SHARD_COUNT):
        shelf = shelf_name(State.CLAIMED, shard)
        yield IndexCount("claimed", "lapsed", query(place.table, shelf, Select="COUNT", lapsed_at=judged))
        shelf = shelf_name(State.UNCERTAIN, shard)
        yield IndexCount("uncertain", "", query(place.table, shelf, Select="COUNT"))
        for state in sorted(SETTLED, key=lambda each: each.value):
            shelf = shelf_name(state, shard)
            reapable = query(place.table, shelf, Select="COUNT", before=judged, lapsed_at=ended_by(judged))
            yield IndexCount(state.value, "expired", reapable)
            yield IndexCount(state.value, "", query(place.table, shelf, Select="COUNT", after=judged))


def stats(op: Stats, place: TableRef) -> Plan[StatsReply]:
    now, judged = read_clock(op, place)
    if op.namespace is not None:
        return (yield from _stats_of(op.namespace, place, now, judged))
    total = dict.fromkeys(("claimed", "released", "completed", "uncertain", "lapsed", "expired", ""), 0)
    asked = list(build_counts(place, judged))
    while asked:
        replies = yield [each.request for each in asked]
        more = []
        for each, reply in zip(asked, replies, strict=True):
            total[each.seen] += reply["ScannedCount"]
            total[each.passed] += reply["Count"]
            if "LastEvaluatedKey" in reply:
                arguments = {**each.request.arguments, "ExclusiveStartKey": reply["LastEvaluatedKey"]}
                more.append(each._replace(request=DynamoRequest("query", arguments)))
        asked = more
    del total[""]
    return StatsReply(**total, now=now)


def _stats_of(namespace: str, place: TableRef, now: int, judged: int) -> Plan[StatsReply]:
    """The index does not know whose a record is, so all are read, page by page. For people only (core/ops.py)."""
    total = dict.fromkeys(("claimed", "released", "completed", "uncertain", "lapsed", "expired"), 0)
    start: Item | None = None
    while True:
        found = yield scan(place.table, {"ns": namespace}, ExclusiveStartKey=start)
        records, _ = read_page(found["Items"], from_item, lambda item: bytes(item["id"]["B"]))
        for record in records:
            total[record.state.value] += 1
            total["lapsed"] += record.lapsed(judged)
            total["expired"] += reapable(record, judged)
        start = found.get("LastEvaluatedKey")
        if start is None:
            return StatsReply(**total, now=now)


# Reap -----------------------------------------------------------------------------------------------------------------


def reap(op: Reap, place: TableRef) -> Plan[int]:
    """Delete what the index says has expired, if the record itself says so too."""
    judged = read_clock(op, place).judged
    reaped = 0
    for state in sorted(SETTLED, key=lambda each: each.value):
        for shard in range(SHARD_COUNT):
            reaped += yield from _reap_shelf(shelf_name(state, shard), place, judged, op.limit - reaped, op.namespace)
    return reaped


def ended_by(judged: int) -> int:
    """When a record must have ended to be reaped: a settled one's lease ended with it. Only what was withdrawn expires
    sooner than an hour after its end."""
    return judged - KEPT_AFTER_COMPLETION_MICROS


def _reap_shelf(shelf: str, place: TableRef, judged: int, limit: int, namespace: str | None) -> Plan[int]:
    reaped, start = 0, None
    while reaped < limit:
        due = {"before": judged, "lapsed_at": ended_by(judged)}
        found = yield query(place.table, shelf, **due, Limit=limit - reaped, ExclusiveStartKey=start)
        ids = [bytes(item["id"]["B"]) for item in found["Items"]]
        if namespace is not None:
            ids = yield from _filter_namespace(namespace, place, ids)
        for place_in in range(0, len(ids), MAX_PARALLEL_DELETES):
            asked = [
                delete_expired(place.table, each, judged, ended_by(judged))
                for each in ids[place_in : place_in + MAX_PARALLEL_DELETES]
            ]
            replies = yield asked
            reaped += sum(not isinstance(reply, ConditionFailed) for reply in replies)
        start = found.get("LastEvaluatedKey")
        if start is None:
            break
    return reaped


def _filter_namespace(namespace: str, place: TableRef, ids: Sequence[bytes]) -> Plan[list[bytes]]:
    """Those of one application."""
    items = yield from read_all(place, ids)
    return [bytes(item["id"]["B"]) for item in items if item.get("ns", {}).get("S", "") == namespace]


WHOLE_TABLE_PLANS: dict[type[Op[Any]], Callable[[Any, TableRef], Plan[Any]]] = {
    List: list_records,
    Stats: stats,
    Reap: reap,
}
