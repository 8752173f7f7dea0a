"""The guard: claim a key, call the user's function, settle. One flow, which decides; a performer does the I/O.

The guarantee rests on the order. The claim is committed before the function starts, and the answer before the caller
gets it. Each way in which the call can end (an answer, an exception, a cancellation, the death of the process) leaves
the record in a state that is true.
"""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, NamedTuple, Protocol

from retrysafe.core.judge import judge
from retrysafe.core.keys import Key, record_id
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Release, Renew, Suspect, Withdraw, value_class
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine.effects import Flow, FlowPause, Invoke, LeaveClaim, NotifyWaiters, Persist
from retrysafe.engine.events import NO_SERIES, REFUSED_EVENTS, EventName, Events, Series
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import (
    AnswerGone,
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    OutcomeUnrecorded,
    RetrySafeError,
    StoreError,
)
from retrysafe.policy import Policy

NOTIFY_POLL_SECONDS = 2.0
"""Poll interval where the store sends notifications. A lost notification delays a waiter by at most this long."""

POLL_SECONDS = (0.1, 0.2)
"""Poll interval for a busy key, from and to. It is drawn anew each time, so that waiters do not poll in step."""


@value_class
class Task:
    """What is protected: the key, the request's fingerprint and the policy. `GuardedWork` is how it is run."""

    key: Key
    namespace: str
    target: str
    fingerprint: Fingerprint
    policy: Policy
    input: bytes = b""
    alternatives: tuple[Fingerprint, ...] = ()
    """The same request in the forms of other releases or keys (`Claim.alternatives`)."""
    series: Series = NO_SERIES
    """The kind and the target as figures show them: a path is not shown."""

    @property
    def notifies_waiters(self) -> bool:
        """Whether waiters are notified. Only on routes whose policy waits: a notification is not free, and functions
        rarely wait."""
        return self.policy.busy == "wait" and self.key.kind == "http"

    def build_claim(self) -> Claim:
        drawn = os.urandom(32)  # for token and run: one system call instead of two
        key, policy, namespace = self.key, self.policy, self.namespace
        # By position: every request makes a claim, and keywords cost as much again.
        return Claim(
            record_id(key.kind, namespace, key.scope, key.value),
            namespace,
            key.kind,
            key.scope,
            key.value,
            self.target,
            self.fingerprint,
            drawn[:16],
            drawn[16:],
            duration_to_micros(policy.lease),
            duration_to_micros(policy.retention),
            policy.abandoned,
            self.input,
            None,  # now
            self.alternatives,
        )


class GuardedWork(Protocol):
    """How the work is run, and which answer its result or its failure becomes."""

    def call(self, record: Record) -> Any: ...
    def answer(self, result: Any) -> Answer: ...
    def failure(self, error: Exception) -> Answer: ...


class Ended(NamedTuple):
    """How the call ended for this caller. `result` is what the function returned; None on a replay."""

    answer: Answer
    replayed: bool
    result: Any
    record: Record


class Unstorable(Exception):
    """Raised by `GuardedWork.answer`: the work ran, but its result has no stored form. The caller gets `problem`."""

    def __init__(self, problem: RetrySafeError) -> None:
        super().__init__(str(problem))
        self.problem = problem


