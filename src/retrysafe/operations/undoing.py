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

from retrysafe.core.ops import Complete, Op, Suspect
from retrysafe.core.records import Answer
from retrysafe.engine import typed
from retrysafe.engine.effects import Call, Flow, Pause, Transact
from retrysafe.errors import LeaseLost
from retrysafe.operations.journal import Entry
from retrysafe.operations.run import BACKOFF, Run, commit, committed_undo
from retrysafe.operations.steps import Step


def begin(run: Run, answer: Answer, cause: str) -> Flow[None]:
    """From here on this operation only goes back. Committed first, so that a crash does not start it forward again."""
    run.place = len(run.journal.entries)
    yield from commit(run, replace(run.journal, undoing=answer, cause=cause))


def undo_all(run: Run) -> Flow[Answer | None]:
    """Undo what is left. The answer to give, or None when a person must look."""
    for place in reversed(range(len(run.journal.entries))):
        entry = run.journal.entries[place]
        step = run.steps[entry.step]
        if entry.state in ("undone", "stuck"):
            continue
        if step.undo is None:
            yield from mark(run, place, replace(entry, state="undone", error="nothing to undo"))
            continue
        yield from undo_one(run, step, place, entry)
    stuck = [entry.step for entry in run.journal.entries if entry.state == "stuck"]
    answer = run.journal.undoing
    assert answer is not None, "undoing was begun with an answer"
    if not stuck:
        if not (yield Complete(run.record.id, run.fence, answer)):
            raise LeaseLost(run.record.key, run.fence.attempt)
        return answer
    yield Suspect(run.record.id, run.fence, f"dead letter: the undo of {', '.join(stuck)} failed; see its ledger")
    return None


def undo_one(run: Run, step: Step, place: int, entry: Entry) -> Flow[None]:
    """One undo, bounded. Its intent first: the next attempt must know that it may have happened."""
    yield from mark(run, place, replace(entry, state="undoing"))
    failure: BaseException = RuntimeError("not tried")
    for pause in (*BACKOFF, None):
        try:
            yield from (undo_local if step.kind == "local" else undo_foreign)(run, step, place, entry)
            return
        except LeaseLost:
            raise
        except Exception as error:
            failure = error
        if step.kind == "local" and (yield from committed_undo(run, place)):
            return
        if pause is not None:
            yield Pause(run.record.id, pause)
    error_text = f"{type(failure).__name__}: {failure}"[:500]
    yield from mark(run, place, replace(entry, state="stuck", error=error_text))


def undo_foreign(run: Run, step: Step, place: int, entry: Entry) -> Flow[None]:
    key = run.key(step, place, undo=True)
    yield Call(lambda: call_undo(step, entry, {"key": key}), step.timeout)
    yield from mark(run, place, replace(entry, state="undone"))


def undo_local(run: Run, step: Step, place: int, entry: Entry) -> Flow[None]:
    """With the mark in the same commit, so that it happens once."""
    journal = replace(run.journal.with_entry(place, replace(entry, state="undone")), at=run.now())

    def settle(_: Any) -> tuple[Op[Any], ...]:
        return (run.advance(journal),)

    yield Transact(lambda handle: call_undo(step, entry, {}, handle), settle)
    run.journal = journal


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
