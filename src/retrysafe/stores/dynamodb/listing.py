"""Operations on many records: list, count, reap.

A listing of one state reads the index by state, and then the records with consistent reads. The index is eventually
consistent, so a record that has just changed may be missing or appear late; a record that does not change is listed.
A listing of all states scans the whole table instead, because a record that changes its state could be missed between
two states of the index.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from retrysafe.core.backlog import Backlog, BacklogReply, group_open
from retrysafe.core.moves import KEPT_AFTER_COMPLETION_MICROS, reapable
from retrysafe.core.ops import List, Op, Page, Reap, Stats, StatsReply
from retrysafe.core.records import Record
from retrysafe.core.states import OPEN, SETTLED, State
from retrysafe.core.times import FOREVER_MICROS
from retrysafe.errors import UsageError
from retrysafe.stores.base import read_page
from retrysafe.stores.dynamodb.items import SHARD_COUNT, Item, from_item, shelf_name
from retrysafe.stores.dynamodb.plans import Plan, TableRef, read_clock
from retrysafe.stores.dynamodb.requests import ConditionFailed, DynamoRequest, delete_expired, get_many, query, scan

MAX_PAGE_REQUESTS = 20
"""After this many requests a page is returned even if it is not full, with a cursor to continue."""

MAX_GET_ITEMS = 100
"""DynamoDB's limit for one BatchGetItem."""

MAX_PARALLEL_DELETES = 16
"""How many deletions are sent at once."""


# List -----------------------------------------------------------------------------------------------------------------


class Cursor(NamedTuple):
    """Where the next page begins: the number of the index partition (0 in a scan of the table), and the last key
    read."""

    shelf: int
    key: Item | None


def read_cursor(text: str) -> Cursor:
    if not text:
        return Cursor(0, None)
    try:
        shelf, key = json.loads(bytes.fromhex(text))
        return Cursor(shelf, None if key is None else {name: _decode_key_value(value) for name, value in key.items()})
    except (ValueError, TypeError, AttributeError) as error:
        raise UsageError(f"cursor {text[:40]!r} is not one of this store's: begin without one") from error


def write_cursor(cursor: Cursor) -> str:
    key = None if cursor.key is None else {name: _encode_key_value(value) for name, value in cursor.key.items()}
    return json.dumps([cursor.shelf, key]).encode().hex()


def _encode_key_value(value: dict[str, Any]) -> dict[str, Any]:
    return {kind: bytes(content).hex() if kind == "B" else content for kind, content in value.items()}


def _decode_key_value(value: dict[str, Any]) -> dict[str, Any]:
    return {kind: bytes.fromhex(content) if kind == "B" else content for kind, content in value.items()}


def list_records(op: List, ref: TableRef) -> Plan[Page]:
    judged = read_clock(op, ref).judged
    if (op.lapsed and op.state not in (None, State.CLAIMED)) or (op.resting and op.state not in (None, State.RELEASED)):
        return Page((), "")
    if op.lapsed and op.resting:
        return Page((), "")
    one_state = op.lapsed or op.resting or op.state is not None
    read_some = _build_index_reader(op, ref, judged) if one_state else _build_table_reader(op, ref)
    found: list[Record] = []
    damaged: list[bytes] = []
    cursor = read_cursor(op.cursor)
    for _ in range(MAX_PAGE_REQUESTS):
        items, following = yield from read_some(cursor, op.limit - len(found))
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


def _build_table_reader(op: List, ref: TableRef) -> PageReader:
    wanted = {"ns": op.namespace, "kind": op.kind, "scope": op.scope}
    texts = {name: value for name, value in wanted.items() if value is not None}

    def read_some(cursor: Cursor, limit: int) -> Plan[tuple[list[Item], Cursor | None]]:
        found = yield scan(ref.table, texts, Limit=limit, ExclusiveStartKey=cursor.key)
        last = found.get("LastEvaluatedKey")
        return list(found["Items"]), None if last is None else Cursor(0, last)

    return read_some


