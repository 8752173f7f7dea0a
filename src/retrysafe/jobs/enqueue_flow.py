"""Enqueue once: the flow that sends a job to its queue, or reports the job's state.

The job's own record arbitrates between callers. The caller that creates the record sends the job and then notes in the
record that it was sent. A later caller finds that note, a running worker, or the result.

A sender whose `send` fails notes that the job was not sent and gives up its lease at once. A sender that dies between
claim and note leaves a lease, which lapses; callers wait for that, and the next one sends the job again. A second
message is harmless, because the fence in the worker runs the job once. A lost message would not be harmless.
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
from retrysafe.jobs.delivery import DeliveryOptions
from retrysafe.policy import Policy

JobState = Literal["absent", "waiting", "running", "lost", "failed", "done", "unknown"]
"""absent   never enqueued, or its result has expired
waiting  sent, and no worker has begun it
running  a worker runs it
lost     its worker, or its sender, no longer renews its lease: enqueueing it again sends it again
failed   its last attempt raised: the queue retries it by its own rules, and enqueueing it again sends it at once
done     its result is stored
unknown  it began, it is not repeatable, and its outcome is unknown: a person has to decide"""

SENT_NOTE = "it was sent to its queue"
SEND_LEASE_SECONDS = 10.0
"""The lease of a sender. A worker that gets the message earlier waits for the sender's note."""
WORKER_DIFFERENCE_SECONDS = 1e-6

RESEND_AFTER_SECONDS = 600.0
"""A job that no worker has begun for this long is sent again when it is enqueued again. If the first message was only
late, its delivery is a replay. If the broker lost it, the second message replaces it."""

POLL_SECONDS = 0.05
MAX_POLL_SECONDS = 1.0


current_sending: ContextVar[tuple[bytes, Fence] | None] = ContextVar("retrysafe_sending", default=None)
"""The record id and the sender's fence of the job that is being sent here. A queue in its immediate (eager) mode runs
the job inside `send`, and then the sender's own claim must not block the job."""


class JobMessage(NamedTuple):
    """What a queue gets: the job's id, its task and its arguments."""

    id: str
    task: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    again: bool = False
    """The job may have been sent before: a queue that remembers ids must accept this id again."""
    delivery: DeliveryOptions = DeliveryOptions()
    """When and where the queue delivers the job, as far as the queue supports it."""


class JobSnapshot(NamedTuple):
    """The state of a job, with its record."""

    state: JobState
    record: Record | None
    sent: bool = False


def read_job_state(record: Record | None, now: int) -> JobState:
    """The state of a job, read from its record."""
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
    """Whether enqueueing the job now sends it."""
    if state == "waiting":
        return record is not None and now - record.completed >= duration_to_micros(resend_after)
    return state in ("absent", "lost", "failed")


def is_being_sent(record: Record | None, state: JobState) -> bool:
    """Whether the owner of the record is a sender, which its lease tells. `policy_of_worker` gives no worker the same
    lease, and a heartbeat makes it longer."""
    return (
        state == "running"
        and record is not None
        and record.on_lapse == "rerun"
        and record.lease_until - record.started == duration_to_micros(SEND_LEASE_SECONDS)
    )


def policy_of_worker(policy: Policy) -> Policy:
    """The policy of a task, with a lease that is not exactly a sender's: by a microsecond, so that every release tells
    the two apart."""
    is_senders = policy.lease_micros == duration_to_micros(SEND_LEASE_SECONDS)
    return policy.replace(lease=policy.lease + WORKER_DIFFERENCE_SECONDS) if is_senders else policy


def encode_unsent(attempt: int) -> bytes:
    """The mark of a sender that could not send. It stays in the record over the next claim, so the next owner sees
    it."""
    return f"unsent {attempt}".encode()


