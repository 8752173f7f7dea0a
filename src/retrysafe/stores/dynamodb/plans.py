"""The plans of operations on one record: the requests to send, and how to read their replies.

The usual case is one request. FAST_REQUESTS has an optimistic update for it: the update is right if the record is as it
nearly always is, and its condition checks that. If the condition fails, DynamoDB returns the record, and core/moves.py
decides what to write. That second write has the condition that the record has not changed since (`rev` and fence
together never repeat).

The SDK sends a request again if no answer came. The second attempt then meets the result of the first, and its
condition fails. The record has our own token, so it is recognised like every other repeated operation (I11).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from retrysafe.core.moves import Grant, apply_grant, build_new_record, decide_grant, move
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Fenced,
    Forget,
    Lookup,
    LookupReply,
    Op,
    Release,
    Renew,
    Resolve,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import CLOSED, Record
from retrysafe.core.states import State
from retrysafe.core.times import FOREVER_MICROS, HOUR_MICROS, add_micros
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan as PlanOf
from retrysafe.stores.dynamodb.items import (
    Fields,
    Item,
    answer_fields,
    encode_number,
    encode_packed,
    encode_text,
    from_item,
    revision_of,
    state_fields,
    to_item,
)
from retrysafe.stores.dynamodb.requests import (
    ConditionFailed,
    DynamoRequest,
    Sendable,
    TransactionConflict,
    WriteCondition,
    get,
    put_if_absent,
    update,
)

R = TypeVar("R")
Plan = PlanOf[Sendable, R]

MAX_CONTENTION_TRIES = 20
"""How often a record may change between reading and writing before the operation fails. Each time another caller made
progress."""


class TableRef(NamedTuple):
    """The table's name and the allowed clock skew in microseconds."""

    table: str
    skew: int


class ClockReading(NamedTuple):
    """The caller's time in microseconds, and an earlier one to judge other callers' leases by."""

    now: int
    judged: int
    """`now` minus the allowed skew: our clock may be ahead of the owner's."""


def read_clock(op: Any, ref: TableRef) -> ClockReading:
    if op.now is not None:
        return ClockReading(op.now, op.now)
    now = time.time_ns() // 1000
    return ClockReading(now, now - ref.skew)


# Claim ----------------------------------------------------------------------------------------------------------------


def claim(op: Claim, ref: TableRef) -> Plan[ClaimReply]:
    """Create the record in one request. If there is a record already, it decides. A takeover is one more request."""
    now, judged = read_clock(op, ref)
    fresh = build_new_record(op, now)
    try:
        if op.resumes:
            item = (yield get(ref.table, op.id)).get("Item")
            reply = yield from handle_refused_claim(op, ref, item, ClockReading(now, judged))
            return reply or ClaimReply(False, None, now)
        for _ in range(MAX_CONTENTION_TRIES):
            found = yield DynamoRequest("put_item", put_if_absent(ref.table, to_item(fresh, 0)))
            if not isinstance(found, ConditionFailed):
                return ClaimReply(True, fresh, now)
            reply = yield from handle_refused_claim(op, ref, found.item, ClockReading(now, judged))
            if reply is not None:
                return reply
    except TransactionConflict:
        return ClaimReply(False, None, now)  # a transaction is writing it, and its result is not visible yet
    raise contention_error()


def handle_refused_claim(op: Claim, ref: TableRef, item: Item | None, at: ClockReading) -> Plan[ClaimReply | None]:
    """Judge the record that exists, and take it over if that is allowed. None: it was deleted meanwhile, try again."""
    while item is not None:
        record = from_item(item)
        grant = decide_grant(record, op, at.judged)
        if grant is None or grant is Grant.OWN:
            return ClaimReply(grant is Grant.OWN, record, at.now)
        after = apply_grant(grant, record, op, at.now)
        found = yield build_change(ref, item, record, after)
        if not isinstance(found, ConditionFailed):
            return ClaimReply(True, after, at.now)
        item = found.item
    return None


# Fenced ---------------------------------------------------------------------------------------------------------------


def write_fenced(op: Fenced, ref: TableRef) -> Plan[bool]:
    at = read_clock(op, ref)
    build_request = FAST_REQUESTS.get(type(op))
    conflicts = 0
    item: Item | None
    while True:
        try:
            if build_request is None:
                item = (yield get(ref.table, op.id)).get("Item")
            else:
                found = yield build_request(op, ref, at)
                if not isinstance(found, ConditionFailed):
                    return True
                item = found.item
            return (yield from apply_move(op, ref, item, at))
        except TransactionConflict:
            conflicts += 1
            if conflicts > MAX_CONTENTION_TRIES:
                raise lock_timeout_error() from None


def apply_move(op: Fenced, ref: TableRef, item: Item | None, at: ClockReading) -> Plan[bool]:
    """Compute the next state with core/moves.py, and write it if the record has not changed since it was read."""
    now = at.judged if isinstance(op, Suspect) else at.now  # Suspect judges another owner's lease, the others do not
    for _ in range(MAX_CONTENTION_TRIES):
        record = None if item is None else from_item(item)
        if isinstance(op, Resolve) and record is not None and record.lapsed(at.now) and not record.lapsed(at.judged):
            return False  # the lease has lapsed by our clock only, which may be ahead of the owner's
        after, applied = move(record, op, now)
        if after is None or record is None or item is None or after == record:
            return applied
        if isinstance(op, Withdraw) and after.expires == now:
            # The record must count as expired for every next claimant at once. The claimant's clock may be one skew
            # behind ours, and it subtracts another skew when it judges.
            after = after._replace(expires=now - 2 * (at.now - at.judged))
        found = yield build_change(ref, item, record, after)
        if not isinstance(found, ConditionFailed):
            return applied
        item = found.item
    raise contention_error()


