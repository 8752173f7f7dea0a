"""The script calls of each operation, and how to read their responses. Sync and async stores share them.

An operation on one record is one script call. An operation on all buckets, or on more records than one call should
block the server for, is a plan that yields several calls.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.core.backlog import Backlog
from retrysafe.core.moves import build_new_record, reapable
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
    Withdraw,
)
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import StoreError, UsageError
from retrysafe.stores.base import Plan, R, read_page
from retrysafe.stores.redis.layout import LAPSE_CODES, LAYOUT_VERSION, STATE_CODES, Layout, LuaScript, load_script
from retrysafe.stores.redis.rows import (
    BORN_PARTS,
    encode_alternatives,
    encode_answer,
    encode_born,
    encode_number,
    encode_point,
    encode_text,
    read_met_record,
    read_record,
)

MAX_SCAN_RECORDS = 1000
"""The most records that one call reads: about a millisecond. The server runs one script at a time."""

MIGRATION_NAME = "0001_layout"

_CURSOR = re.compile(r"(?P<bucket>[0-9]{1,3}):(?P<after>-?[0-9]{1,16}:[0-9a-f]+)?")


class ScriptCall(NamedTuple):
    """One run of one script. `keys`: the two indexes, then the record or bucket. `args`: the time, then the script's
    own."""

    script: LuaScript
    keys: tuple[bytes, ...]
    args: tuple[bytes, ...]

    def build_command(self) -> tuple[bytes, ...]:
        return (b"EVALSHA", self.script.sha, encode_number(len(self.keys)), *self.keys, *self.args)


def plan_operation(op: Op[R], layout: Layout) -> Plan[ScriptCall, R]:
    kind = type(op)
    ask = CALLS.get(kind)
    if ask is None:
        several: Plan[ScriptCall, R] = _MULTI_CALL_PLANS[kind](op, layout)
        return several
    return _plan_call(op, ask(op, layout), READERS.get(kind, read_done))


def _plan_call(op: Op[R], call: ScriptCall, read: Callable[..., Any]) -> Plan[ScriptCall, R]:
    reply: R = read(op, (yield call))
    return reply


def plan_migration(layout: Layout) -> Plan[ScriptCall, list[str]]:
    """Store the layout's version and bucket count, or compare them with the stored ones and refuse a mismatch."""
    args = (encode_number(LAYOUT_VERSION), secrets.token_hex(16).encode(), encode_number(layout.buckets))
    created, version, buckets = yield ScriptCall(load_script("meta"), (layout.meta,), args)
    if version != args[0]:
        raise StoreError(
            f"the records under {layout.prefix!r} have layout {version!r}, this retrysafe knows {LAYOUT_VERSION}: "
            "upgrade retrysafe, or use another prefix"
        )
    if buckets != args[2]:
        raise UsageError(
            f"buckets={layout.buckets}, but the records under {layout.prefix!r} are spread over "
            f"{buckets.decode()}: use that number, or another prefix; it cannot change once there are records"
        )
    return [MIGRATION_NAME] if created else []


# One record -------------------------------------------------------------------------------------


def _claim(op: Claim, layout: Layout) -> ScriptCall:
    lapse = LAPSES[op.on_lapse]
    born_with = (encode_number(op.retention), encode_born(op), op.resumes or op.input, encode_alternatives(op))
    return ScriptCall(
        load_script("claim"),
        layout.record_keys(op.id),
        (encode_moment(op.now), op.token, encode_number(op.lease), lapse, *born_with),
    )


def _read_claim(op: Claim, response: Any, sent: bytes = b"") -> ClaimReply:
    """`sent` are the fixed fields as the claim has sent them, if they are still there (`read_met_record`)."""
    if isinstance(response, int):
        return ClaimReply(True, build_new_record(op, response), response)
    granted, now, *found = response
    return ClaimReply(granted == 1, read_met_record(op, found, sent) if found else None, now)


def _lookup(op: Lookup, layout: Layout) -> ScriptCall:
    return ScriptCall(load_script("lookup"), layout.record_keys(op.id), (encode_moment(op.now),))


def _read_lookup(op: Lookup, response: Any, sent: bytes = b"") -> LookupReply:
    now, *found = response
    return LookupReply(read_record(op.id, found) if found else None, now)