def was_sent_meanwhile(seen: LookupReply, granted: Record, now: int) -> bool:
    """Whether another caller sent the job between our lookup and our grant.

    In that case the granted attempt is not the next one after the attempt we saw. The attempts in between were
    released, and a sender releases the record after sending, unless it left the mark that it could not send. A sender
    that died would still hold its lease. After a stall longer than that lease this is unknown, and then the job is
    sent again, which is harmless.
    """
    before = seen.record if read_job_state(seen.record, seen.now) != "absent" else None
    expected = before.attempt + 1 if before is not None else 1
    unsent = granted.progress == encode_unsent(granted.attempt - 1)
    return granted.attempt != expected and not unsent and now - seen.now < duration_to_micros(SEND_LEASE_SECONDS)


def enqueue(
    task: Task, message: JobMessage, send: Callable[[JobMessage], Any], resend_after: float
) -> Flow[JobSnapshot]:
    """Send the job, or read its state. Waits while another caller sends it."""
    while True:
        snapshot = yield from send_or_read(task, message, send, resend_after)
        if snapshot.record is None or not is_being_sent(snapshot.record, snapshot.state):
            return snapshot
        # Another caller is sending the job. If that caller died now, the job would not be sent, although our caller
        # believes that it is enqueued.
        yield from wait_until_sent(snapshot.record)


def wait_until_sent(record: Record) -> Flow[None]:
    """Wait while the attempt in `record` may still be sending: at most until the sender's lease lapses."""
    while True:
        seen: LookupReply = yield Lookup(record.id)
        found = seen.record
        if found is None or found.fence != record.fence or not is_being_sent(found, read_job_state(found, seen.now)):
            return
        left = (found.lease_until - seen.now) / SECOND_MICROS
        yield FlowPause(record.id, min(POLL_SECONDS, left))


def send_or_read(
    task: Task, message: JobMessage, send: Callable[[JobMessage], Any], resend_after: float
) -> Flow[JobSnapshot]:
    """Send the job if its state asks for it, otherwise read its state."""
    claim = replace(task.build_claim(), lease=duration_to_micros(SEND_LEASE_SECONDS), on_lapse="rerun")
    seen: LookupReply = yield Lookup(claim.id)
    state = read_job_state(seen.record, seen.now)
    if state != "absent":
        check_same_job(task, seen.record, seen.now)
    if not should_send(state, seen.record, seen.now, resend_after):
        return JobSnapshot(state, seen.record)
    reply: ClaimReply = yield claim
    outcome = judge(claim, reply)
    if not isinstance(outcome, Execute):  # another caller claimed it first: it is being sent, running, or done
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
    # The store refuses this if a worker has claimed the job already. Then the note is not needed.
    yield Release(claim.id, outcome.fence, SENT_NOTE)
    return JobSnapshot("waiting", outcome.record, sent=True)


def record_unsent(record_id: bytes, fence: Fence, error: BaseException) -> Flow[None]:
    """Note that the job was not sent, or that this is unknown, and end the lease: the next caller sends the job at
    once."""
    try:
        yield Advance(record_id, fence, 1, "", encode_unsent(fence.attempt), "rerun", 0)
    except StoreError as store_error:
        error.add_note(
            "retrysafe could not record that the job was not sent, so the next enqueue may wait for "
            f"{SEND_LEASE_SECONDS:g} s: {store_error}"
        )


def release_for_own_sender(record_id: bytes) -> Release | None:
    """The release that a job does first if its own sender runs it inside `send`: it notes that the job was sent."""
    own = current_sending.get()
    return Release(record_id, own[1], SENT_NOTE) if own is not None and own[0] == record_id else None


def check_same_job(task: Task, record: Record | None, now: int) -> None:
    """Raise if the key belongs to another job, or if only a person may decide how the job goes on."""
    outcome = judge(task.build_claim(), ClaimReply(False, record, now))
    if isinstance(outcome, Mismatch | Uncertain):
        raise refusal_error(task, outcome)


def not_done_error(key: str, state: JobState, record: Record | None) -> Exception:
    """OutcomeUnknown for a job with an unknown outcome, NotDone for any other."""
    if state == "unknown":
        from retrysafe.errors import OutcomeUnknown

        assert record is not None
        return OutcomeUnknown(key, record.started, record.note or LAPSED_UNSEEN)
    why = f" ({record.note})" if record is not None and state == "failed" else ""
    return NotDone(key, state, why)
