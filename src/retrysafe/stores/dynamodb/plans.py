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

from retrysafe.core.moves import Grant, born, grantable, granted_as, move
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
from retrysafe.core.times import FOREVER, HOUR, later
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan as PlanOf
from retrysafe.stores.dynamodb.items import (
    Fields,
    Item,
    answer_fields,
    from_item,
    number,
    packed,
    revision_of,
    state_fields,
    text,
    to_item,
)
from retrysafe.stores.dynamodb.requests import Guard, Held, Refused, Request, Sent, get, put_if_absent, update

R = TypeVar("R")
Plan = PlanOf[Sent, R]

TRIES = 20
"""How often a record may change between reading and writing before we give up: each time somebody else got on."""


class Place(NamedTuple):
    """What every plan has to know."""

    table: str
    skew: int


class Moment(NamedTuple):
    """The time, and the time by which others are judged: earlier, by what our clock may be ahead of theirs."""

    now: int
    judged: int


def moment(op: Any, place: Place) -> Moment:
    if op.now is not None:
        return Moment(op.now, op.now)
    now = time.time_ns() // 1000
    return Moment(now, now - place.skew)


# Claim ----------------------------------------------------------------------------------------------------------------


def claim(op: Claim, place: Place) -> Plan[ClaimReply]:
    """Born in one request. Refused, the record in the way says the rest; whatever takes its place takes one more."""
    now, judged = moment(op, place)
    fresh = born(op, now)
    try:
        if op.resumes:
            there = (yield get(place.table, op.id)).get("Item")
            reply = yield from refused_claim(op, place, there, Moment(now, judged))
            return reply or ClaimReply(False, None, now)
        for _ in range(TRIES):
            found = yield Request("put_item", put_if_absent(place.table, to_item(fresh, 0)))
            if not isinstance(found, Refused):
                return ClaimReply(True, fresh, now)
            reply = yield from refused_claim(op, place, found.item, Moment(now, judged))
            if reply is not None:
                return reply
    except Held:
        return ClaimReply(False, None, now)  # a transaction has it, and nothing of that can be seen yet
    raise contended()


def refused_claim(op: Claim, place: Place, item: Item | None, at: Moment) -> Plan[ClaimReply | None]:
    """Read the record in the way, and take its place if that may be. None: it is gone by now, ask again."""
    while item is not None:
        record = from_item(item)
        grant = grantable(record, op, at.judged)
        if grant is None or grant is Grant.OWN:
            return ClaimReply(grant is Grant.OWN, record, at.now)
        after = granted_as(grant, record, op, at.now)
        found = yield change(place, item, record, after)
        if not isinstance(found, Refused):
            return ClaimReply(True, after, at.now)
        item = found.item
    return None


# Fenced ---------------------------------------------------------------------------------------------------------------


def fenced(op: Fenced, place: Place) -> Plan[bool]:
    at = moment(op, place)
    fast = FAST.get(type(op))
    held = 0
    item: Item | None
    while True:
        try:
            if fast is None:
                item = (yield get(place.table, op.id)).get("Item")
            else:
                found = yield fast(op, place, at)
                if not isinstance(found, Refused):
                    return True
                item = found.item
            return (yield from exactly(op, place, item, at))
        except Held:
            held += 1
            if held > TRIES:
                raise held_elsewhere() from None


def exactly(op: Fenced, place: Place, item: Item | None, at: Moment) -> Plan[bool]:
    """What core/moves.py makes of the record, written if it is still the same."""
    now = at.judged if isinstance(op, Suspect) else at.now  # the sweeper judges others, everybody else writes
    for _ in range(TRIES):
        record = None if item is None else from_item(item)
        if isinstance(op, Resolve) and record is not None and record.lapsed(at.now) and not record.lapsed(at.judged):
            return False  # by a clock that may be ahead of its owner's
        after, applied = move(record, op, now)
        if after is None or record is None or item is None or after == record:
            return applied
        if isinstance(op, Withdraw) and after.expires == now:
            # Expired for whoever claims next, at once: by a clock behind ours, and that allows for one ahead of it.
            after = after._replace(expires=now - 2 * (at.now - at.judged))
        found = yield change(place, item, record, after)
        if not isinstance(found, Refused):
            return applied
        item = found.item
    raise contended()