def guard(task: Task, work: GuardedWork, events: Events) -> Flow[Ended]:
    """Run the work once, or return the stored answer."""
    claim = task.build_claim()
    outcome = yield from claim_or_wait(claim, task, events)
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target, task.series)
        return build_replay(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal_error(task, outcome)
    record = outcome.record
    events.emit_grant(claim.id, task.target, task.series, record.attempt)
    lease = Lease(claim.id, task.key.value, outcome.fence, outcome.until)
    call = Invoke(lambda: work.call(record), lease, task.policy.lease, *task.series)
    began = events.figures.begin_execution(task.series[0])
    try:
        try:
            result = yield call
        except GeneratorExit:
            events.figures.end_execution(task.series, began, "GeneratorExit")
            raise  # the event loop is gone and nothing drives this flow any more: the lease will lapse
        except BaseException as error:
            events.figures.end_execution(task.series, began, type(error).__name__)
            yield from settle_failed(task, work, call, error, events)
            raise
        events.figures.end_execution(task.series, began)
        answer, problem = build_stored_answer(work, result)
        yield from settle_complete(task, lease, answer, events)
    finally:
        lease.end()
    if problem is not None:
        raise problem
    return Ended(answer, False, result, record)


def claim_or_wait(claim: Claim, task: Task, events: Events) -> Flow[Outcome]:
    """Claim the key. While another caller owns it, wait as the policy says and claim again; each claim compares the
    fingerprint. A caller that leaves without the key leaves no grant behind, and none that a late copy may get."""
    waited, resent = 0.0, False
    try:
        while True:
            reply: ClaimReply = yield claim
            resent = resent or reply.resent
            outcome = judge(claim, reply)
            if isinstance(outcome, Execute) and outcome.record.lapsed(outcome.now):
                # Granted long ago: the reply was lost, and the lease is over by now. Renew it, or make a new claim.
                resent = True
                if not (yield Renew(claim.id, outcome.fence, claim.lease)):
                    claim, resent = build_fresh_claim(claim), False
                continue
            if isinstance(outcome, _FINAL_OUTCOMES):
                return outcome
            found = reply.record
            if found is not None and was_swept(claim, found):
                # Granted, but the reply was lost and the sweeper marked it: nothing ran.
                resent = True
                if (yield Renew(claim.id, found.fence, claim.lease)):
                    continue
            if has_attempt_ended(claim, found):
                claim, resent = build_fresh_claim(claim), False
                continue
            left = task.policy.wait - waited
            if not (isinstance(outcome, Busy) and task.policy.busy == "wait" and left > 0):
                events.emit(REFUSED_EVENTS[type(outcome)], claim.id, task.target, task.series)
                break
            import random  # here, not above: only a caller that waits needs it

            pause = min(random.uniform(*POLL_SECONDS), left)
            # The first pause is short also where the store notifies: the record may have been settled before we
            # listened.
            notify_timeout = min(NOTIFY_POLL_SECONDS if waited else pause, left) if task.notifies_waiters else 0.0
            slept = yield FlowPause(claim.id, pause, notify_timeout)
            waited += pause if slept is None else slept
    except GeneratorExit:
        raise  # nothing drives this flow any more
    except BaseException:
        if resent:
            yield LeaveClaim(claim.id, claim.token)
        raise
    if resent:
        yield LeaveClaim(claim.id, claim.token)
    return outcome


def was_swept(claim: Claim, found: Record) -> bool:
    """Whether this claim was granted, its reply was lost, and the sweeper has marked the record since. The caller knows
    that nothing ran."""
    return claim.token == found.token and found.state is State.UNCERTAIN


def has_attempt_ended(claim: Claim, found: Record | None) -> bool:
    """Whether this claim was granted before, its reply was lost, and that attempt has been ended since."""
    return found is not None and (claim.token == found.token or claim.token in found.ended)


def build_fresh_claim(claim: Claim) -> Claim:
    """The same claim with a new token, as if it had never been sent."""
    drawn = os.urandom(32)
    return replace(claim, token=drawn[:16], run=drawn[16:])


_FINAL_OUTCOMES = (Execute, Replay)


def refusal_error(task: Task, outcome: Outcome) -> RetrySafeError:
    """The error for an outcome that neither runs nor replays."""
    key = task.key.value
    if isinstance(outcome, Mismatch):
        return FingerprintMismatch(key, outcome.first_seen)
    if isinstance(outcome, Uncertain):
        return OutcomeUnknown(key, outcome.since, outcome.note)
    assert isinstance(outcome, Busy)
    return InProgress(key, max(outcome.retry_after, SECOND_MICROS))


def build_replay(task: Task, record: Record) -> Ended:
    answer = record.answer
    assert answer is not None, "a completed record has an answer"
    if answer.gone:
        raise AnswerGone(task.key.value, answer.gone)
    return Ended(answer, True, None, record)


def build_stored_answer(work: GuardedWork, result: Any) -> tuple[Answer, RetrySafeError | None]:
    """The answer to store. A result that cannot be stored leaves a tombstone: the work was done and must not run
    again."""
    try:
        return work.answer(result), None
    except Unstorable as error:
        return Answer(500, gone="unstorable"), error.problem


def settle_complete(task: Task, lease: Lease, answer: Answer, events: Events) -> Flow[None]:
    lease.settling = True
    try:
        stored = yield Persist(Complete(lease.id, lease.fence, answer), lease.until)
    except StoreError as error:
        events.emit("store_failed", lease.id, task.target, task.series)
        raise OutcomeUnrecorded(task.key.value, error) from error
    if not stored:
        events.emit("lease_lost", lease.id, task.target, task.series)
        raise LeaseLost(task.key.value, lease.fence.attempt)
    events.emit("completed", lease.id, task.target, task.series)
    if task.notifies_waiters:
        yield NotifyWaiters(lease.id)


def settle_failed(task: Task, work: GuardedWork, call: Invoke, error: BaseException, events: Events) -> Flow[None]:
    """Settle a call that ended without a result. The caller gets the error itself."""
    lease = call.lease
    try:
        if not call.started:
            yield from settle_unstarted(task, lease, "it was interrupted before it began", events)
        elif not isinstance(error, Exception):
            yield from settle_abandoned(task, lease, error, events)
        elif is_final(task.policy, error):
            yield from settle_complete(task, lease, work.failure(error), events)
        else:
            yield from settle_released(task, lease, f"it failed with {type(error).__qualname__}", events)
    except OutcomeUnrecorded as unrecorded:
        error.add_note(f"retrysafe could not write down how this ended: {unrecorded.__cause__}")
    except Exception as unrecorded:  # of the store, or of the user's own `failures` callable or error text
        events.emit("store_failed", lease.id, task.target, task.series)
        error.add_note(f"retrysafe could not write down how this ended: {unrecorded}")


def is_final(policy: Policy, error: Exception) -> bool:
    """Whether a failure is stored as the answer. If the user's own rule raises, it is: the work ran, and must not run
    twice."""
    try:
        return policy.final(getattr(error, "status_code", 500), error)
    except Exception as broken:
        error.add_note(f"the policy's failures= raised {type(broken).__qualname__}: {broken}; this failure is stored")
        return True


def settle_released(task: Task, lease: Lease, note: str, events: Events) -> Flow[None]:
    return _settle_without_answer(task, lease, Release(lease.id, lease.fence, note), "released", events)


def settle_unstarted(task: Task, lease: Lease, note: str, events: Events) -> Flow[None]:
    """Nothing ran: the claim is undone. If the store is away now, that is done later: nobody needs to be asked about
    it. A key that was only released would stay bound to this request when its retry is redirected (I37)."""
    try:
        yield from settle_withdrawn(task, lease, note, events)
    except StoreError:
        yield LeaveClaim(lease.id, lease.fence.token)
        raise


def settle_withdrawn(task: Task, lease: Lease, note: str, events: Events) -> Flow[None]:
    """No endpoint was entered: undo the claim, as if it had never been made."""
    return _settle_without_answer(task, lease, Withdraw(lease.id, lease.fence, note), "withdrawn", events)


def _settle_without_answer(task: Task, lease: Lease, op: Op[bool], event: EventName, events: Events) -> Flow[None]:
    lease.settling = True
    if (yield Persist(op, lease.until)):
        events.emit(event, lease.id, task.target, task.series)
        if task.notifies_waiters:
            yield NotifyWaiters(lease.id)


def settle_abandoned(task: Task, lease: Lease, error: BaseException, events: Events) -> Flow[None]:
    """The call was stopped half way (cancelled, interrupted). Mark the outcome unknown, unless the policy lets the work
    run again."""
    lease.settling = True
    note = f"it was stopped half way by {type(error).__qualname__}"
    if task.policy.abandoned == "rerun":
        yield from settle_released(task, lease, note, events)
    elif (yield Persist(Suspect(lease.id, lease.fence, note), lease.until)):
        events.emit("suspected", lease.id, task.target, task.series)