def _build_index_reader(op: List, ref: TableRef, judged: int) -> PageReader:
    state = op.state or (State.RELEASED if op.resting else State.CLAIMED)

    def read_some(cursor: Cursor, limit: int) -> Plan[tuple[list[Item], Cursor | None]]:
        found = yield query(
            ref.table,
            shelf_name(state, cursor.shelf),
            lapsed_at=judged if op.lapsed else None,
            # A record released at a recovery point never expires, so it is at the end of its index partition.
            after=FOREVER_MICROS - 1 if op.resting else None,
            Limit=limit,
            ExclusiveStartKey=cursor.key,
        )
        items = yield from read_all(ref, [item["id"]["B"] for item in found["Items"]])
        last = found.get("LastEvaluatedKey")
        if last is not None:
            return items, Cursor(cursor.shelf, last)
        return items, Cursor(cursor.shelf + 1, None) if cursor.shelf + 1 < SHARD_COUNT else None

    return read_some


def read_all(ref: TableRef, ids: Sequence[bytes]) -> Plan[list[Item]]:
    """The items in the order of their ids. An item that was deleted meanwhile is left out."""
    items: dict[bytes, Item] = {}
    for start in range(0, len(ids), MAX_GET_ITEMS):
        request = get_many(ref.table, ids[start : start + MAX_GET_ITEMS])
        while True:
            found = yield request
            items |= {bytes(item["id"]["B"]): item for item in found["Responses"].get(ref.table, ())}
            unprocessed = found.get("UnprocessedKeys")
            if not unprocessed:
                break
            request = DynamoRequest("batch_get_item", {"RequestItems": unprocessed})
    return [items[bytes(each)] for each in ids if bytes(each) in items]


def matches_list(record: Record, op: List, now: int) -> bool:
    """True if the record, as it is now, matches the listing."""
    wanted = {"namespace": op.namespace, "state": op.state, "kind": op.kind, "scope": op.scope}
    same = all(getattr(record, name) == value for name, value in wanted.items() if value is not None)
    if op.state is State.RELEASED and record.expired(now):
        return False
    resting = record.state is State.RELEASED and record.point != ""
    return same and (not op.lapsed or record.lapsed(now)) and (not op.resting or resting)


# Stats ----------------------------------------------------------------------------------------------------------------


class IndexCount(NamedTuple):
    """A COUNT query on the index, and the fields of StatsReply to which its numbers are added."""

    scanned: str
    """The field for the records that the query read."""
    matched: str
    """The field for the records that passed its filter; empty for none."""
    request: DynamoRequest


def build_counts(ref: TableRef, judged: int) -> Iterator[IndexCount]:
    for shard in range(SHARD_COUNT):
        shelf = shelf_name(State.CLAIMED, shard)
        yield IndexCount("claimed", "lapsed", query(ref.table, shelf, Select="COUNT", lapsed_at=judged))
        shelf = shelf_name(State.UNCERTAIN, shard)
        yield IndexCount("uncertain", "", query(ref.table, shelf, Select="COUNT"))
        for state in sorted(SETTLED, key=lambda each: each.value):
            shelf = shelf_name(state, shard)
            reapable = query(ref.table, shelf, Select="COUNT", before=judged, lapsed_at=reap_cutoff(judged))
            yield IndexCount(state.value, "expired", reapable)
            yield IndexCount(state.value, "", query(ref.table, shelf, Select="COUNT", after=judged))


def stats(op: Stats, ref: TableRef) -> Plan[StatsReply]:
    now, judged = read_clock(op, ref)
    if op.namespace is not None:
        return (yield from _stats_of(op.namespace, ref, now, judged))
    total = dict.fromkeys(("claimed", "released", "completed", "uncertain", "lapsed", "expired", ""), 0)
    counts = list(build_counts(ref, judged))
    while counts:
        replies = yield [each.request for each in counts]
        more = []
        for each, reply in zip(counts, replies, strict=True):
            total[each.scanned] += reply["ScannedCount"]
            total[each.matched] += reply["Count"]
            if "LastEvaluatedKey" in reply:
                arguments = {**each.request.arguments, "ExclusiveStartKey": reply["LastEvaluatedKey"]}
                more.append(each._replace(request=DynamoRequest("query", arguments)))
        counts = more
    del total[""]
    return StatsReply(**total, now=now)


def _stats_of(namespace: str, ref: TableRef, now: int, judged: int) -> Plan[StatsReply]:
    """Count one namespace's records. The index has no namespaces, so this scans the table, page by page. It is meant
    for people, not for a request path (core/ops.py)."""
    total = dict.fromkeys(("claimed", "released", "completed", "uncertain", "lapsed", "expired"), 0)
    start: Item | None = None
    while True:
        found = yield scan(ref.table, {"ns": namespace}, ExclusiveStartKey=start)
        records, _ = read_page(found["Items"], from_item, lambda item: bytes(item["id"]["B"]))
        for record in records:
            total[record.state.value] += 1
            total["lapsed"] += record.lapsed(judged)
            total["expired"] += reapable(record, judged)
        start = found.get("LastEvaluatedKey")
        if start is None:
            return StatsReply(**total, now=now)