def change(place: Place, item: Item, before: Record, after: Record) -> Request:
    """From one whole record to the next, if it is unchanged: only what differs is sent."""
    wanted = to_item(after, revision_of(item))
    fields: Fields = {name: value for name, value in wanted.items() if item.get(name) != value}
    fields |= dict.fromkeys(name for name in item if name not in wanted)
    fields.pop("rev", None)
    guard = Guard(before.fence, frozenset({before.state}), revision=revision_of(item))
    return update(place.table, before.id, fields, guard)


# The usual case, in one request ---------------------------------------------------------------------------------------

_BACK: Fields = {"note": None}


def _renew(op: Renew, place: Place, at: Moment) -> Request:
    """A lease that grows. One that would not, and an owner that is back, are for `exactly`."""
    lease = number(later(at.now, op.lease))
    guard = Guard(op.fence, frozenset({State.CLAIMED}), more=(("lease", "<=", lease),))
    return update(place.table, op.id, {"lease": lease, **_BACK}, guard)


def _advance(op: Advance, place: Place, at: Moment) -> Request:
    fields: Fields = {
        **state_fields(State.CLAIMED, op.id),
        "advances": number(op.number),
        "point": text(op.point),
        "progress": packed(op.progress),
        "on_lapse": text(op.on_lapse),
        "lease": number(later(at.now, op.lease)),
        **_BACK,
    }
    if op.number == 1:  # what is 0 is left out of an item
        return update(place.table, op.id, fields, Guard(op.fence, absent=("advances",)))
    before = ("advances", "=", number(op.number - 1))
    return update(place.table, op.id, fields, Guard(op.fence, more=(before,)))


def _settled(op: Complete | Release, state: State, at: Moment) -> Fields:
    return {**state_fields(state, op.id), "lease": number(at.now), "completed": number(at.now)}


_KEPT = {"expires": "kept", "ttl": "kept_ttl"}


def _not_in_its_last_hour(at: Moment) -> tuple[str, str, dict[str, Any]]:
    """Then it is kept until `kept`, which the item knows; else for an hour more, which is for `exactly` to write."""
    return ("kept", ">=", number(later(at.now, HOUR)))


def _complete(op: Complete, place: Place, at: Moment) -> Request:
    fields = {**_settled(op, State.COMPLETED, at), **answer_fields(op.answer), **_BACK}
    return update(place.table, op.id, fields, Guard(op.fence, more=(_not_in_its_last_hour(at), _FINITE)), _KEPT)


def _release(op: Release, place: Place, at: Moment) -> Request:
    """At a recovery point it would never expire: that, too, is for `exactly`."""
    fields = {**_settled(op, State.RELEASED, at), "note": text(op.note)}
    guard = Guard(op.fence, more=(_not_in_its_last_hour(at), _FINITE), absent=("point",))
    return update(place.table, op.id, fields, guard, _KEPT)


_FINITE = ("kept", "<", number(FOREVER))
"""What is kept for ever gets no time to live at all."""


def _suspect(op: Suspect, place: Place, at: Moment) -> Request:
    fields = {**state_fields(State.UNCERTAIN, op.id), "note": text(op.note)}
    if not op.lapsed_only:
        fields["advances"] = number(CLOSED)
    lapsed = (("lease", "<=", number(at.judged)), ("on_lapse", "=", {"S": "uncertain"})) if op.lapsed_only else ()
    return update(place.table, op.id, fields, Guard(op.fence, frozenset({State.CLAIMED}), more=lapsed))


FAST: dict[type[Any], Callable[[Any, Place, Moment], Request]] = {
    Renew: _renew,
    Advance: _advance,
    Complete: _complete,
    Release: _release,
    Suspect: _suspect,
}


# Lookup ---------------------------------------------------------------------------------------------------------------


def lookup(op: Lookup, place: Place) -> Plan[LookupReply]:
    found = yield get(place.table, op.id)
    item = found.get("Item")
    return LookupReply(None if item is None else from_item(item), moment(op, place).now)


def contended() -> StoreUnavailable:
    why = f"the record changed {TRIES} times between reading and writing"
    return StoreUnavailable(f"{why}; nothing was done: try again")


def held_elsewhere() -> StoreUnavailable:
    return StoreUnavailable("a transaction on this very record does not end; nothing was done: try again")


SINGLE: dict[type[Op[Any]], Callable[[Any, Place], Plan[Any]]] = {
    Claim: claim,
    Lookup: lookup,
    **dict.fromkeys((Renew, Advance, Complete, Release, Withdraw, Suspect, Resolve, Forget), fenced),
}
"""Operations of one key: many of them may go out at once."""
