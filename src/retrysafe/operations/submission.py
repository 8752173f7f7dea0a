"""Submission (`start="worker"`): the claim is committed with its input, and the worker runs the operation."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Protocol

from retrysafe.core.judge import judge
from retrysafe.core.ops import Claim, ClaimReply, Lookup
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Outcome, Replay
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.effects import Flow, NotifyWorker
from retrysafe.engine.events import REFUSED_EVENTS, Events
from retrysafe.engine.guard import Ended, Task, build_fresh_claim, build_replay, claim_or_wait, refusal_error


class Accepted(NamedTuple):
    """The operation is committed and will be run. Call it again with the same key for the answer. Over HTTP this is
    202."""

    key: str
    id: str
    """The record's id in hex: what `resume_id` and `retrysafe operations` take."""
    target: str
    record: Record

    def __repr__(self) -> str:
        """Without the record: its input is the user's, and its token is the owner's."""
        return f"Accepted(key={self.key!r}, id={self.id!r}, target={self.target!r})"


class RequestComparer(Protocol):
    """Decides whether a record with another fingerprint is the same request."""

    def is_same_request(self, record: Record, claim: Claim) -> bool: ...


_NO_EVENTS = Events()
"""Hears what must not be counted: the first of two looks."""


def claim_or_match(operation: RequestComparer, task: Task, claim: Claim, events: Events) -> Flow[Outcome]:
    """Claim the record. If it has another fingerprint, it is read before the request is refused as another one: a
    deployment may have changed how the same request is fingerprinted."""
    outcome = yield from claim_or_wait(claim, task, _NO_EVENTS)
    if isinstance(outcome, Mismatch) and not claim.resumes:
        found = (yield Lookup(claim.id)).record
        if found is not None and operation.is_same_request(found, claim):
            # With a token of its own: the refused claim is left (LeaveClaim).
            claim = replace(build_fresh_claim(claim), alternatives=(*claim.alternatives, found.fingerprint))
            outcome = yield from claim_or_wait(claim, task, _NO_EVENTS)
    if type(outcome) in REFUSED_EVENTS:
        events.emit(REFUSED_EVENTS[type(outcome)], claim.id, task.target, task.series)
    return outcome


def accept(
    task: Task, claim: Claim, events: Events, operation: RequestComparer | None = None
) -> Flow[Ended | Accepted]:
    """Accept the operation, or report its state. A repeated submission is not an attempt, so an existing record is only
    read, unless it was let go of before it was accepted: no worker looks for that. If two submissions arrive first at
    once, the claim decides between them."""
    seen = yield Lookup(claim.id)
    record = seen.record
    dropped = record is not None and record.state is State.RELEASED and not record.point
    if record is not None and not record.expired(seen.now) and not dropped:
        differs = operation is not None and not claim.accepts(record.fingerprint)
        if operation is not None and differs and operation.is_same_request(record, claim):
            claim = replace(claim, alternatives=(*claim.alternatives, record.fingerprint))
        outcome = judge(claim, ClaimReply(False, record, seen.now))
    else:
        # A lease of zero: the worker may take the run at once.
        reply: ClaimReply = yield replace(claim, lease=0)
        outcome, record = judge(claim, reply), reply.record
        if reply.granted:
            yield NotifyWorker()
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target, task.series)
        return build_replay(task, outcome.record)
    if isinstance(outcome, Execute):
        events.emit("new", claim.id, task.target, task.series)
        return Accepted(task.key.value, claim.id.hex(), task.target, outcome.record)
    if isinstance(outcome, Busy) and record is not None:
        return Accepted(task.key.value, claim.id.hex(), task.target, record)
    raise refusal_error(task, outcome)