# Backlog --------------------------------------------------------------------------------------------------------------


def backlog(op: Backlog, ref: TableRef) -> Plan[BacklogReply]:
    """Read the open records by the index, and count them here: the index holds neither kinds nor targets."""
    now, judged = read_clock(op, ref)
    opened: list[Record] = []
    for state in sorted(OPEN, key=lambda each: each.value):
        opened += yield from _read_shelves(op, ref, state)
    expired: list[Record] = []
    for state in sorted(SETTLED, key=lambda each: each.value):
        expired += yield from _read_shelves(op, ref, state, before=judged, lapsed_at=reap_cutoff(judged))
    due = sorted(record.expires for record in expired if reapable(record, judged))
    truncated = max(len(opened), len(due)) >= op.limit
    oldest = due[0] if due else 0
    return BacklogReply(group_open(opened, judged), min(len(due), op.limit), oldest, truncated, now)


def _read_shelves(op: Backlog, ref: TableRef, state: State, **due: int) -> Plan[list[Record]]:
    """The records in one state, up to the limit."""
    found: list[Record] = []
    for shard in range(SHARD_COUNT):
        start: Item | None = None
        while len(found) < op.limit:
            limit = min(MAX_GET_ITEMS, op.limit - len(found))
            page = yield query(ref.table, shelf_name(state, shard), Limit=limit, ExclusiveStartKey=start, **due)
            items = yield from read_all(ref, [item["id"]["B"] for item in page["Items"]])
            records, _ = read_page(items, from_item, lambda item: bytes(item["id"]["B"]))
            found += [each for each in records if each.state is state and op.namespace in (None, each.namespace)]
            start = page.get("LastEvaluatedKey")
            if start is None:
                break
    return found


# Reap -----------------------------------------------------------------------------------------------------------------


def reap(op: Reap, ref: TableRef) -> Plan[int]:
    """Delete records that have expired by the index, on the condition that the record itself says so too."""
    judged = read_clock(op, ref).judged
    reaped = 0
    for state in sorted(SETTLED, key=lambda each: each.value):
        for shard in range(SHARD_COUNT):
            reaped += yield from _reap_shelf(shelf_name(state, shard), ref, judged, op.limit - reaped, op.namespace)
    return reaped


def reap_cutoff(judged: int) -> int:
    """The latest end of a record that may be reaped. The `lease` of a settled record is the time of its end. Only a
    withdrawn record expires sooner than an hour after its end."""
    return judged - KEPT_AFTER_COMPLETION_MICROS


def _reap_shelf(shelf: str, ref: TableRef, judged: int, limit: int, namespace: str | None) -> Plan[int]:
    reaped, start = 0, None
    while reaped < limit:
        due = {"before": judged, "lapsed_at": reap_cutoff(judged)}
        found = yield query(ref.table, shelf, **due, Limit=limit - reaped, ExclusiveStartKey=start)
        ids = [bytes(item["id"]["B"]) for item in found["Items"]]
        if namespace is not None:
            ids = yield from _filter_namespace(namespace, ref, ids)
        for start_at in range(0, len(ids), MAX_PARALLEL_DELETES):
            requests = [
                delete_expired(ref.table, each, judged, reap_cutoff(judged))
                for each in ids[start_at : start_at + MAX_PARALLEL_DELETES]
            ]
            replies = yield requests
            reaped += sum(not isinstance(reply, ConditionFailed) for reply in replies)
        start = found.get("LastEvaluatedKey")
        if start is None:
            break
    return reaped


def _filter_namespace(namespace: str, ref: TableRef, ids: Sequence[bytes]) -> Plan[list[bytes]]:
    """The ids of records that belong to this namespace."""
    items = yield from read_all(ref, ids)
    return [bytes(item["id"]["B"]) for item in items if item.get("ns", {}).get("S", "") == namespace]


WHOLE_TABLE_PLANS: dict[type[Op[Any]], Callable[[Any, TableRef], Plan[Any]]] = {
    List: list_records,
    Stats: stats,
    Backlog: backlog,
    Reap: reap,
}
