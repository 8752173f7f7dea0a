"""What to send for each operation and how to read what comes back: once, for both colours.

A plan yields `Call`s and is sent their responses. The common operations are one call; those that go over all
buckets, or over more records than one call should hold the server up for, are several.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.core.moves import born
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Forget,
    List,
    Lookup,
    LookupReply,
    Op,
    Page,
    Reap,
    Release,
    Renew,
    Resolve,
    Stats,
    StatsReply,
    Suspect,
)
from retrysafe.core.records import Fence, Record
from retrysafe.core.states import State
from retrysafe.errors import StoreError, UsageError
from retrysafe.stores.base import Plan, R
from retrysafe.stores.redis.layout import FIELDS, MAX_BUCKETS, VERSION, Layout, Script, script
from retrysafe.stores.redis.rows import answer_parts, newborn, number, record, text

STRETCH = 1000
"""How many records one call looks at, at most: a millisecond or so of a server that serves one at a time."""

MIGRATION = "0001_layout"


class Call(NamedTuple):
    """One run of one script."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]

    def command(self) -> tuple[bytes, ...]:
        return (b"EVALSHA", self.script.sha, number(len(self.keys)), *self.keys, *self.args)


def plan(op: Op[R], layout: Layout) -> Plan[Call, R]:
    chosen: Plan[Call, R] = _PLANS[type(op)](op, layout)
    return chosen


def migration(layout: Layout) -> Plan[Call, list[str]]:
    """Write down the layout, or find it written; refuse one that is not ours."""
    args = (number(VERSION), secrets.token_hex(16).encode(), number(layout.buckets))
    created, version, buckets = yield Call(script("meta"), (layout.meta,), args)
    if version != args[0]:
        raise StoreError(
            f"the records under {layout.prefix!r} have layout {version!r}, this retrysafe knows {VERSION}: "
            "upgrade retrysafe, or use another prefix"
        )
    if buckets != args[2]:
        raise UsageError(
            f"buckets={layout.buckets}, but the records under {layout.prefix!r} are spread over "
            f"{buckets.decode()}: use that number, or another prefix; it cannot change once there are records"
        )
    return [MIGRATION] if created else []


# One record -------------------------------------------------------------------------------------


def _claim(op: Claim, layout: Layout) -> Plan[Call, ClaimReply]:
    fixed = (op.token, text(str(op.fingerprint)), number(op.lease), op.on_lapse.encode())
    response = yield Call(script("claim"), layout.of(op.id), (*_head(op.now, op.id), *fixed, *newborn(op)))
    granted, now = response[0] == 1, int(response[1])
    if len(response) == 2:
        return ClaimReply(granted, born(op, now), now)
    return ClaimReply(granted, record(op.id, response[2:]), now)


def _lookup(op: Lookup, layout: Layout) -> Plan[Call, LookupReply]:
    response = yield Call(script("lookup"), layout.of(op.id), _head(op.now, op.id))
    found = record(op.id, response[1:]) if len(response) > 1 else None
    return LookupReply(found, int(response[0]))


def _fenced(name: str, op: Any, layout: Layout, *args: bytes) -> Plan[Call, bool]:
    head = (*_head(op.now, op.id), *_fence(op.fence))
    response = yield Call(script(name), layout.of(op.id), (*head, *args))
    return bool(response == 1)


def _renew(op: Renew, layout: Layout) -> Plan[Call, bool]:
    return _fenced("keep", op, layout, number(op.lease))


def _advance(op: Advance, layout: Layout) -> Plan[Call, bool]:
    fields = (b"point", text(op.point), b"progress", op.progress, b"on_lapse", op.on_lapse.encode())
    return _fenced("keep", op, layout, number(op.lease), *fields)


def _complete(op: Complete, layout: Layout) -> Plan[Call, bool]:
    return _fenced("settle", op, layout, b"completed", b"", b"", *answer_parts(op.answer))


def _release(op: Release, layout: Layout) -> Plan[Call, bool]:
    return _fenced("settle", op, layout, b"released", b"", text(op.note))


def _resolve(op: Resolve, layout: Layout) -> Plan[Call, bool]:
    if op.answer is None:
        return _fenced("settle", op, layout, b"released", b"uncertain", text(op.note))
    parts = answer_parts(op.answer)
    return _fenced("settle", op, layout, b"completed", b"uncertain", text(op.note), *parts)


