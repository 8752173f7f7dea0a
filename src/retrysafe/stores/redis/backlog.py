"""`Backlog` in Redis: the heads of open records, read by the index of states and counted here. A call reads at most
MAX_SCAN_RECORDS, because the server runs one script at a time."""

from __future__ import annotations

from itertools import chain

from retrysafe.core.backlog import Backlog, BacklogReply, group_open
from retrysafe.core.moves import reapable
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import CorruptRecord
from retrysafe.stores.base import Plan
from retrysafe.stores.redis.commands import MAX_SCAN_RECORDS, ScriptCall, encode_moment
from retrysafe.stores.redis.layout import STATE_CODES, Layout, load_script
from retrysafe.stores.redis.rows import encode_number, read_record


def plan_backlog(op: Backlog, layout: Layout) -> Plan[ScriptCall, BacklogReply]:
    now, uncertain, cut = yield from _read_heads(op, layout, State.UNCERTAIN, due=False)
    later, claimed, cut_claimed = yield from _read_heads(op, layout, State.CLAIMED, due=False)
    _, completed, cut_completed = yield from _read_heads(op, layout, State.COMPLETED, due=True)
    _, released, cut_released = yield from _read_heads(op, layout, State.RELEASED, due=True)
    now = max(now, later)
    expired = [each.expires for each in chain(completed, released) if reapable(each, now)]
    passed = cut or cut_claimed or cut_completed or cut_released
    truncated = passed or len(uncertain) + len(claimed) >= op.limit or len(expired) >= op.limit
    groups = group_open(chain(uncertain, claimed), now)
    return BacklogReply(groups, min(len(expired), op.limit), min(expired, default=0), truncated, now)


def _read_heads(
    op: Backlog, layout: Layout, state: State, *, due: bool
) -> Plan[ScriptCall, tuple[int, list[Record], bool]]:
    """The store's time, the records in one state, up to the limit, and whether others were left unread: as many of each
    bucket are read as the limit says, whoever they belong to. They have only what `h` and `b` hold."""
    now, found, cut = 0, list[Record](), False
    which = (encode_number(STATE_CODES[state]), b"due" if due else b"")
    for bucket in range(layout.buckets):
        examined, more = 0, True
        while more and examined < op.limit and len(found) < op.limit:
            limit = min(MAX_SCAN_RECORDS, op.limit - examined)
            window = (encode_number(examined), encode_number(limit))
            arguments = (encode_moment(op.now), *which, *window)
            now, *rows = yield ScriptCall(load_script("heads"), layout.bucket_keys(bucket), arguments)
            found += [each for each in map(_read_head, rows) if each and op.namespace in (None, each.namespace)]
            examined, more = examined + len(rows), len(rows) == limit
        cut = cut or more
    return now, found[: op.limit], cut


def _read_head(row: list[bytes]) -> Record | None:
    member, *fields = row
    try:
        return read_record(bytes.fromhex(member.decode()), fields) if fields else None
    except CorruptRecord:
        return None
