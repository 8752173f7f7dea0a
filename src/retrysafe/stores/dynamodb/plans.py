"""One operation, one plan: what to send, and how to read what comes back.

The usual case is one request. `FAST` guesses it: the update that is right if the record is as it nearly always is, with
that "if" in its condition. A refused request brings the record back, and core/moves.py says what to make of it; what is
then written is written only if the record has not changed since (`rev` and the fence together never come back).

The SDK sends a request again when no answer came. The second one then meets the first one's work and is refused; the
record shows our own token, so it is recognised like anything else that is sent again (I11).
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
    Guard,
    LockNotAvailable,
    Sendable,
    get,
    put_if_absent,
    update,
)

R = TypeVar("R")
Plan = PlanOf[Sendable, R]

MAX_CONTENTION_TRIES = 20
"""How often a record may change between reading and writing before we give up: each time somebody else got on."""


class TableRef(NamedTuple):
    """What every plan has to know."""

    table: str
    skew: int


class ClockReading(NamedTuple):
    """The time, and the time by which others are judged: earlier, by what our clock may be ahead of theirs."""

    now: int
    judged: int


def read_clock(op: Any, place: TableRef) -> ClockReading:
    if op.now is not None:
        return ClockReading(op.now, op.now)
    now = time.time_ns() // 1000
    return ClockReading(now, now - place.skew)


# Claim ----------------------------------------------------------------------------------------------------------------


def claim(op: Claim, place: TableRef) -> Plan[ClaimReply]:
    """Born in one request. Refused, the record in the way says the rest; whatever takes its place takes one more."""
    now, judged = read_clock(op, place)
    fresh = build_new_record(op, now)
    try:
        if op.resumes:
            there = (yield get(place.table, op.id)).get("Item")
            reply = yield from handle_refused_claim(op, place, there, ClockReading(now, judged))
            return reply or ClaimReply(False, None, now)
        for _ in range(MAX_CONTENTION_TRIES):
            found = yield DynamoRequest("put_item", put_if_absent(place.table, to_item(fresh, 0)))
            if not isinstance(found, ConditionFailed):
                return ClaimReply(True, fresh, now)
            reply = yield from handle_refused_claim(op, place, found.item, ClockReading(now, judged))
            if reply is not None:
                return reply
    except LockNotAvailable:
        return ClaimReply(False, None, now)  # a transaction has it, and nothing of that can be seen yet
    raise contention_error()


def handle_refused_claim(op: Claim, place: TableRef, item: Item | None, at: ClockReading) -> Plan[ClaimReply | None]:
    """Read the record in the way, and take its place if that may be. None: it is gone by now, ask again."""
    while item is not None:
        record = from_item(item)
        grant = decide_grant(record, op, at.judged)
        if grant is None or grant is Grant.OWN:
            return ClaimReply(grant is Grant.OWN, record, at.now)
        after = apply_grant(grant, record, op, at.now)
        found = yield build_change(place, item, record, after)
        if not isinstance(found, ConditionFailed):
            return ClaimReply(True, after, at.now)
        item = found.item
    return None


# Fenced ---------------------------------------------------------------------------------------------------------------


def fenced_write(op: Fenced, place: TableRef) -> Plan[bool]:
    at = read_clock(op, place)
    fast = FAST_REQUESTS.get(type(op))
    held = 0
    item: Item | None
    while True:
        try:
            if fast is None:
                item = (yield get(place.table, op.id)).get("Item")
            else:
                found = yield fast(op, place, at)
                if not isinstance(found, ConditionFailed):
                    return True
                item = found.item
            return (yield from apply_move(op, place, item, at))
        except LockNotAvailable:
            held += 1
            if held > MAX_CONTENTION_TRIES:
                raise lock_timeout_error() from None


def apply_move(op: Fenced, place: TableRef, item: Item | None, at: ClockReading) -> Plan[bool]:
    """What core/moves.py makes of the record, written if it is still the same."""
    now = at.judged if isinstance(op, Suspect) else at.now  # the sweeper judges others, everybody else writes
    for _ in range(MAX_CONTENTION_TRIES):
        record = None if item is None else from_item(item)
        if isinstance(op, Resolve) and record is not None and record.lapsed(at.now) and not record.lapsed(at.judged):
            return False  # by a clock that may be ahead of its owner's
        after, applied = move(record, op, now)
        if after is None or record is None or item is None or after == record:
            return applied
        if isinstance(op, Withdraw) and after.expires == now:
            # Expired for whoever claims next, at once: by a clock behind ours, and that allows for one ahead of it.
            after = after._replace(expires=now - 2 * (at.now - at.judged))
        found = yield build_change(place, item, record, after)
        if not isinstance(found, ConditionFailed):
            return applied
        item = found.item
    raise contention_error()


def build_change(place: TableRef, item: Item, before: Record, after: Record) -> DynamoRequest:
    """From one whole record to the next, if it is unchanged: only what differs is sent."""
    wanted = to_item(after, revision_of(item))
    fields: Fields = {name: value for name, value in wanted.items() if item.get(name) != value}
    fields |= dict.fromkeys(name for name in item if name not in wanted)
    fields.pop("rev", None)
    guard = Guard(before.fence, frozenset({before.state}), revision=revision_of(item))
    return update(place.table, before.id, fields, guard)


# The usual case, in one request ---------------------------------------------------------------------------------------

_CLEAR_NOTE: Fields = {"note": None}


def _renew(op: Renew, place: TableRef, at: ClockReading) -> DynamoRequest:
    """A lease that grows. One that would not, and an owner that is back, are for `apply_move`."""
    lease = encode_number(add_micros(at.now, op.lease))
    guard = Guard(op.fence, frozenset({State.CLAIMED}), more=(("lease", "<=", lease),))
    return update(place.table, op.id, {"lease": lease, **_CLEAR_NOTE}, guard)


def _advance(op: Advance, place: TableRef, at: ClockReading) -> DynamoRequest:
    fields: Fields = {
        **state_fields(State.CLAIMED, op.id),
        "advances": encode_number(op.number),
        "point": encode_text(op.point),
        "progress": encode_packed(op.progress),
        "on_lapse": encode_text(op.on_lapse),
        "lease": encode_number(add_micros(at.now, op.lease)),
        **_CLEAR_NOTE,
    }
    if op.number == 1:  # what is 0 is left out of an item
        return update(place.table, op.id, fields, Guard(op.fence, absent=("advances",)))
    before = ("advances", "=", encode_number(op.number - 1))
    return update(place.table, op.id, fields, Guard(op.fence, more=(before,)))


def _settle_fields(op: Complete | Release, state: State, at: ClockReading) -> Fields:
    return {**state_fields(state, op.id), "lease": encode_number(at.now), "completed": encode_number(at.now)}


_KEPT_COPIES = {"expires": "kept", "ttl": "kept_ttl"}


def _not_in_its_last_hour(at: ClockReading) -> tuple[str, str, dict[str, Any]]:
    """Then it is kept until `kept`, which the item knows; else for an hour more, which is for `apply_move` to write."""
    return ("kept", ">=", encode_number(add_micros(at.now, HOUR_MICROS)))


def _complete(op: Complete, place: TableRef, at: ClockReading) -> DynamoRequest:
    fields = {**_settle_fields(op, State.COMPLETED, at), **answer_fields(op.answer), **_CLEAR_NOTE}
    return update(
        place.table, op.id, fields, Guard(op.fence, more=(_not_in_its_last_hour(at), _NOT_FOREVER)), _KEPT_COPIES
    )


def _release(op: Release, place: TableRef, at: ClockReading) -> DynamoRequest:
    """At a recovery point it would never expire: that, too, is for `apply_move`."""
    fields = {**_settle_fields(op, State.RELEASED, at), "note": encode_text(op.note)}
    guard = Guard(op.fence, more=(_not_in_its_last_hour(at), _NOT_FOREVER), absent=("point",))
    return update(place.table, op.id, fields, guard, _KEPT_COPIES)


_NOT_FOREVER = ("kept", "<", encode_number(FOREVER_MICROS))
"""What is kept for ever gets no time to live at all."""


def _suspect(op: Suspect, place: TableRef, at: ClockReading) -> DynamoRequest:
    fields = {**state_fields(State.UNCERTAIN, op.id), "note": encode_text(op.note)}
    if not op.lapsed_only:
        fields["advances"] = encode_number(CLOSED)
    lapsed = (
        (("lease", "<=", encode_number(at.judged)), ("on_lapse", "=", {"S": "uncertain"})) if op.lapsed_only else ()
    )
    return update(place.table, op.id, fields, Guard(op.fence, frozenset({State.CLAIMED}), more=lapsed))


FAST_REQUESTS: dict[type[Any], Callable[[Any, TableRef, ClockReading], DynamoRequest]] = {
    Renew: _renew,
    Advance: _advance,
    Complete: _complete,
    Release: _release,
    Suspect: _suspect,
}


# Lookup ---------------------------------------------------------------------------------------------------------------


def lookup(op: Lookup, place: TableRef) -> Plan[LookupReply]:
    found = yield get(place.table, op.id)
    item = found.get("Item")
    return LookupReply(None if item is None else from_item(item), read_clock(op, place).now)


def contention_error() -> StoreUnavailable:
    why = f"the record changed {MAX_CONTENTION_TRIES} times between reading and writing"
    return StoreUnavailable(f"{why}; nothing was done: try again")


def lock_timeout_error() -> StoreUnavailable:
    return StoreUnavailable("a transaction on this very record does not end; nothing was done: try again")


SINGLE_KEY_PLANS: dict[type[Op[Any]], Callable[[Any, TableRef], Plan[Any]]] = {
    Claim: claim,
    Lookup: lookup,
    **dict.fromkeys((Renew, Advance, Complete, Release, Withdraw, Suspect, Resolve, Forget), fenced_write),
}
"""Operations of one key: many of them may go out at once."""
