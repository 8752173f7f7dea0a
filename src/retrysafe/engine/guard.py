"""The guard: claim, call the user's function, settle. One generator; it yields what it needs and decides the rest.

The order is the promise. The claim is committed before the function starts, the answer before anybody sees it,
and every way out of the call (an answer, an exception, a cancellation, nothing at all) ends in a state that
tells the truth about what is known.
"""

from __future__ import annotations

import os
from typing import Any, NamedTuple, Protocol

from retrysafe.core.judge import judge
from retrysafe.core.keys import Key
from retrysafe.core.ops import Claim, Complete, Release, Suspect, Withdraw
from retrysafe.core.outcomes import Busy, Execute, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Fence, Fingerprint, Record
from retrysafe.core.times import SECOND
from retrysafe.core.value import value
from retrysafe.engine.effects import Announce, Flow, Invoke, Pause
from retrysafe.engine.events import Events
from retrysafe.errors import (
    AnswerGone,
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    OutcomeUnknown,
    RetrySafeError,
)
from retrysafe.policy import Policy

PATIENCE = 2.0
"""Seconds between two looks where the store wakes us: only what a lost message would cost."""

POLL = (0.1, 0.2)
"""Seconds between two looks at a busy key; drawn anew each time, so that waiters do not march in step."""


@value
class Task:
    """What is being protected, apart from how it is run."""

    key: Key
    namespace: str
    target: str
    fingerprint: Fingerprint
    policy: Policy
    input: bytes = b""

    @property
    def announced(self) -> bool:
        """Whether those who wait are woken. Only on routes that wait: it is not free, and functions wait rarely."""
        return self.policy.busy == "wait" and self.key.kind == "http"

    def claim(self) -> Claim:
        drawn = os.urandom(32)  # for both: asking the system costs more than what it gives
        return Claim(
            id=self.key.id(self.namespace),
            namespace=self.namespace,
            kind=self.key.kind,
            scope=self.key.scope,
            key=self.key.value,
            target=self.target,
            fingerprint=self.fingerprint,
            token=drawn[:16],
            run=drawn[16:],
            lease=self.policy.lease_micros,
            retention=self.policy.retention_micros,
            on_lapse=self.policy.abandoned,
            input=self.input,
        )


class Granted(Protocol):
    """What a settlement needs of a granted claim: a lease has it, and an `Invoke`."""

    @property
    def id(self) -> bytes: ...
    @property
    def fence(self) -> Fence: ...


class Work(Protocol):
    """How it is run, and what its endings mean."""

    def call(self, record: Record) -> Any: ...
    def answer(self, result: Any) -> Answer: ...
    def failure(self, error: Exception) -> Answer: ...


class Ended(NamedTuple):
    """How it ended for this caller. `result` is what the function returned; None on a replay."""

    answer: Answer
    replayed: bool
    result: Any
    record: Record


class Unstorable(Exception):
    """Raised by `Work.answer`: it ran, but its result has no stored form. `problem` is what the caller is told."""

    def __init__(self, problem: RetrySafeError) -> None:
        super().__init__(str(problem))
        self.problem = problem


