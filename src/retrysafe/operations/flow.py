"""The flow of one attempt, from the claim to its end. Every way out leaves a record that says what is known."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any, Protocol

from retrysafe.core.ops import Advance, Claim, Complete, Release, Suspect
from retrysafe.core.outcomes import Execute, Mismatch, Replay
from retrysafe.core.records import Answer, Record
from retrysafe.core.values import NotPlain
from retrysafe.engine import typed
from retrysafe.engine.effects import Flow, Invoke, Persist
from retrysafe.engine.events import Events
from retrysafe.engine.guard import Ended, Task, build_replay, claim_or_wait, refusal_error
from retrysafe.engine.heartbeat import Lease
from retrysafe.engine.why import BEGUN_BY_OTHER_CODE
from retrysafe.errors import (
    LeaseLost,
    NotFinished,
    OperationChanged,
    OperationError,
    OutcomeUnknown,
    OutcomeUnrecorded,
    ResultNotStorable,
    RetrySafeError,
    RunOver,
    StepNotRecorded,
    StoreError,
    StoreOutage,
    UsageError,
)
from retrysafe.operations import endings, undoing
from retrysafe.operations.announcing import StepPredictor
from retrysafe.operations.commits import commit_journal, commit_was_applied, record_outcome, store_answer
from retrysafe.operations.endings import build_ending
from retrysafe.operations.errors import OperationEnding, StepFailed, StepOutcomeUnknown, Stop, Undo, format_error
from retrysafe.operations.journal import OperationJournal, list_sent
from retrysafe.operations.local import ask_interrupted_step
from retrysafe.operations.retracing import must_retrace, retrace
from retrysafe.operations.run import OperationRun, min_failure_spacing, not_awaited_error, read_journal
from retrysafe.operations.steps import Step
from retrysafe.operations.submission import claim_or_match
from retrysafe.transactions.binding import TxBinding

_log = logging.getLogger("retrysafe")


class OperationSpec(Protocol):
    """The part of an operation that the flow uses."""

    name: str
    version: int
    steps: dict[str, Step]
    max_attempts: int
    predictor: StepPredictor

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


def start(
    operation: OperationSpec, task: Task, claim: Claim, events: Events, *, fresh: bool = False, not_sent: bool = False
) -> Flow[Ended]:
    """Claim the record and run or resume the operation. `fresh`: it was queued by start="worker" and has never run.
    `not_sent`: a person says that nothing was sent except what is in the journal."""
    outcome = yield from claim_or_match(operation, task, claim, events)
    if claim.resumes and isinstance(outcome, Mismatch):
        raise RunOver(task.key.value, claim.resumes.hex(), outcome.first_seen)
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target, task.series)
        return build_replay(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal_error(task, outcome)
    events.emit_grant(claim.id, task.target, task.series, outcome.record.attempt)
    answer = yield from run_attempt(operation, outcome, fresh, events, not_sent=not_sent)
    return Ended(answer, False, None, outcome.record)


def give_up(operation: OperationSpec, task: Task, claim: Claim, events: Events) -> Flow[None]:
    """Make a dead letter of a run whose attempts all died: nothing is tried again before an operator has looked."""
    outcome = yield from claim_or_wait(claim, task, events)
    if not isinstance(outcome, Execute):
        return
    record, fence = outcome.record, outcome.fence
    note = f"dead letter: {fence.attempt - 1} attempts of {operation.name} died at {record.point or 'the start'!r}"
    note += describe_sent(record, operation)
    if (yield Persist(Suspect(record.id, fence, note), outcome.until)):
        events.emit("suspected", record.id, record.target, (record.kind, record.target))


def cancel_run(task: Task, claim: Claim, events: Events, because: str) -> Flow[Ended]:
    """End a run where it is, for a person: its answer says so, and nothing more is sent or undone."""
    outcome = yield from claim_or_wait(claim, task, events)
    if claim.resumes and isinstance(outcome, Mismatch):
        raise RunOver(task.key.value, claim.resumes.hex(), outcome.first_seen)
    if isinstance(outcome, Replay):
        return build_replay(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal_error(task, outcome)
    # The reason is for colleagues, and the answer for the client: only the log and the audit row have the reason.
    answer = build_ending(endings.CANCELLED)
    _log.info("%s %s was cancelled by a person: %s", task.target, claim.id.hex()[:16], because[:500])
    if not (yield Persist(Complete(claim.id, outcome.fence, answer), outcome.until)):
        raise LeaseLost(task.key.value, outcome.fence.attempt)
    events.emit("completed", claim.id, task.target)
    return Ended(answer, False, None, outcome.record)


def describe_sent(record: Record, operation: OperationSpec) -> str:
    """The steps that may have been sent, as part of the note for a person. Empty if none is known to this code."""
    try:
        journal = read_journal(record, operation.steps, operation.rule)
    except (ValueError, TypeError, KeyError):
        return ""
    sent = ", ".join(list_sent(journal)) if journal.undoing is None else ""
    return f"; next: {sent} (may have been sent)" if sent else ""


def undo_run(
    operation: OperationSpec, task: Task, claim: Claim, events: Events, cause: str, *, fresh: bool = False
) -> Flow[Ended]:
    """Claim a run and undo it, because a person wants that."""
    outcome = yield from claim_or_match(operation, task, claim, events)
    if claim.resumes and isinstance(outcome, Mismatch):
        raise RunOver(task.key.value, claim.resumes.hex(), outcome.first_seen)
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target, task.series)
        return build_replay(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal_error(task, outcome)
    answer = yield from run_attempt(operation, outcome, fresh, events, undo=cause)
    return Ended(answer, False, None, outcome.record)


def run_attempt(
    operation: OperationSpec, granted: Execute, fresh: bool, events: Events, *, undo: str = "", not_sent: bool = False
) -> Flow[Answer]:
    """One attempt at a record that we own. The heartbeat keeps its lease until the outcome is stored."""
    record, fence = granted.record, granted.fence
    lease = Lease(record.id, record.key, fence, granted.until)
    try:
        run = build_run(operation, granted, lease, fresh, events, not_sent=not_sent)
    except OperationChanged:
        # Leave the record unfinished, for the code that began it. The note does not have the error: it may quote the
        # journal, which may be sealed.
        point, progress = record.point or "started", mark_not_failed(record.progress, fence.attempt)
        note = f"{BEGUN_BY_OTHER_CODE}, as {record.target!r}"
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
    """Continue from the recovery point, or continue the undo if one was begun."""
    record = run.record
    if run.journal.undoing is not None:
        yield from record_outcome(run, undoing.block_late_owner(run))
        return (yield from run_undoing(operation, run, events))
    result, failure = None, None
    began, series = events.figures.begin_execution(record.kind), (record.kind, record.target)
    try:
        result = yield build_invoke(operation, run, lambda: operation.call_body(run, record.input))
    except (GeneratorExit, LeaseLost) as error:
        events.figures.end_execution(series, began, type(error).__name__)
        raise
    except Exception as error:
        failure = error
    except BaseException as stop:
        events.figures.end_execution(series, began, type(stop).__name__)
        yield from settle_interrupted(run, stop, events)
        raise
    ended_well = failure is None or isinstance(failure, OperationEnding)
    events.figures.end_execution(series, began, "" if ended_well else type(failure).__name__)
    try:
        return (yield from settle_result(operation, run, result, failure, events))
    except StoreOutage as away:
        raise unsettled_error(operation, run, run.broken or failure, away) from away
    except StoreError as refusal:
        if not has_begun_steps(run):
            raise
        raise refused_write_error(operation, run, refusal) from refusal


def has_begun_steps(run: OperationRun) -> bool:
    return bool(run.journal.entries) or run.pending_journal is not None


def refused_write_error(operation: OperationSpec, run: OperationRun, refusal: StoreError) -> StepNotRecorded:
    """The error if the store refused what was to be written, such as a journal that is too large for it. The store's
    own error means that one write: "nothing was done" would be untrue for the run."""
    why = str(refusal).replace("nothing was done", "this was not written")
    return StepNotRecorded(
        f"{operation.name} with key {run.record.key!r} ran up to its step {last_step_name(run)!r}, and then the store "
        f"refused to write that down: {why}. What was written before stands: another attempt goes on from there, and "
        "sends that step again with the same key if it may be repeated"
    )


def unsettled_error(
    operation: OperationSpec, run: OperationRun, failure: Exception | None, away: StoreOutage
) -> RetrySafeError:
    """The error if the store did not answer when an unfinished run was to be settled. "Nothing was done", which the
    store's own error says, would be untrue as soon as a step may have happened."""
    if not has_begun_steps(run):
        return away
    if isinstance(failure, StepOutcomeUnknown) or is_irrevocable(run):
        return OutcomeUnknown(run.record.key, run.record.started, f"the outcome of a step is unknown: {failure}")
    return NotFinished(operation.name, run.record.key, last_step_name(run), str(failure or away)[:200])