def _suspect(op: Suspect, layout: Layout) -> Plan[Call, bool]:
    return _fenced("suspect", op, layout, text(op.note), b"1" if op.lapsed_only else b"")


def _forget(op: Forget, layout: Layout) -> Plan[Call, bool]:
    return _fenced("forget", op, layout)


# Many records -----------------------------------------------------------------------------------


def _reap(op: Reap, layout: Layout) -> Plan[Call, int]:
    """Counts the records deleted, and those the server had expired by itself whose names were still kept."""
    went = 0
    for bucket in range(layout.buckets):
        while went < op.limit:
            asked = min(op.limit - went, STRETCH)
            gone = yield Call(script("reap"), layout.bucket(bucket), (*_head(op.now), number(asked)))
            went += gone
            if gone < asked:
                break
    return went


def _list(op: List, layout: Layout) -> Plan[Call, Page]:
    """One page, of at least one record unless there are no more."""
    if op.lapsed and op.state not in (None, State.CLAIMED):
        return Page((), "")
    state = State.CLAIMED if op.lapsed else op.state
    filters = _filters(op, state)
    index = b"" if state is None else state.value.encode()
    bucket, after = _position(op.cursor, layout)
    while bucket < layout.buckets:
        where = (after.encode(), number(op.limit), number(STRETCH), index, b"1" if op.lapsed else b"")
        last, *rows = yield Call(script("list"), layout.bucket(bucket), (*_head(op.now), *where, *filters))
        after = last.decode()
        if not after:
            bucket += 1
        if rows:
            more = f"{bucket}:{after}" if bucket < layout.buckets else ""
            return Page(tuple(_listed(member, values) for member, *values in rows), more)
    return Page((), "")


def _listed(member: bytes, values: list[bytes | None]) -> Record:
    return record(bytes.fromhex(member.decode()), values)


def _filters(op: List, state: State | None) -> tuple[bytes, ...]:
    """Pairs of a field's place and the value it must have."""
    wanted = (
        ("namespace", op.namespace),
        ("state", None if state is None else state.value),
        ("kind", op.kind),
        ("scope", op.scope),
    )
    pairs = ((number(FIELDS.index(field) + 1), text(value)) for field, value in wanted if value is not None)
    return tuple(part for pair in pairs for part in pair)


def _position(cursor: str, layout: Layout) -> tuple[int, str]:
    """A cursor is `bucket:id`; the id is empty where a bucket begins."""
    if not cursor:
        return 0, ""
    bucket, colon, after = cursor.partition(":")
    try:
        bytes.fromhex(after)
        place = int(bucket)
    except ValueError:
        place = -1
    if not colon or not 0 <= place < min(layout.buckets, MAX_BUCKETS):
        raise UsageError(
            f"cursor {cursor!r} is not one of this store's: pass the cursor of the last page, or '' to begin"
        )
    return place, after


def _stats(op: Stats, layout: Layout) -> Plan[Call, StatsReply]:
    now, sums = 0, [0] * 6
    for bucket in range(layout.buckets):
        moment, *counts = yield Call(script("stats"), layout.bucket(bucket), _head(op.now))
        now = max(now, int(moment)) if bucket else int(moment)
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
    claimed, released, completed, uncertain, lapsed, expired = sums
    return StatsReply(claimed, released, completed, uncertain, lapsed, expired, now)


def _head(now: int | None, record_id: bytes = b"") -> tuple[bytes, bytes]:
    """How every script's arguments begin: the moment (empty: the server's clock), the name in the indexes."""
    return (b"" if now is None else number(now)), record_id.hex().encode()


def _fence(fence: Fence) -> tuple[bytes, bytes]:
    return number(fence.attempt), fence.token


_PLANS: dict[type[Any], Callable[[Any, Layout], Plan[Call, Any]]] = {
    Claim: _claim,
    Renew: _renew,
    Advance: _advance,
    Complete: _complete,
    Release: _release,
    Suspect: _suspect,
    Resolve: _resolve,
    Forget: _forget,
    Lookup: _lookup,
    Reap: _reap,
    List: _list,
    Stats: _stats,
}