def _fenced_call(name: str, op: Any, layout: Layout, *args: bytes) -> ScriptCall:
    attempt, token = op.fence
    return ScriptCall(
        load_script(name), layout.record_keys(op.id), (encode_moment(op.now), encode_number(attempt), token, *args)
    )


def read_done(op: Op[Any], response: Any, sent: bytes = b"") -> bool:
    """Read the response to a fenced operation: True if it was applied."""
    return bool(response == 1)


def _renew(op: Renew, layout: Layout) -> ScriptCall:
    return _fenced_call("keep", op, layout, encode_number(op.lease))


def _advance(op: Advance, layout: Layout) -> ScriptCall:
    point = (b"1" if op.point else b"0", encode_point(op.point, op.progress))
    return _fenced_call(
        "keep", op, layout, encode_number(op.lease), LAPSES[op.on_lapse], *point, encode_number(op.number)
    )


def _complete(op: Complete, layout: Layout) -> ScriptCall:
    return _fenced_call("settle", op, layout, _COMPLETED, _ANY_STATE, b"", encode_answer(op.answer))


def _release(op: Release, layout: Layout) -> ScriptCall:
    return _fenced_call("settle", op, layout, _RELEASED, _ANY_STATE, encode_text(op.note), b"")


def _withdraw(op: Withdraw, layout: Layout) -> ScriptCall:
    return _fenced_call("settle", op, layout, WITHDRAWN, _ANY_STATE, encode_text(op.note), b"")


def _resolve(op: Resolve, layout: Layout) -> ScriptCall:
    if op.answer is None:
        return _fenced_call("settle", op, layout, _RELEASED, _UNCERTAIN, encode_text(op.note), b"")
    return _fenced_call("settle", op, layout, _COMPLETED, _UNCERTAIN, encode_text(op.note), encode_answer(op.answer))


def _suspect(op: Suspect, layout: Layout) -> ScriptCall:
    return _fenced_call("suspect", op, layout, encode_text(op.note), b"1" if op.lapsed_only else b"")


def _forget(op: Forget, layout: Layout) -> ScriptCall:
    return _fenced_call("forget", op, layout)


def encode_moment(now: int | None) -> bytes:
    """The first argument of every script: the time, or empty for the server's clock."""
    return b"" if now is None else encode_number(now)


LAPSES = {name: encode_number(code) for name, code in LAPSE_CODES.items()}
_STATES = {state: encode_number(code) for state, code in STATE_CODES.items()}
_RELEASED, _COMPLETED, _UNCERTAIN = _STATES[State.RELEASED], _STATES[State.COMPLETED], _STATES[State.UNCERTAIN]
_ANY_STATE = b"0"
WITHDRAWN = b"5"
"""Not a state. settle.lua stores such a record as released, and lets it expire at once where that is allowed."""

CALLS: dict[type[Any], Callable[[Any, Layout], ScriptCall]] = {
    Claim: _claim,
    Renew: _renew,
    Advance: _advance,
    Complete: _complete,
    Release: _release,
    Withdraw: _withdraw,
    Suspect: _suspect,
    Resolve: _resolve,
    Lookup: _lookup,
    Forget: _forget,
}

READERS: dict[type[Any], Callable[..., Any]] = {Claim: _read_claim, Lookup: _read_lookup}
"""How to read responses that are more than yes or no. All others use `read_done`."""


# Many records -----------------------------------------------------------------------------------


def _reap(op: Reap, layout: Layout) -> Plan[ScriptCall, int]:
    """Reap all buckets. The count includes index entries of records that the server had already expired by itself."""
    reaped = 0
    namespace = () if op.namespace is None else (encode_text(op.namespace),)
    for bucket in range(layout.buckets):
        skip, more = 0, 1
        while reaped < op.limit and more:
            limit = encode_number(min(op.limit - reaped, MAX_SCAN_RECORDS))
            arguments = (encode_moment(op.now), limit, encode_number(skip), *namespace)
            removed, skipped, more = yield ScriptCall(load_script("reap"), layout.bucket_keys(bucket), arguments)
            reaped, skip = reaped + removed, skip + skipped
    return reaped