def mark_not_failed(progress: bytes, attempt: int) -> bytes:
    """The journal, saying that this attempt neither died nor failed. Unchanged if it cannot be read."""
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
            asked_at=granted.asked,
            clock=operation.clock,
            fresh=fresh,
            rule=operation.rule,
            events=events,
            predictor=operation.predictor,
            not_sent=not_sent,
        )
    except (ValueError, TypeError, KeyError) as error:
        raise OperationChanged(operation.target, f"its journal cannot be read: {error}") from error


def build_invoke(operation: OperationSpec, run: OperationRun, function: Any) -> Invoke:
    return Invoke(function, run.lease, operation.lease, run.record.kind, run.record.target)


# Endings ----------------------------------------------------------------------------------------


def settle_result(
    operation: OperationSpec, run: OperationRun, result: Any, failure: Exception | None, events: Events
) -> Flow[Answer]:
    """Settle the run by how the body ended. The error of a broken step decides, even if the body swallowed it. So does
    a Stop or Undo of a step, unless the body raised one of its own."""
    if run.inside:  # in a thread of the user's own: nobody can wait for it here
        run.broken = StepOutcomeUnknown(run.inside, "it was still running when the body ended", undoable=False)
    yield from ask_interrupted_step(run)
    if run.pending_journal is not None:
        yield from commit_was_applied(run)
    if run.unawaited and run.broken is None:
        run.broken = not_awaited_error(run.unawaited[0], "")
    failure = run.broken or (failure if isinstance(failure, OperationEnding) else run.ending or failure)
    if run.answer is not None:
        events.emit("completed", run.record.id, run.record.target, (run.record.kind, run.record.target))
        events.figures.count("runs", (operation.name, "finished"))
        if isinstance(failure, OperationError):
            raise failure  # the answer is stored, but the body calls a step after it
        return run.answer
    if isinstance(failure, LeaseLost):
        raise failure
    if failure is None or isinstance(failure, OperationEnding):
        failure = run.left_out_error() or failure
    if isinstance(failure, Undo):
        return (yield from start_undoing(operation, run, failure.answer, str(failure), events))
    if failure is None or isinstance(failure, Stop):
        try:
            answer = to_answer(operation, failure.answer if isinstance(failure, Stop) else result)
            check_complete(operation, run)
        except (UsageError, OperationChanged) as problem:
            failure = problem
        else:
            outcome = "stopped" if isinstance(failure, Stop) else "finished"
            return (yield from settle_complete(run, answer, events, outcome))
    return (yield from settle_unfinished(operation, run, failure, events))