def guard(task: Task, work: Work, events: Events) -> Flow[Ended]:
    """Run it once, or give the stored answer."""
    claim = task.claim()
    outcome = yield from claimed(claim, task, events)
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target)
        return replayed(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal(task, outcome)
    events.emit("new", claim.id, task.target)
    record = outcome.record
    call = Invoke(lambda: work.call(record), claim.id, task.key.value, outcome.fence, task.policy.lease)
    try:
        result = yield call
    except GeneratorExit:
        raise  # nobody drives this flow any more (its loop is gone): it can ask for nothing, and the lease will lapse
    except BaseException as error:
        yield from failed(task, work, call, error, events)
        raise
    answer, problem = stored_form(work, result)
    yield from complete(task, call, answer, events)
    if problem is not None:
        raise problem
    return Ended(answer, False, result, record)


def claimed(claim: Claim, task: Task, events: Events) -> Flow[Outcome]:
    """Claim; while another is at it wait as the policy says. Each look compares the fingerprint anew."""
    waited = 0.0
    while True:
        outcome = judge(claim, (yield claim))
        if isinstance(outcome, _DECIDED):
            return outcome
        left = task.policy.wait - waited
        if not (isinstance(outcome, Busy) and task.policy.busy == "wait" and left > 0):
            events.emit(_REFUSED[type(outcome)], claim.id, task.target)
            return outcome
        import random  # only who waits needs it

        pause = min(random.uniform(*POLL), left)
        # The first pause is short even where we are woken: it was settled, perhaps, before anybody listened.
        patience = min(PATIENCE if waited else pause, left) if task.announced else 0.0
        slept = yield Pause(claim.id, pause, patience)
        waited += pause if slept is None else slept


_DECIDED = (Execute, Replay)
_REFUSED: dict[type[Outcome], Any] = {Busy: "busy", Mismatch: "mismatched", Uncertain: "uncertain"}


def refusal(task: Task, outcome: Outcome) -> RetrySafeError:
    """The error for an outcome that neither runs nor replays."""
    key = task.key.value
    if isinstance(outcome, Mismatch):
        return FingerprintMismatch(key, outcome.first_seen)
    if isinstance(outcome, Uncertain):
        return OutcomeUnknown(key, outcome.since, outcome.note)
    assert isinstance(outcome, Busy)
    return InProgress(key, max(outcome.retry_after, SECOND))


def replayed(task: Task, record: Record) -> Ended:
    answer = record.answer
    assert answer is not None, "a completed record has an answer"
    if answer.gone:
        raise AnswerGone(task.key.value, answer.gone)
    return Ended(answer, True, None, record)


def stored_form(work: Work, result: Any) -> tuple[Answer, RetrySafeError | None]:
    """The answer to store. A result that cannot be stored leaves a tombstone: the work was done, and once is enough."""
    try:
        return work.answer(result), None
    except Unstorable as error:
        return Answer(500, gone="unstorable"), error.problem


def complete(task: Task, call: Granted, answer: Answer, events: Events) -> Flow[None]:
    stored = yield Complete(call.id, call.fence, answer)
    if not stored:
        events.emit("lease_lost", call.id, task.target)
        raise LeaseLost(task.key.value, call.fence.attempt)
    events.emit("completed", call.id, task.target)
    if task.announced:
        yield Announce(call.id)


def failed(task: Task, work: Work, call: Invoke, error: BaseException, events: Events) -> Flow[None]:
    """The call ended without a result: write down what that means. The error itself goes on to the caller."""
    try:
        if not call.started:
            yield from release(task, call, "it was interrupted before it began", events)
        elif not isinstance(error, Exception):
            yield from abandoned(task, call, error, events)
        elif is_final(task.policy, error):
            yield from complete(task, call, work.failure(error), events)
        else:
            yield from release(task, call, f"it failed with {type(error).__qualname__}", events)
    except Exception as trouble:  # the store's, or the user's own `failures` callable or error text
        events.emit("store_failed", call.id, task.target)
        error.add_note(f"retrysafe could not write down how this ended: {trouble}")


def is_final(policy: Policy, error: Exception) -> bool:
    return policy.final(getattr(error, "status_code", 500), error)


def release(task: Task, call: Granted, note: str, events: Events) -> Flow[None]:
    if (yield Release(call.id, call.fence, note)):
        events.emit("released", call.id, task.target)
        if task.announced:
            yield Announce(call.id)


def withdraw(task: Task, call: Granted, note: str, events: Events) -> Flow[None]:
    """Nothing was entered: as if it had never been asked."""
    if (yield Withdraw(call.id, call.fence, note)):
        events.emit("withdrawn", call.id, task.target)
        if task.announced:
            yield Announce(call.id)


def abandoned(task: Task, call: Granted, error: BaseException, events: Events) -> Flow[None]:
    """Stopped half way (cancelled, interrupted): nobody knows what was done, unless the policy lets it run again."""
    note = f"it was stopped half way by {type(error).__qualname__}"
    if task.policy.abandoned == "rerun":
        yield from release(task, call, note, events)
    elif (yield Suspect(call.id, call.fence, note)):
        events.emit("suspected", call.id, task.target)
