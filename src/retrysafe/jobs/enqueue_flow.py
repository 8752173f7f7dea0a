"""Enqueue once: the flow that sends a job to its queue, or says how far it is.

The job's own record arbitrates. Who creates it sends, and then notes that it was sent; who comes later finds the
note, a worker at work, or the result. A sender that fails notes that it did not send, and gives the job up at once. One
that dies between claim and note leaves a lease that lapses; whoever comes meanwhile waits for that. Then the next one
sends again: the fence in the worker makes a second message harmless, and a lost one would not be.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from retrysafe.core.judge import LAPSED_UNSEEN, judge
from retrysafe.core.ops import Advance, ClaimReply, Lookup, LookupReply, Release
from retrysafe.core.outcomes import Execute, Mismatch, Uncertain
from retrysafe.core.records import Fence, Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine.effects import CallFunction, Flow, FlowPause
from retrysafe.engine.guard import Task, refusal_error
from retrysafe.errors import NotDone, StoreError
from retrysafe.jobs.delivery_options import DeliveryOptions

JobState = Literal["absent", "waiting", "running", "lost", "failed", "done", "unknown"]
"""absent   never enqueued, or its result has expired
waiting  sent, and no worker has taken it yet
running  a worker is at it
lost     whoever was at it (a worker, or who enqueued it) is silent: enqueueing it again sends it again
failed   its last attempt raised: the queue tries it again by its own rules, and enqueueing it again does at once
done     its result is kept
unknown  it began, it is not repeatable, and nobody knows how it ended: a person has to look
"""

SENT_NOTE = "it was sent to its queue"
SEND_LEASE_SECONDS = 10.0
"""Seconds a sender may take. Workers that are quicker wait for it, so it is noted as sent at once."""

RESEND_AFTER_SECONDS = 600.0
"""Seconds after which a job that no worker has taken is sent again by whoever enqueues it again. A message that was
only late is then a replay; one that the broker has lost is not lost any more."""

POLL_SECONDS = 0.05
MAX_POLL_SECONDS = 1.0


current_sending: ContextVar[tuple[bytes, Fence] | None] = ContextVar("retrysafe_sending", default=None)
"""What is being sent here, with its sender's fence. A queue in its immediate (eager) mode runs the job inside `send`,
where the sender must not be in its own way."""


class Message(NamedTuple):
    """What goes to the queue."""

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    again: bool = False
    """It may have been sent before: a queue that remembers ids must be made to take it all the same."""
    delivery: DeliveryOptions = DeliveryOptions()
    """When, where and before whom: for the queue, where it has that."""


class JobSnapshot(NamedTuple):
    """How a job stands, with its record."""

    state: JobState
    record: Record | None
    sent: bool = False


def read_job_state(record: Record | None, now: int) -> JobState:
    """How far a job is, read from its record."""
    if record is None or record.expired(now):
        return "absent"
    if record.state is State.COMPLETED:
        return "done"
    if record.state is State.RELEASED:
        return "waiting" if record.note == SENT_NOTE else "failed"
    if record.state is State.UNCERTAIN:
        return "unknown"
    if not record.lapsed(now):
        return "running"
    return "unknown" if record.on_lapse == "uncertain" else "lost"


def should_send(state: JobState, record: Record | None, now: int, resend_after: float) -> bool:
    """Whether enqueueing it now sends it."""
    if state == "waiting":
        return record is not None and now - record.completed >= duration_to_micros(resend_after)
    return state in ("absent", "lost", "failed")


def is_being_sent(record: Record | None, state: JobState) -> bool:
    """Whether its owner is a sender: a worker's lease is longer, or its heartbeat makes it so."""
    return (
        state == "running"
        and record is not None
        and record.on_lapse == "rerun"
        and record.lease_until - record.started == duration_to_micros(SEND_LEASE_SECONDS)
    )


def encode_unsent(attempt: int) -> bytes:
    """What a sender leaves that could not send. It outlives the next claim, so whoever is granted that one sees it."""
    return f"unsent {attempt}".encode()


def was_sent_meanwhile(seen: LookupReply, granted: Record, now: int) -> bool:
    """Whether somebody sent it between our look and our grant.

    Another attempt than the next one was granted in between. Its sender let go of it, and that is the note that it
    was sent, unless it left the mark that it was not: one that died in there would still hold its lease. After a stall
    longer than that lease nobody can tell, and sending again is the harmless side.
    """
    before = seen.record if read_job_state(seen.record, seen.now) != "absent" else None
    expected = before.attempt + 1 if before is not None else 1
    failed = granted.progress == encode_unsent(granted.attempt - 1)
    return granted.attempt != expected and not failed and now - seen.now < duration_to_micros(SEND_LEASE_SECONDS)


