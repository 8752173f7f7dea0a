"""The moves of the state machine: what each operation does to a record, as pure functions.

This is the definition. The memory store runs these functions, and tests/stateful/ compares the SQL, Lua and updates of
the other stores with them, reply by reply.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import Any

from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Fenced,
    Forget,
    Release,
    Renew,
    Resolve,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import CLOSED, Answer, Fence, Record
from retrysafe.core.states import OPEN, SETTLED, State
from retrysafe.core.times import FOREVER_MICROS, HOUR_MICROS, add_micros

_CLAIMED = State.CLAIMED
"""For what every request runs: before Python 3.12 an enum's member costs several times as much as a variable."""

KEPT_AFTER_COMPLETION_MICROS = HOUR_MICROS
"""An answer is kept at least this long after it was stored, also if the work took the whole retention."""


class Grant(Enum):
    """How a claim may be granted."""

    BIRTH = "birth"
    REBIRTH = "rebirth"
    TAKEOVER = "takeover"
    OWN = "own"
    """This very claim was granted before, and its reply was lost."""


def decide_grant(found: Record | None, op: Claim, now: int) -> Grant | None:
    """How this claim may be granted, given the stored record; None if it is refused.

    A token is granted once: a copy of a claim that arrives after its attempt ended has no caller any more (I32).
    """
    if found is None:
        return None if op.resumes else Grant.BIRTH
    if found.token == op.token:
        return Grant.OWN if found.state is State.CLAIMED else None
    if op.token in found.ended:
        return None
    if found.state in SETTLED and found.expired(now):
        return None if op.resumes else Grant.REBIRTH
    if not op.accepts(found.fingerprint) or not op.wants(found.run):
        return None
    abandoned = found.lapsed(now) and found.on_lapse != "uncertain"
    return Grant.TAKEOVER if found.state is State.RELEASED or abandoned else None


def build_new_record(op: Claim, now: int, before: Record | None = None) -> Record:
    """The record of a new life. `before` is the expired record whose row it replaces. It is made from one tuple,
    which nobody counts: every request makes a record, and two dozen arguments cost four times as much."""
    ended = () if before is None else before.ended_with_this
    return tuple.__new__(Record, (
        op.id, op.namespace, op.kind, op.scope, op.key, op.target, op.fingerprint,
        _CLAIMED, 1, op.token, op.run, add_micros(now, op.lease), op.on_lapse,
        "", b"", op.input, None, "",  # point, progress, input, answer, note
        now, now, 0, FOREVER_MICROS, op.retention,  # created, started, completed, expires, retention
        0, ended,  # advances, ended
    ))  # fmt: skip


def take_over(found: Record, op: Claim, now: int) -> Record:
    """The next attempt of the same life. Run, recovery point and input stay; the fence changes."""
    return found._replace(
        state=State.CLAIMED,
        attempt=found.attempt + 1,
        token=op.token,
        lease_until=add_micros(now, op.lease),
        on_lapse=op.on_lapse,
        note="",
        started=now,
        completed=0,
        expires=FOREVER_MICROS,
        advances=0,
        ended=found.ended_with_this,
    )


def apply_grant(grant: Grant, found: Record | None, op: Claim, now: int) -> Record:
    """The record after a grant."""
    assert grant is not Grant.OWN, "the claim was granted before, and the record stays as it is"
    if found is not None and grant is Grant.TAKEOVER:
        return take_over(found, op, now)
    return build_new_record(op, now, found)


def claim(found: Record | None, op: Claim, now: int) -> tuple[Record | None, ClaimReply]:
    grant = decide_grant(found, op, now)
    if grant is None or grant is Grant.OWN:
        return found, ClaimReply(grant is Grant.OWN, found, now)
    after = apply_grant(grant, found, op, now)
    return after, ClaimReply(True, after, now)


def settle(record: Record, state: State, now: int, note: str, answer: Answer | None = None) -> Record:
    """Move the record to completed or released. A record released at a recovery point is unfinished work and never
    expires."""
    unfinished = state is State.RELEASED and record.point != ""
    kept = max(add_micros(record.created, record.retention), add_micros(now, KEPT_AFTER_COMPLETION_MICROS))
    return record._replace(
        state=state,
        lease_until=now,
        answer=answer,
        note=note,
        completed=now,
        expires=FOREVER_MICROS if unfinished else kept,
    )


def renew(record: Record, op: Renew, now: int) -> Record | None:
    """A late copy neither shortens the lease nor undoes that the owner has given up (I32)."""
    if record.state is State.UNCERTAIN and record.advances == CLOSED:
        return None
    lease_until = max(record.lease_until, add_micros(now, op.lease))
    return record._replace(state=State.CLAIMED, lease_until=lease_until, note="")