def to_answer(operation: OperationSpec, result: Any) -> Answer:
    if isinstance(result, Answer):
        return result
    try:
        return Answer(
            200, typed.to_plain(result, "leave out")
        )  # sent to the client: without fields marked `exclude=True`
    except (TypeError, ValueError, NotPlain) as error:
        raise ResultNotStorable(f"the body of {operation.name!r}", str(error)) from error


def check_complete(operation: OperationSpec, run: OperationRun) -> None:
    if run.place < len(run.journal.entries):
        missed = run.journal.entries[run.place].step
        raise OperationChanged(operation.target, f"it has a step {missed!r}, which the body no longer calls")


def settle_complete(run: OperationRun, answer: Answer, events: Events, outcome: str) -> Flow[Answer]:
    run.record_caught_failure()
    if run.dirty:  # the steps have run, whether or not this can be stored
        yield from record_outcome(run, commit_journal(run, run.journal))
    yield from store_answer(run, answer)
    events.emit("completed", run.record.id, run.record.target, (run.record.kind, run.record.target))
    events.figures.count("runs", (run.name, outcome))
    return answer


def settle_unfinished(operation: OperationSpec, run: OperationRun, error: Exception, events: Events) -> Flow[Answer]:
    """The run could not finish. Release it if attempts are left; else undo it if that is possible; else make a dead
    letter of it."""
    if isinstance(error, StepOutcomeUnknown):
        run.record_unknown_step(error)
    # A step that may have been sent and is not in the journal would not be undone with the others.
    can_undo = not run.left_open and any(undoing.can_undo(run, entry) for entry in run.journal.entries)
    if isinstance(error, OperationChanged) and is_irrevocable(run):
        yield from commit_journal(run, run.build_left_journal(cause=format_error(error)), on_lapse="uncertain")
        yield from mark_uncertain(run, f"dead letter: refused by other code at {last_step_name(run)!r}", events)
        raise error
    if isinstance(error, StepOutcomeUnknown) or is_irrevocable(run):
        if can_undo and isinstance(error, StepOutcomeUnknown) and error.undoable and not is_irrevocable(run):
            return (yield from give_up_and_undo(operation, run, error, events))
        return (yield from settle_dead_letter(run, error, "the outcome of a step is unknown", events))
    # Changed code and a store that cannot be reached are no failures of the run: they must not undo what was paid
    # (I35).
    counts = not isinstance(error, OperationChanged | StoreError) and run.count_failure()
    over = isinstance(error, StepFailed) and error.final
    if not over and (not counts or run.failures < operation.max_attempts):
        yield from release_at_point(run, error, events)
        if isinstance(error, OperationChanged | UsageError):
            raise error
        wait = min_failure_spacing(run.failures)
        raise NotFinished(operation.name, run.record.key, last_step_name(run), str(error)[:200], wait) from error
    if can_undo:
        return (yield from give_up_and_undo(operation, run, error, events))
    why = "a step failed for good" if over else f"gave up after {run.failures} failed attempts"
    return (yield from settle_dead_letter(run, error, why, events))