def enqueue(task: Task, message: Message, send: Callable[[Message], Any], resend_after: float) -> Flow[JobSnapshot]:
    """Send it, or say how it stands."""
    while True:
        done = yield from send_or_read(task, message, send, resend_after)
        if done.record is None or not is_being_sent(done.record, done.state):
            return done
        # Another caller is sending it. Should it die now, nobody would, and our caller believes that it is enqueued.
        yield from wait_until_sent(done.record)


def wait_until_sent(record: Record) -> Flow[None]:
    """Wait while that very attempt may still be sending: at most as long as a sender may take."""
    while True:
        seen: LookupReply = yield Lookup(record.id)
        found = seen.record
        if found is None or found.fence != record.fence or not is_being_sent(found, read_job_state(found, seen.now)):
            return
        left = (found.lease_until - seen.now) / SECOND_MICROS
        yield FlowPause(record.id, min(POLL_SECONDS, left))


def send_or_read(
    task: Task, message: Message, send: Callable[[Message], Any], resend_after: float
) -> Flow[JobSnapshot]:
    claim = replace(task.build_claim(), lease=duration_to_micros(SEND_LEASE_SECONDS), on_lapse="rerun")
    seen: LookupReply = yield Lookup(claim.id)
    state = read_job_state(seen.record, seen.now)
    if state != "absent":
        check_same_job(task, seen.record, seen.now)
    if not should_send(state, seen.record, seen.now, resend_after):
        return JobSnapshot(state, seen.record)
    reply: ClaimReply = yield claim
    outcome = judge(claim, reply)
    if not isinstance(outcome, Execute):  # somebody else was quicker: it is theirs to send, or running, or done
        check_same_job(task, reply.record, reply.now)
        return JobSnapshot(read_job_state(reply.record, reply.now), reply.record)
    if was_sent_meanwhile(seen, outcome.record, reply.now):
        yield Release(claim.id, outcome.fence, SENT_NOTE)
        return JobSnapshot("waiting", outcome.record)
    token = current_sending.set((claim.id, outcome.fence))
    try:
        yield CallFunction(lambda: send(message._replace(again=state != "absent")))
    except GeneratorExit:
        raise
    except BaseException as error:
        yield from record_unsent(claim.id, outcome.fence, error)
        raise
    finally:
        current_sending.reset(token)
    # Refused when a worker has it already: then there is nothing left to note.
    yield Release(claim.id, outcome.fence, SENT_NOTE)
    return JobSnapshot("waiting", outcome.record, sent=True)


def record_unsent(record_id: bytes, fence: Fence, error: BaseException) -> Flow[None]:
    """It was not sent, or nobody knows: whoever enqueues it next sends it, at once."""
    try:
        yield Advance(record_id, fence, 1, "", encode_unsent(fence.attempt), "rerun", 0)
    except StoreError as trouble:
        error.add_note(
            f"retrysafe could not note that the job was not sent; for {SEND_LEASE_SECONDS:g} s it waits: {trouble}"
        )


def release_for_own_sender(record_id: bytes) -> Release | None:
    """What a job that is run by its own sender does first: note that it was sent."""
    own = current_sending.get()
    return Release(record_id, own[1], SENT_NOTE) if own is not None and own[0] == record_id else None


def check_same_job(task: Task, record: Record | None, now: int) -> None:
    """Refuse what the key does not stand for, and what only a person may go on with."""
    outcome = judge(task.build_claim(), ClaimReply(False, record, now))
    if isinstance(outcome, Mismatch | Uncertain):
        raise refusal_error(task, outcome)


def wait_for_record(record_id: bytes, key: str, wait: float) -> Flow[Record]:
    """The record of a job that is done; wait for it for at most `wait` seconds."""
    waited, pause = 0.0, POLL_SECONDS
    while True:
        seen = yield Lookup(record_id)
        state = read_job_state(seen.record, seen.now)
        if state == "done":
            record: Record = seen.record
            return record
        if state == "unknown" or waited >= wait:
            raise not_done_error(key, state, seen.record)
        pause = min(pause, max(wait - waited, 0.0))
        slept = yield FlowPause(record_id, pause)
        waited += pause if slept is None else slept
        pause = min(pause * 2, MAX_POLL_SECONDS)


def not_done_error(key: str, state: JobState, record: Record | None) -> Exception:
    if state == "unknown":
        from retrysafe.errors import OutcomeUnknown

        assert record is not None
        return OutcomeUnknown(key, record.started, record.note or LAPSED_UNSEEN)
    why = f" ({record.note})" if record is not None and state == "failed" else ""
    return NotDone(key, state, why)
