"""Undoing: every step that began, in reverse, each with its own key and its own intent.

An undo is told what its step was given and what it returned, or None where nobody knows whether it happened; it must
accept "nothing to undo". When one fails for good the next still runs, and the operation ends as a dead letter: a
person sees the ledger. It never ends silently (I22, I23, I24).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retrysafe.core.records import Answer
from retrysafe.engine import typed
from retrysafe.engine.effects import Call, Flow, Pause, Transact
from retrysafe.errors import LeaseLost, UsageError
from retrysafe.operations.endings import Ending
from retrysafe.operations.failures import StepFailed, Unknown, told
from retrysafe.operations.foreign import usable
from retrysafe.operations.journal import TO_UNDO, Entry, Journal
from retrysafe.operations.local import Change, barred, persistently
from retrysafe.operations.run import Run, commit, complete, pauses
from retrysafe.operations.steps import Step

UNDO_TRIES = 4


def begin(run: Run, answer: Answer, cause: str) -> Flow[None]:
    """From here on this operation only goes back. Committed first, so that a crash does not start it forward again."""
    entries = tuple(entry if undoable(run, entry) else entry.but(state="kept") for entry in run.journal.entries)
    yield from commit(run, replace(run.journal, entries=entries, undoing=answer, cause=cause[:500]))
    if run.ground.kind == "elsewhere":
        yield Transact(lambda tx: barred(run, tx))


def undoable(run: Run, entry: Entry) -> bool:
    """Whether there is something to undo. A local step that failed was rolled back: it surely did not happen."""
    step = run.steps[entry.step]
    return step.undo is not None and not (step.kind == "local" and entry.state == "failed")


def undo_all(run: Run) -> Flow[Answer | None]:
    """Undo what is left. The answer to give, or None when a person must look. What is stuck is tried again: it is
    only ever met here after a person said so, or after a crash."""
    for place in reversed(range(len(run.journal.entries))):
        entry = run.journal.entries[place]
        if entry.state in TO_UNDO:
            yield from undo_one(run, run.steps[entry.step], place, entry)
    answer = run.journal.undoing
    assert answer is not None, "undoing was begun with an answer"
    if stuck(run.journal):
        return None
    yield from complete(run, answer)
    return answer


def stuck(journal: Journal) -> list[str]:
    return [entry.step for entry in journal.entries if entry.state == "stuck"]


def undo_one(run: Run, step: Step, place: int, entry: Entry) -> Flow[None]:
    """One undo, bounded. Its intent first: the next attempt must know that it may have happened. Its key ages from the
    first time it may have been sent: one that is stuck was sent."""
    since = entry.undo_at or run.earliest()
    begun = entry.but(state="undoing", undo_at=since)
    if step.kind == "local":
        yield from undo_local(run, step, place, begun)
        return
    if begun != entry:
        yield from mark(run, place, begun)
    failure: BaseException = TimeoutError(f"the key of its undo may be older than key_life={step.key_life:.0f} s")
    key = run.key(step, place, undo=True)
    for pause in (*pauses(UNDO_TRIES), None):
        if not usable(run, step, since):
            break
        try:
            yield Call(lambda: call_undo(step, entry, {"key": key}), step.timeout)
        except LeaseLost:
            raise
        except Exception as error:
            failure = error
        else:
            yield from mark(run, place, begun.but(state="undone", error=""))
            return
        if pause is not None:
            yield Pause(run.record.id, pause)
    yield from mark(run, place, begun.but(state="stuck", error=told(failure)))


def undo_local(run: Run, step: Step, place: int, entry: Entry) -> Flow[None]:
    """With the mark in the same commit, so that it happens once; so it needs no intent of its own."""

    def settled(_: Any, __: str) -> tuple[Journal, None]:
        return run.journal.with_entry(place, entry.but(state="undone", error="")), None

    def work(handle: Any) -> Any:
        return call_undo(step, entry, {}, handle)

    change = Change(step.name, f"{run.journal.number(step.name, place)}:{step.name}:undo", work, settled, keeps=False)
    try:
        yield from persistently(run, change, UNDO_TRIES)
    except (StepFailed, Ending, Unknown, UsageError) as failure:
        why = failure.why if isinstance(failure, StepFailed) else told(failure)
        yield from mark(run, place, entry.but(state="stuck", error=why))
        return
    if run.dirty:
        yield from commit(run, run.journal)


def call_undo(step: Step, entry: Entry, ours: dict[str, Any], *handle: Any) -> Any:
    """`undo(tx?, **step's arguments, result=…, key=…)`; an undo may leave out what it does not need."""
    undo: Callable[..., Any] | None = step.undo
    assert undo is not None
    result = typed.load(entry.result, step.returns) if entry.result else None
    offered = {**step.load_args(entry.args), "result": result, **ours}
    accepted = inspect.signature(undo).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
        offered = {name: value for name, value in offered.items() if name in accepted}
    return undo(*handle, **offered)


def mark(run: Run, place: int, entry: Entry) -> Flow[None]:
    yield from commit(run, run.journal.with_entry(place, entry))
