"""The story of one attempt, from the claim to an ending. Every way out leaves a state that tells the truth."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from retrysafe.core.ops import Advance, Claim, Release, Suspect
from retrysafe.core.outcomes import Execute, Mismatch, Replay
from retrysafe.core.records import Answer, Record
from retrysafe.core.values import NotPlain
from retrysafe.engine import typed
from retrysafe.engine.effects import Flow, Invoke, Persist
from retrysafe.engine.events import Events
from retrysafe.engine.guard import Ended, Task, build_replay, claim_or_wait, refusal_error
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import (
    LeaseLost,
    NotFinished,
    OperationChanged,
    OperationError,
    OutcomeUnknown,
    OutcomeUnrecorded,
    ResultNotStorable,
    RunOver,
    StoreError,
    UsageError,
)
from retrysafe.operations import undoing
from retrysafe.operations.announcing import Habits
from retrysafe.operations.endings import OperationEnding, Stop, Undo
from retrysafe.operations.failures import StepFailed, StepOutcomeUnknown, format_error
from retrysafe.operations.journal import OperationJournal, list_sent
from retrysafe.operations.retracing import must_retrace, retrace
from retrysafe.operations.run import (
    OperationRun,
    commit_journal,
    commit_was_applied,
    min_failure_spacing,
    not_awaited_error,
    read_journal,
    record_outcome,
    store_answer,
)
from retrysafe.operations.steps import Step
from retrysafe.operations.submission import claim_or_match
from retrysafe.operations.tx_binding import TxBinding


class OperationSpec(Protocol):
    """What the story needs to know of an operation."""

    name: str
    version: int
    steps: dict[str, Step]
    max_attempts: int
    habits: Habits

    @property
    def target(self) -> str: ...
    @property
    def lease(self) -> float: ...
    @property
    def rule(self) -> int: ...
    @property
    def tx_binding(self) -> TxBinding: ...
    def call_body(self, run: OperationRun, input_: bytes) -> Any: ...
    def call_undoing(self, run: OperationRun) -> Any: ...
    def is_same_request(self, record: Record, claim: Claim) -> bool: ...
    def clock(self) -> float: ...


UNDONE_ANSWER = Answer(409, {"error": "it was undone by a person"})
GIVEN_UP_ANSWER = Answer(502, {"error": "it could not be finished and was undone"})


def start(
    operation: OperationSpec, task: Task, claim: Claim, events: Events, *, fresh: bool = False, not_sent: bool = False
) -> Flow[Ended]:
    """Claim, and if it is ours go on from wherever it stands. `fresh`: whoever accepted it has not begun it.
    `not_sent`: a person says that nothing happened but what is written down."""
    outcome = yield from claim_or_match(operation, task, claim, events)
    if claim.resumes and isinstance(outcome, Mismatch):
        raise RunOver(task.key.value, claim.resumes.hex(), outcome.first_seen)
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target)
        return build_replay(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal_error(task, outcome)
    events.emit("new", claim.id, task.target)
    answer = yield from run_attempt(operation, outcome, fresh, events, not_sent=not_sent)
    return Ended(answer, False, None, outcome.record)


def give_up(operation: OperationSpec, task: Task, claim: Claim, events: Events) -> Flow[None]:
    """Every attempt died without a word: nobody tries again before a person has looked."""
    outcome = yield from claim_or_wait(claim, task, events)
    if not isinstance(outcome, Execute):
        return
    record, fence = outcome.record, outcome.fence
    note = f"dead letter: {fence.attempt - 1} attempts of {operation.name} died at {record.point or 'the start'!r}"
    note += describe_sent(record, operation)
    if (yield Persist(Suspect(record.id, fence, note), outcome.until)):
        events.emit("suspected", record.id, record.target)


def describe_sent(record: Record, operation: OperationSpec) -> str:
    """For the person who reads the note; nothing where nobody knows, or only other code can tell."""
    try:
        journal = read_journal(record, operation.steps, operation.rule)
    except (ValueError, TypeError, KeyError):
        return ""
    sent = ", ".join(list_sent(journal)) if journal.undoing is None else ""
    return f"; next: {sent} (may have been sent)" if sent else ""


def undo_run(
    operation: OperationSpec, task: Task, claim: Claim, events: Events, cause: str, *, fresh: bool = False
) -> Flow[Ended]:
    """A person wants it undone: claim it, and go back from wherever it stands."""
    outcome = yield from claim_or_match(operation, task, claim, events)
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target)
        return build_replay(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal_error(task, outcome)
    answer = yield from run_attempt(operation, outcome, fresh, events, undo=cause)
    return Ended(answer, False, None, outcome.record)


def run_attempt(
    operation: OperationSpec, granted: Execute, fresh: bool, events: Events, *, undo: str = "", not_sent: bool = False
) -> Flow[Answer]:
    """One attempt at a record we own. Its lease is kept until the end is written down."""
    record, fence = granted.record, granted.fence
    lease = Lease(record.id, record.key, fence, granted.until)
    try:
        run = build_run(operation, granted, lease, fresh, events, not_sent=not_sent)
    except OperationChanged:
        # Left as it was found: unfinished, for whoever has the code that began it. The error may quote the journal.
        point, progress = record.point or "started", mark_not_failed(record.progress, fence.attempt)
        note = f"it was begun by other code, as {record.target!r}"
        yield Persist(Advance(record.id, fence, 1, point, progress, "resume", 0), lease.until)
        yield Persist(Release(record.id, fence, note), lease.until)
        raise
    try:
        if run.waited_long:
            yield from commit_journal(run, run.build_started_journal())
        if undo and run.journal.undoing is None:
            return (yield from undo_attempt(operation, run, undo, events))
        return (yield from continue_run(operation, run, events))
    finally:
        lease.end()


def continue_run(operation: OperationSpec, run: OperationRun, events: Events) -> Flow[Answer]:
    """Forward from its recovery point, or back if it was being undone."""
    record = run.record
    if run.journal.undoing is not None:
        yield from undoing.bar_late_owner(run)
        return (yield from run_undoing(operation, run, events))
    result, failure = None, None
    try:
        result = yield build_invoke(operation, run, lambda: operation.call_body(run, record.input))
    except (GeneratorExit, LeaseLost):
        raise
    except Exception as error:
        failure = error
    except BaseException as stop:
        yield from settle_interrupted(run, stop, events)
        raise
    return (yield from settle_result(operation, run, result, failure, events))


def mark_not_failed(progress: bytes, attempt: int) -> bytes:
    """The journal with a note that this attempt neither died nor failed; as it is where it cannot be read."""
    try:
        journal = OperationJournal.decode(progress)
    except (ValueError, TypeError, KeyError):
        return progress
    if not progress:
        return progress
    return replace(journal, failed=journal.count_failures(attempt - 1), counted=attempt).encode()


def build_run(
    operation: OperationSpec, granted: Execute, lease: Lease, fresh: bool, events: Events, *, not_sent: bool
) -> OperationRun:
    record = granted.record
    if record.target != operation.target:
        raise OperationChanged(operation.target, f"it was begun as {record.target!r}")
    try:
        return OperationRun(
            operation.name,
            operation.steps,
            record,
            lease=lease,
            duration=operation.lease,
            tx_binding=operation.tx_binding,
            store_now=granted.now,
            asked=granted.asked,
            clock=operation.clock,
            fresh=fresh,
            rule=operation.rule,
            events=events,
            habits=operation.habits,
            not_sent=not_sent,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise OperationChanged(operation.target, f"its journal cannot be read: {error}") from error


def build_invoke(operation: OperationSpec, run: OperationRun, function: Any) -> Invoke:
    return Invoke(function, run.lease, operation.lease)


# Endings ----------------------------------------------------------------------------------------


def settle_result(
    operation: OperationSpec, run: OperationRun, result: Any, failure: Exception | None, events: Events
) -> Flow[Answer]:
    """What the body's end means. A step that broke decides, whatever the body made of its error; so does one that said
    how it ends, unless the body says that in its own words."""
    if run.pending_journal is not None:
        yield from commit_was_applied(run)
    if run.unawaited and run.broken is None:
        run.broken = not_awaited_error(run.unawaited[0], "")
    failure = run.broken or (failure if isinstance(failure, OperationEnding) else run.ending or failure)
    if run.answer is not None:
        events.emit("completed", run.record.id, run.record.target)
        if isinstance(failure, OperationError):
            raise failure  # the answer stands, but somebody wrote a step after it
        return run.answer
    if isinstance(failure, LeaseLost):
        raise failure
    if failure is None or isinstance(failure, OperationEnding):
        failure = run.left_out() or failure
    if isinstance(failure, Undo):
        return (yield from start_undoing(operation, run, failure.answer, str(failure), events))
    if failure is None or isinstance(failure, Stop):
        try:
            answer = to_answer(operation, failure.answer if isinstance(failure, Stop) else result)
            check_complete(operation, run)
        except (UsageError, OperationChanged) as problem:
            failure = problem
        else:
            return (yield from settle_complete(run, answer, events))
    return (yield from settle_unfinished(operation, run, failure, events))


def to_answer(operation: OperationSpec, result: Any) -> Answer:
    if isinstance(result, Answer):
        return result
    try:
        return Answer(200, typed.to_plain(result, "leave out"))  # it is sent: as the class shows itself
    except (TypeError, ValueError, NotPlain) as error:
        raise ResultNotStorable(f"the body of {operation.name!r}", str(error)) from error


def check_complete(operation: OperationSpec, run: OperationRun) -> None:
    if run.place < len(run.journal.entries):
        missed = run.journal.entries[run.place].step
        raise OperationChanged(operation.target, f"it went on to {missed!r}, which the body no longer comes to")


def settle_complete(run: OperationRun, answer: Answer, events: Events) -> Flow[Answer]:
    run.record_caught_failure()
    if run.dirty:  # part of how it ended: it ran, whatever becomes of this
        yield from record_outcome(run, commit_journal(run, run.journal))
    yield from store_answer(run, answer)
    events.emit("completed", run.record.id, run.record.target)
    return answer


def settle_unfinished(operation: OperationSpec, run: OperationRun, error: Exception, events: Events) -> Flow[Answer]:
    """It could not go on. Later, if there are attempts left; else back, if it can go back; else to a person."""
    # What may have been sent, and is not in the journal, would not be undone with the rest.
    back = not run.left_open and any(undoing.can_undo(run, entry) for entry in run.journal.entries)
    if isinstance(error, OperationChanged) and is_irrevocable(run):
        yield from commit_journal(run, run.build_left_journal(cause=format_error(error)), on_lapse="uncertain")
        yield from mark_uncertain(run, f"dead letter: refused by other code at {last_step_name(run)!r}", events)
        raise error
    if isinstance(error, StepOutcomeUnknown) or is_irrevocable(run):
        if back and isinstance(error, StepOutcomeUnknown) and error.undoable and not is_irrevocable(run):
            return (yield from start_undoing(operation, run, GIVEN_UP_ANSWER, format_error(error), events))
        return (yield from settle_dead_letter(run, error, "the outcome of a step is unknown", events))
    # Other code and a database that is away are nobody's failure: neither may undo what was paid (I35).
    counts = not isinstance(error, OperationChanged | StoreError) and run.count_failure()
    over = isinstance(error, StepFailed) and error.final
    if not over and (not counts or run.failures < operation.max_attempts):
        yield from release_at_point(run, error, events)
        if isinstance(error, OperationChanged | UsageError):
            raise error
        wait = min_failure_spacing(run.failures)
        raise NotFinished(operation.name, run.record.key, last_step_name(run), str(error)[:200], wait) from error
    if back:
        return (yield from start_undoing(operation, run, GIVEN_UP_ANSWER, format_error(error), events))
    why = "a step failed for good" if over else f"gave up after {run.failures} failed attempts"
    return (yield from settle_dead_letter(run, error, why, events))


def is_irrevocable(run: OperationRun) -> bool:
    """Whether a step that may not be repeated has begun, and nobody knows how it ended."""
    return any(entry.state == "begun" and not run.steps[entry.step].repeatable for entry in run.journal.entries)


def settle_dead_letter(run: OperationRun, error: Exception, why: str, events: Events) -> Flow[Answer]:
    """To a person. The note names the step and the kind of error; its words are in the journal, which may be sealed."""
    yield from commit_journal(run, run.build_left_journal(cause=format_error(error)), on_lapse="uncertain")
    cause = error.__cause__ or error
    note = f"dead letter: {why}, at {last_step_name(run)!r} ({type(cause).__name__}); see its ledger"
    yield from mark_uncertain(run, note, events)
    raise OutcomeUnknown(run.record.key, run.record.started, f"{why}: {error}") from error


def mark_uncertain(run: OperationRun, note: str, events: Events) -> Flow[None]:
    run.lease.settling = True
    if not (yield Persist(Suspect(run.record.id, run.fence, note), run.lease.until)):
        raise run.lease_lost_error()
    events.emit("suspected", run.record.id, run.record.target)


def release_at_point(run: OperationRun, error: BaseException, events: Events) -> Flow[None]:
    """Release at the recovery point. What was begun is written down, so that nobody takes it for untouched."""
    yield from commit_journal(run, run.build_left_journal(cause=format_error(error)))
    run.lease.settling = True
    note = f"stopped at {last_step_name(run)!r} by {type(error).__name__}"
    if (yield Persist(Release(run.record.id, run.fence, note), run.lease.until)):
        events.emit("released", run.record.id, run.record.target)


def settle_interrupted(run: OperationRun, stop: BaseException, events: Events) -> Flow[None]:
    """Cancelled or shut down: it knows how to go on, unless it stood in a step that may not be repeated."""
    try:
        if run.pending_journal is not None:
            yield from commit_was_applied(run)
        if run.answer is not None:
            return
        if is_irrevocable(run):
            yield from commit_journal(run, run.journal, on_lapse="uncertain")
            yield from mark_uncertain(run, f"stopped inside {last_step_name(run)!r}, which may not be repeated", events)
            return
        yield from release_at_point(run, stop, events)
    except Exception as trouble:
        events.emit("store_failed", run.record.id, run.record.target)
        stop.add_note(f"retrysafe could not write down where it stopped, so its lease must lapse first: {trouble}")


def last_step_name(run: OperationRun) -> str:
    return run.journal.entries[-1].step if run.journal.entries else "the start"


# Going back -------------------------------------------------------------------------------------


def undo_attempt(operation: OperationSpec, run: OperationRun, cause: str, events: Events) -> Flow[Answer]:
    """A person's undo. It takes in what may have been sent without a trace, or does nothing at all."""
    try:
        if must_retrace(run):
            body = build_invoke(operation, run, lambda: operation.call_body(run, run.record.input))
            yield from retrace(run, body)
    except OperationChanged as changed:
        yield from release_at_point(run, changed, events)
        raise
    except (Exception, GeneratorExit):
        raise  # alike
    except BaseException as stop:
        yield from settle_interrupted(run, stop, events)
        raise
    return (yield from start_undoing(operation, run, UNDONE_ANSWER, cause, events))


def start_undoing(
    operation: OperationSpec, run: OperationRun, answer: Answer, cause: str, events: Events
) -> Flow[Answer]:
    run.record_caught_failure()
    yield from record_outcome(run, undoing.begin_undoing(run, answer, cause))
    return (yield from run_undoing(operation, run, events))


def run_undoing(operation: OperationSpec, run: OperationRun, events: Events) -> Flow[Answer]:
    """Under the same heartbeat as the body: an undo may take long."""
    try:
        answer: Answer | None = yield build_invoke(operation, run, lambda: operation.call_undoing(run))
    except StoreError as error:  # the lease lapses, and the undoing goes on from its last mark
        raise OutcomeUnrecorded(run.record.key, error) from error
    except (Exception, GeneratorExit):
        raise  # alike
    except BaseException as stop:
        yield from settle_interrupted(run, stop, events)
        raise
    if answer is None:
        steps = ", ".join(undoing.stuck_steps(run.journal))
        why = f"the undo of {steps} failed"
        yield from mark_uncertain(run, f"dead letter: {why}; see its ledger", events)
        raise OutcomeUnknown(run.record.key, run.record.started, why)
    events.emit("completed", run.record.id, run.record.target)
    return answer