def build_change(ref: TableRef, item: Item, before: Record, after: Record) -> DynamoRequest:
    """Replace a record if it has not changed. Only the attributes that differ are sent."""
    target = to_item(after, revision_of(item))
    fields: Fields = {name: value for name, value in target.items() if item.get(name) != value}
    fields |= dict.fromkeys(name for name in item if name not in target)
    fields.pop("rev", None)
    condition = WriteCondition(before.fence, frozenset({before.state}), revision=revision_of(item))
    return update(ref.table, before.id, fields, condition)


# The usual case, in one request ---------------------------------------------------------------------------------------

_CLEAR_NOTE: Fields = {"note": None}


def _renew(op: Renew, ref: TableRef, at: ClockReading) -> DynamoRequest:
    """Extend the lease. `apply_move` handles a lease that would not grow, and an owner that comes back."""
    lease = encode_number(add_micros(at.now, op.lease))
    condition = WriteCondition(op.fence, frozenset({State.CLAIMED}), more=(("lease", "<=", lease),))
    return update(ref.table, op.id, {"lease": lease, **_CLEAR_NOTE}, condition)


def _advance(op: Advance, ref: TableRef, at: ClockReading) -> DynamoRequest:
    fields: Fields = {
        **state_fields(State.CLAIMED, op.id),
        "advances": encode_number(op.number),
        "point": encode_text(op.point),
        "progress": encode_packed(op.progress),
        "on_lapse": encode_text(op.on_lapse),
        "lease": encode_number(add_micros(at.now, op.lease)),
        **_CLEAR_NOTE,
    }
    if op.number == 1:  # an item has no attribute for 0 advances
        return update(ref.table, op.id, fields, WriteCondition(op.fence, absent=("advances",)))
    before = ("advances", "=", encode_number(op.number - 1))
    return update(ref.table, op.id, fields, WriteCondition(op.fence, more=(before,)))


def _settle_fields(op: Complete | Release, state: State, at: ClockReading) -> Fields:
    return {**state_fields(state, op.id), "lease": encode_number(at.now), "completed": encode_number(at.now)}


_KEPT_COPIES = {"expires": "kept", "ttl": "kept_ttl"}


def _kept_an_hour_condition(at: ClockReading) -> tuple[str, str, dict[str, Any]]:
    """The condition that at least an hour is left until `kept`. Then the record expires at `kept`, which the item
    already has. Otherwise it is kept for one more hour, which `apply_move` writes."""
    return ("kept", ">=", encode_number(add_micros(at.now, HOUR_MICROS)))


def _complete(op: Complete, ref: TableRef, at: ClockReading) -> DynamoRequest:
    fields = {**_settle_fields(op, State.COMPLETED, at), **answer_fields(op.answer), **_CLEAR_NOTE}
    condition = WriteCondition(op.fence, more=(_kept_an_hour_condition(at), _NOT_FOREVER))
    return update(ref.table, op.id, fields, condition, _KEPT_COPIES)


def _release(op: Release, ref: TableRef, at: ClockReading) -> DynamoRequest:
    """Release a record without a recovery point. With one it never expires; `apply_move` handles that."""
    fields = {**_settle_fields(op, State.RELEASED, at), "note": encode_text(op.note)}
    condition = WriteCondition(op.fence, more=(_kept_an_hour_condition(at), _NOT_FOREVER), absent=("point",))
    return update(ref.table, op.id, fields, condition, _KEPT_COPIES)


_NOT_FOREVER = ("kept", "<", encode_number(FOREVER_MICROS))
"""A record that is kept for ever gets no time to live. `apply_move` handles it."""


def _suspect(op: Suspect, ref: TableRef, at: ClockReading) -> DynamoRequest:
    fields = {**state_fields(State.UNCERTAIN, op.id), "note": encode_text(op.note)}
    if not op.lapsed_only:
        fields["advances"] = encode_number(CLOSED)
    lapsed = (
        (("lease", "<=", encode_number(at.judged)), ("on_lapse", "=", {"S": "uncertain"})) if op.lapsed_only else ()
    )
    return update(ref.table, op.id, fields, WriteCondition(op.fence, frozenset({State.CLAIMED}), more=lapsed))


FAST_REQUESTS: dict[type[Any], Callable[[Any, TableRef, ClockReading], DynamoRequest]] = {
    Renew: _renew,
    Advance: _advance,
    Complete: _complete,
    Release: _release,
    Suspect: _suspect,
}


# Lookup ---------------------------------------------------------------------------------------------------------------


def lookup(op: Lookup, ref: TableRef) -> Plan[LookupReply]:
    found = yield get(ref.table, op.id)
    item = found.get("Item")
    return LookupReply(None if item is None else from_item(item), read_clock(op, ref).now)


def contention_error() -> StoreUnavailable:
    why = f"the record changed {MAX_CONTENTION_TRIES} times between reading and writing"
    return StoreUnavailable(f"{why}; nothing was done: try again")


def lock_timeout_error() -> StoreUnavailable:
    return StoreUnavailable("a transaction on this record does not end; nothing was done: try again")


SINGLE_KEY_PLANS: dict[type[Op[Any]], Callable[[Any, TableRef], Plan[Any]]] = {
    Claim: claim,
    Lookup: lookup,
    **dict.fromkeys((Renew, Advance, Complete, Release, Withdraw, Suspect, Resolve, Forget), write_fenced),
}
"""Operations on one key. Many of them may be sent in parallel."""