def give_up_and_undo(operation: OperationSpec, run: OperationRun, error: Exception, events: Events) -> Flow[Answer]:
    """Nothing is tried again: undo what was done. A new key is not safe if a step that has no undo was sent."""
    problem = endings.PARTLY_UNDONE if leaves_effects(run) else endings.GIVEN_UP
    answer = build_ending(problem, endings.GIVEN_UP.status)
    return (yield from start_undoing(operation, run, answer, format_error(error), events))


def is_irrevocable(run: OperationRun) -> bool:
    """True if a step that may not be repeated has begun and its outcome is unknown."""
    return any(entry.state == "begun" and not run.steps[entry.step].repeatable for entry in run.journal.entries)


def settle_dead_letter(run: OperationRun, error: Exception, why: str, events: Events) -> Flow[Answer]:
    """Mark the run as uncertain, for a person. The note has the step and the error's class. The error's text is only in
    the journal, which may be sealed."""
    yield from commit_journal(run, run.build_left_journal(cause=format_error(error)), on_lapse="uncertain")
    cause = error.__cause__ or error
    note = f"dead letter: {why}, at {last_step_name(run)!r} ({type(cause).__name__}); see its ledger"
    yield from mark_uncertain(run, note, events)
    raise OutcomeUnknown(run.record.key, run.record.started, f"{why}: {error}") from error


def mark_uncertain(run: OperationRun, note: str, events: Events) -> Flow[None]:
    run.lease.settling = True
    if not (yield Persist(Suspect(run.record.id, run.fence, note), run.lease.until)):
        raise run.lease_lost_error()
    events.emit("suspected", run.record.id, run.record.target, (run.record.kind, run.record.target))


def release_at_point(run: OperationRun, error: BaseException, events: Events) -> Flow[None]:
    """Release at the recovery point. The journal says which step was begun."""
    yield from commit_journal(run, run.build_left_journal(cause=format_error(error)))
    run.lease.settling = True
    note = f"stopped at {last_step_name(run)!r} by {type(error).__name__}"
    if (yield Persist(Release(run.record.id, run.fence, note), run.lease.until)):
        events.emit("released", run.record.id, run.record.target, (run.record.kind, run.record.target))