def _list(op: List, layout: Layout) -> Plan[ScriptCall, Page]:
    """Read one page. It has at least one record unless no more records match, or `examine` is reached."""
    if (op.lapsed and op.state not in (None, State.CLAIMED)) or (op.resting and op.state not in (None, State.RELEASED)):
        return Page((), "")
    if op.lapsed and op.resting:
        return Page((), "")
    state = State.CLAIMED if op.lapsed else State.RELEASED if op.resting else op.state
    only = b"lapsed" if op.lapsed else b"resting" if op.resting else b""
    filters = _list_filters(op)
    index = _ANY_STATE if state is None else _STATES[state]
    bucket, after = _parse_cursor(op.cursor, layout)
    stretch, examined = min(op.examine or MAX_SCAN_RECORDS, MAX_SCAN_RECORDS), 0
    while bucket < layout.buckets:
        moment, _, name = after.partition(":")
        where = (moment.encode(), name.encode(), encode_number(op.limit), encode_number(stretch), index, only)
        last, *rows = yield ScriptCall(
            load_script("list"), layout.bucket_keys(bucket), (encode_moment(op.now), *where, *filters)
        )
        after = last.decode()
        if not after:
            bucket += 1
        if rows:
            more = f"{bucket}:{after}" if bucket < layout.buckets else ""
            page, unreadable = read_page(rows, _read_listed, lambda row: bytes.fromhex(row[0].decode()))
            return Page(page, more, unreadable)
        examined += stretch if after else 1
        if op.examine and examined >= op.examine and bucket < layout.buckets:
            return Page((), f"{bucket}:{after}")
    return Page((), "")


def _read_listed(row: list[bytes]) -> Record:
    member, *found = row
    return read_record(bytes.fromhex(member.decode()), found)


def _list_filters(op: List) -> tuple[bytes, ...]:
    """The filters of list.lua: pairs of a part's number in field `b` and the value it must have."""
    wanted = (("namespace", op.namespace), ("kind", op.kind), ("scope", op.scope))
    pairs = (
        (encode_number(BORN_PARTS.index(part) + 1), encode_text(value)) for part, value in wanted if value is not None
    )
    return tuple(each for pair in pairs for each in pair)


def _parse_cursor(cursor: str, layout: Layout) -> tuple[int, str]:
    """Parse `bucket:time:id` of the last record seen. `bucket:` alone means the start of a bucket."""
    if not cursor:
        return 0, ""
    found = _CURSOR.fullmatch(cursor)
    if found is None or int(found["bucket"]) >= layout.buckets:
        raise UsageError(
            f"cursor {cursor!r} is not one of this store's: pass the cursor of the last page, or '' to begin"
        )
    return int(found["bucket"]), found["after"] or ""


def _stats_of(op: Stats, layout: Layout) -> Plan[ScriptCall, StatsReply]:
    """Count one namespace's records. The index has no namespaces, so this reads every record, page by page. It is meant
    for people, not for a request path (core/ops.py)."""
    now, *_ = yield ScriptCall(load_script("stats"), layout.bucket_keys(0), (encode_moment(op.now),))
    total = dict.fromkeys(("claimed", "released", "completed", "uncertain", "lapsed", "expired"), 0)
    page = Page((), "")
    while True:
        page = yield from _list(
            List(namespace=op.namespace, cursor=page.cursor, limit=MAX_SCAN_RECORDS, now=now), layout
        )
        for found in page.records:
            total[found.state.value] += 1
            total["lapsed"] += found.lapsed(now)
            total["expired"] += reapable(found, now)
        if not page.cursor:
            return StatsReply(**total, now=now)


def _stats(op: Stats, layout: Layout) -> Plan[ScriptCall, StatsReply]:
    if op.namespace is not None:
        return (yield from _stats_of(op, layout))
    now, sums = 0, [0] * 6
    for bucket in range(layout.buckets):
        moment, *counts = yield ScriptCall(load_script("stats"), layout.bucket_keys(bucket), (encode_moment(op.now),))
        now = max(now, moment) if bucket else moment
        sums = [total + count for total, count in zip(sums, counts, strict=True)]
    claimed, released, completed, uncertain, lapsed, expired = sums
    return StatsReply(claimed, released, completed, uncertain, lapsed, expired, now)


def _backlog(op: Any, layout: Layout) -> Plan[ScriptCall, Any]:
    from retrysafe.stores.redis.backlog import plan_backlog  # only people and the worker need it

    return plan_backlog(op, layout)


_MULTI_CALL_PLANS: dict[type[Any], Callable[[Any, Layout], Plan[ScriptCall, Any]]] = {
    Reap: _reap,
    List: _list,
    Stats: _stats,
    Backlog: _backlog,
}
