"""The story of one attempt, from the claim to an ending. Every way out leaves a state that tells the truth."""

from __future__ import annotations

from typing import Any, Protocol

from retrysafe.core.ops import Claim, Complete, Release, Suspect
from retrysafe.core.outcomes import Execute, Replay
from retrysafe.core.records import Answer, Fence, Record
from retrysafe.engine.effects import Flow, Invoke
from retrysafe.engine.events import Events
from retrysafe.engine.guard import Ended, Task, claimed, refusal, replayed
from retrysafe.errors import LeaseLost, NotFinished, OperationChanged, OutcomeUnknown, RetrySafeError
from retrysafe.operations import undoing
from retrysafe.operations.endings import Stop, Undo
from retrysafe.operations.run import Run, Unknown, commit
from retrysafe.operations.steps import Step


class Declared(Protocol):
    """What the story needs to know of an operation."""

    name: str
    version: int
    steps: dict[str, Step]
    max_attempts: int

    @property
    def target(self) -> str: ...
    def call_body(self, run: Run, input_: bytes) -> Any: ...
    def clock(self) -> float: ...


def start(operation: Declared, task: Task, claim: Claim, events: Events) -> Flow[Ended]:
    """Claim, and if it is ours go on from wherever it stands."""
    outcome = yield from claimed(claim, task, events)
    if isinstance(outcome, Replay):
        events.emit("replayed", claim.id, task.target)
        return replayed(task, outcome.record)
    if not isinstance(outcome, Execute):
        raise refusal(task, outcome)
    events.emit("new", claim.id, task.target)
    answer = yield from attempt(operation, outcome.record, outcome.fence, task.policy.lease, events)
    return Ended(answer, False, None, outcome.record)


def attempt(operation: Declared, record: Record, fence: Fence, lease: float, events: Events) -> Flow[Answer]:
    """One attempt at a record we own."""
    try:
        run = adopt(operation, record, fence, lease)
    except OperationChanged as error:
        yield Release(record.id, fence, str(error)[:200])
        raise
    if run.journal.undoing is not None:
        return (yield from going_back(run, events))
    call = Invoke(lambda: operation.call_body(run, record.input), record.id, record.key, fence, lease)
    try:
        result = yield call
    except Stop as ending:
        return (yield from finish(run, ending.answer, events))
    except Undo as ending:
        return (yield from turn_back(run, ending.answer, str(ending), events))
    except LeaseLost:
        raise
    except Exception as error:
        return (yield from unfinished(operation, run, error, events))
    except BaseException:
        yield from interrupted(run, events)
        raise
    if run.broken is not None:
        return (yield from unfinished(operation, run, run.broken, events))
    return (yield from finish(run, result if isinstance(result, Answer) else Answer(200, result), events))


def adopt(operation: Declared, record: Record, fence: Fence, lease: float) -> Run:
    if record.target != operation.target:
        raise OperationChanged(operation.target, f"it was begun as {record.target!r}")
    longest = max((step.timeout for step in operation.steps.values() if step.kind == "foreign"), default=0.0)
    try:
        return Run(
            operation.name,
            operation.steps,
            record,
            fence=fence,
            lease=max(lease, longest),
            clock=operation.clock,
        )
    except ValueError as error:
        raise OperationChanged(operation.target, str(error)) from error


def finish(run: Run, answer: Answer, events: Events) -> Flow[Answer]:
    """Store the answer, unless the last local step's commit carried it already."""
    if run.answer is not None:
        answer = run.answer
    else:
        if run.dirty:
            yield from commit(run, run.journal)
        if not (yield Complete(run.record.id, run.fence, answer)):
            raise LeaseLost(run.record.key, run.fence.attempt)
    events.emit("completed", run.record.id, run.record.target)
    return answer


def turn_back(run: Run, answer: Answer, cause: str, events: Events) -> Flow[Answer]:
    if run.answer is not None:
        return (yield from finish(run, run.answer, events))  # it was committed as done: too late to undo
    yield from undoing.begin(run, answer, cause)
    return (yield from going_back(run, events))


def going_back(run: Run, events: Events) -> Flow[Answer]:
    """The undoing keeps its lease by its own commits: each one renews it."""
    answer = yield from undoing.undo_all(run)
    if answer is None:
        events.emit("suspected", run.record.id, run.record.target)
        raise OutcomeUnknown(run.record.key, run.record.started, "a step could not be undone; it is a dead letter")
    events.emit("completed", run.record.id, run.record.target)
    return answer


def unfinished(operation: Declared, run: Run, error: Exception, events: Events) -> Flow[Answer]:
    """It could not go on. Later, if there are attempts left; else back, if it can go back; else to a person."""
    if run.answer is not None:
        return (yield from finish(run, run.answer, events))
    if isinstance(error, Unknown):
        yield from commit(run, run.journal, on_lapse="uncertain")
        yield from dead(run, str(error), events)
    if run.fence.attempt < operation.max_attempts or isinstance(error, OperationChanged):
        yield from step_back(run, f"{type(error).__name__}: {error}"[:200], events)
        if isinstance(error, RetrySafeError) and isinstance(error, OperationChanged):
            raise error
        raise NotFinished(operation.name, run.record.key, point(run), str(error)[:200]) from error
    if any(operation.steps[entry.step].undo is not None for entry in run.journal.entries):
        answer = Answer(502, {"error": "it could not be finished and was undone"})
        return (yield from turn_back(run, answer, str(error), events))
    yield from commit(run, run.journal)
    return (yield from dead(run, f"gave up after {run.fence.attempt} attempts: {error}"[:300], events))


def dead(run: Run, why: str, events: Events) -> Flow[Answer]:
    yield Suspect(run.record.id, run.fence, f"dead letter: {why}"[:400])
    events.emit("suspected", run.record.id, run.record.target)
    raise OutcomeUnknown(run.record.key, run.record.started, why)


def step_back(run: Run, note: str, events: Events) -> Flow[None]:
    """Release at the recovery point. What was begun is written down, so that nobody takes it for untouched."""
    if run.dirty or run.journal.entries:
        yield from commit(run, run.journal)
    if (yield Release(run.record.id, run.fence, note)):
        events.emit("released", run.record.id, run.record.target)


def interrupted(run: Run, events: Events) -> Flow[None]:
    """Cancelled or shut down: it knows how to go on, unless it stood in a step that may not be repeated."""
    if run.answer is not None:
        return
    last = run.journal.entries[-1] if run.journal.entries else None
    if last is not None and last.state == "begun" and not run.steps[last.step].repeatable:
        yield Suspect(run.record.id, run.fence, f"it was stopped inside {last.step!r}, which may not be repeated")
        events.emit("suspected", run.record.id, run.record.target)
        return
    yield from step_back(run, "it was stopped at its recovery point", events)


def point(run: Run) -> str:
    return run.journal.entries[-1].step if run.journal.entries else "the start"