def settle_interrupted(run: OperationRun, stop: BaseException, events: Events) -> Flow[None]:
    """The attempt was cancelled or shut down. Release the run, unless it was inside a step that may not be repeated."""
    try:
        if run.pending_journal is not None:
            yield from commit_was_applied(run)
        if run.answer is not None:
            return
        yield from ask_interrupted_step(run)
        if isinstance(run.broken, StepOutcomeUnknown):
            run.record_unknown_step(run.broken)
            yield from commit_journal(run, run.build_left_journal(cause=format_error(run.broken)), on_lapse="uncertain")
            note = f"dead letter: stopped inside {run.broken.step!r}, which had committed by itself; see its ledger"
            yield from mark_uncertain(run, note, events)
            stop.add_note(f"retrysafe: {run.broken}")
            return
        if is_irrevocable(run):
            yield from commit_journal(run, run.journal, on_lapse="uncertain")
            yield from mark_uncertain(run, f"stopped inside {last_step_name(run)!r}, which may not be repeated", events)
            return
        yield from release_at_point(run, stop, events)
    except Exception as error:
        events.emit("store_failed", run.record.id, run.record.target, (run.record.kind, run.record.target))
        stop.add_note(f"retrysafe could not write down where it stopped, so its lease must lapse first: {error}")


def last_step_name(run: OperationRun) -> str:
    return run.journal.entries[-1].step if run.journal.entries else "the start"


# Undo ------------------------------------------------------------------------------------------


def undo_attempt(operation: OperationSpec, run: OperationRun, cause: str, events: Events) -> Flow[Answer]:
    """Undo the run for a person, including the step that may have been sent without a trace. If this code does not
    reach that step, nothing is undone."""
    try:
        if must_retrace(run):
            body = build_invoke(operation, run, lambda: operation.call_body(run, run.record.input))
            yield from retrace(run, body)
    except OperationChanged as changed:
        yield from release_at_point(run, changed, events)
        raise
    except (Exception, GeneratorExit):
        raise  # not an interruption
    except BaseException as stop:
        yield from settle_interrupted(run, stop, events)
        raise
    answer = build_ending(endings.PARTLY_UNDONE if leaves_effects(run) else endings.UNDONE)
    return (yield from start_undoing(operation, run, answer, cause, events))


def leaves_effects(run: OperationRun) -> bool:
    """True if a foreign step was sent, or perhaps sent, and has no undo."""
    sent = (run.steps[entry.step] for entry in run.journal.entries if entry.state in ("begun", "done"))
    return any(step.kind == "foreign" and step.undo is None for step in sent)


def start_undoing(
    operation: OperationSpec, run: OperationRun, answer: Answer, cause: str, events: Events
) -> Flow[Answer]:
    run.record_caught_failure()
    yield from record_outcome(run, undoing.begin_undoing(run, answer, cause))
    return (yield from run_undoing(operation, run, events))


def run_undoing(operation: OperationSpec, run: OperationRun, events: Events) -> Flow[Answer]:
    """Undo under the same heartbeat as the body: an undo may take long."""
    try:
        answer: Answer | None = yield build_invoke(operation, run, lambda: operation.call_undoing(run))
    except StoreError as error:  # the lease lapses, and the next attempt continues the undo from the last entry
        raise OutcomeUnrecorded(run.record.key, error) from error
    except (Exception, GeneratorExit):
        raise  # not an interruption
    except BaseException as stop:
        yield from settle_interrupted(run, stop, events)
        raise
    if answer is None:
        steps = ", ".join(undoing.list_stuck_steps(run.journal))
        why = f"the undo of {steps} failed"
        yield from mark_uncertain(run, f"dead letter: {why}; see its ledger", events)
        events.figures.count("runs", (operation.name, "undo_failed"))
        raise OutcomeUnknown(run.record.key, run.record.started, why)
    events.figures.count("runs", (operation.name, "undone"))
    events.emit("completed", run.record.id, run.record.target, (run.record.kind, run.record.target))
    return answer