def advance(record: Record, op: Advance, now: int) -> Record | None:
    """Only the next number counts: a late copy of an earlier advance must not move the recovery point back (I32)."""
    if op.number != record.advances + 1:
        return None
    return record._replace(
        state=State.CLAIMED,
        advances=op.number,
        point=op.point,
        progress=op.progress,
        on_lapse=op.on_lapse,
        lease_until=add_micros(now, op.lease),
        note="",
    )


def complete(record: Record, op: Complete, now: int) -> Record:
    return settle(record, State.COMPLETED, now, "", op.answer)


def release(record: Record, op: Release, now: int) -> Record:
    return settle(record, State.RELEASED, now, op.note)


def withdraw(record: Record, op: Withdraw, now: int) -> Record:
    """Release the record and let it expire at once: the next claim begins a new life, with any request. The row stays
    for an hour (`reapable`), so that a late copy of the claim or of this operation is recognised."""
    released = settle(record, State.RELEASED, now, op.note)
    untouched = record.attempt == 1 and record.point == ""
    return released._replace(expires=now) if untouched else released


def reapable(record: Record, now: int) -> bool:
    """Whether the reaper may delete the record: it is expired, and was settled an hour ago. Only a withdrawn record
    expires sooner than that."""
    kept = add_micros(record.completed, KEPT_AFTER_COMPLETION_MICROS)
    return record.state in SETTLED and record.expired(now) and kept <= now


def suspect(record: Record, op: Suspect, now: int) -> Record | None:
    """After the sweeper's mark the owner may come back. An owner that marks the record itself has given up; that counts
    also if the sweeper was quicker."""
    if not op.lapsed_only:
        given_up = record.state is State.UNCERTAIN and record.advances == CLOSED
        return None if given_up else record._replace(state=State.UNCERTAIN, note=op.note, advances=CLOSED)
    if not record.lapsed(now) or record.on_lapse != "uncertain":
        return None
    return record._replace(state=State.UNCERTAIN, note=op.note)


def resolve(record: Record, op: Resolve, now: int) -> Record | None:
    """Also resolves a lapsed guard that the sweeper has not marked yet."""
    if not is_outcome_unknown(record, now):
        return None
    state = State.RELEASED if op.answer is None else State.COMPLETED
    return settle(record, state, now, op.note, op.answer)


def is_outcome_unknown(record: Record, now: int) -> bool:
    """Whether nobody knows how the attempt ended."""
    return record.state is State.UNCERTAIN or (record.lapsed(now) and record.on_lapse == "uncertain")


def is_submitted(record: Record) -> bool:
    """Whether a run was accepted for the worker and has not been started: its claim has a lease of zero seconds."""
    return record.state is State.CLAIMED and record.attempt == 1 and record.lease_until <= record.started


def forget(record: Record, op: Forget, now: int) -> Record | None:
    if record.state is State.RELEASED and record.point != "":
        return None  # unfinished work resumes from its input and progress
    erased = None
    if record.answer is not None:
        erased = Answer(record.answer.status, b"", (), gone="forgotten")
    return record._replace(answer=erased, input=b"", progress=b"", note="")


FENCED_MOVES: dict[type[Any], tuple[frozenset[State], Callable[[Record, Any, int], Record | None]]] = {
    Renew: (OPEN, renew),
    Advance: (OPEN, advance),
    Complete: (OPEN, complete),
    Release: (OPEN, release),
    Withdraw: (OPEN, withdraw),
    Suspect: (OPEN, suspect),
    Resolve: (OPEN, resolve),
    Forget: (SETTLED, forget),
}


def move(found: Record | None, op: Fenced, now: int) -> tuple[Record | None, bool]:
    """Apply a fenced operation. The reply is False if nothing changed and the operation had not succeeded before."""
    allowed, change = FENCED_MOVES[type(op)]
    if found is not None and owns(found, op.fence) and found.state in allowed:
        after = change(found, op, now)
        if after is not None:
            return after, True
    return found, is_recognised(found, op)


def owns(record: Record, fence: Fence) -> bool:
    return record.attempt == fence.attempt and record.token == fence.token


def is_recognised(found: Record | None, op: Fenced) -> bool:
    """Whether the record shows that this very operation succeeded before, and only its reply was lost.

    An answer is compared byte by byte: a second, different answer under the same fence is refused.
    """
    if found is None or not owns(found, op.fence):
        return False
    if isinstance(op, Advance):
        return (found.advances, found.point, found.progress) == (op.number, op.point, op.progress)
    if isinstance(op, Complete):
        return found.state is State.COMPLETED and found.answer == op.answer
    if isinstance(op, Release | Withdraw):
        return found.state is State.RELEASED
    if isinstance(op, Suspect):
        return found.state is State.UNCERTAIN
    if isinstance(op, Resolve):
        if op.answer is None:
            return found.state is State.RELEASED
        return found.state is State.COMPLETED and found.answer == op.answer
    return False
