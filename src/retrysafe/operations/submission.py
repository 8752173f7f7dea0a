"""`start="worker"`: the claim is committed with its input, and the worker runs it."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from retrysafe.core.judge import judge
from retrysafe.core.ops import Claim, ClaimReply, Lookup
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Outcome, Replay
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.effects import Flow, NotifyWorker
from retrysafe.engine.events import Events
from retrysafe.engine.guard import REFUSED_EVENTS, Ended, Task, build_replay, claim_or_wait, refusal_error


class Accepted(NamedTuple):
    """It is committed and will be run. Ask again with the same key for the answer; HTTP says 202 to this."""

    key: str
    id: str
    """The record's id in hex: what `resume_id` and `retrysafe operations` take."""
    target: str
    record: Record


def is_submitted(record: Record) -> bool:
    """Whether it was accepted for the worker, and nobody has run it: its first claim asked for no lease at all."""
    return record.state is State.CLAIMED and record.attempt == 1 and record.lease_until <= record.started


class RequestComparer(Protocol):
    """What an operation can say of a record with another fingerprint."""

    def is_same_request(self, record: Record, claim: Claim) -> bool: ...


def claim_or_match(operation: RequestComparer, task: Task, claim: Claim, events: Events) -> Flow[Outcome]:
    """Claim it. A record that has another fingerprint is read before it is called another request: a deployment may
    have changed how the same request is written."""
    unheard = Events()
    outcome = yield from claim_or_wait(claim, task, unheard)
    if isinstance(outcome, Mismatch) and not claim.resumes:
        found = (yield Lookup(claim.id)).record
        if found is not None and operation.is_same_request(found, claim):
            claim = replace(claim, alternatives=(*claim.alternatives, found.fingerprint))
            outcome = yield from claim_or_wait(claim, task, unheard)
    if type(outcome) in REFUSED_EVENTS:
        events.emit(REFUSED_EVENTS[type(outcome)], claim.id, task.target)
    return outcome


def accept(
    task: Task, claim: Claim, events: Events, operation: RequestComparer | None = None
) -> Flow[Ended | Accepted]:
    """Take it in, or say how far it is. Asking again is not an attempt, so what is there is only looked at; two who
    come first at once are told apart by the claim."""
    seen = yield Lookup(claim.id)
    record = seen.record
    if record is not None and not record.expired(seen.now):
        differs = operation is not None and not claim.accepts(record.fingerprint)
        if operation is not None and differs and operation.is_same_request(record, claim):
            claim = replace(claim, alternatives=(*claim.alternatives, record.fingerprint))
        outcome = judge(claim, ClaimReply(False, record, seen.now))
    else:
        # A lease of nothing: whoever finishes abandoned operations may take it at once.
        reply: ClaimReply = yield replace(claim, lease=0)
        outcome, record = judge(claim, reply), reply.record
        if reply.granted:
            yield NotifyWorker()
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target)
        return build_replay(task, outcome.record)
    if isinstance(outcome, Execute):
        events.emit("new", claim.id, task.target)
        return Accepted(task.key.value, claim.id.hex(), task.target, outcome.record)
    if isinstance(outcome, Busy) and record is not None:
        return Accepted(task.key.value, claim.id.hex(), task.target, record)
    raise refusal_error(task, outcome)
