"""Undo (compensation): every step that began is undone in reverse order, each with its own key and its own intent.

An undo gets the arguments and the result of its step. The result is None if it is unknown whether the step happened, so
an undo must accept "nothing to undo". Of a local step with a receipt it is known: if it did not happen, its undo is not
called. If one undo fails for good, the next still runs, and the operation ends as a dead
letter, whose ledger a person reads (I22, I23, I24).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retrysafe.core.records import Answer
from retrysafe.engine import typed
from retrysafe.engine.effects import CallFunction, Flow, FlowPause, RunTransaction
from retrysafe.errors import LeaseLost, RetrySafeError, StoreUnavailable, UsageError
from retrysafe.operations.commits import commit_journal, store_answer
from retrysafe.operations.errors import OperationEnding, StepFailed, StepOutcomeUnknown, format_error
from retrysafe.operations.foreign import is_key_usable
from retrysafe.operations.journal import TO_UNDO, OperationJournal, StepEntry
from retrysafe.operations.local import CONTENTION_DELAYS_SECONDS, StepChange, block_late_steps, retry_transaction
from retrysafe.operations.run import OperationRun, retry_delays
from retrysafe.operations.steps import Step

UNDO_TRIES = 4


def begin_undoing(run: OperationRun, answer: Answer, cause: str) -> Flow[None]:
    """Commit that this operation is being undone, before any undo is sent: after a crash it must not run forward."""
    entries = tuple(entry if can_undo(run, entry) else entry.replace(state="kept") for entry in run.journal.entries)
    yield from commit_journal(run, replace(run.journal, entries=entries, undoing=answer, cause=cause[:500]))
    yield from block_late_owner(run)


def block_late_owner(run: OperationRun) -> Flow[None]:
    """Stop an owner that was taken over from committing in the user's own database, where the fence of the record does
    not reach. Each attempt at the undo does this, because the first one may have died before. A failure is tried again:
    it may be a conflict with that very owner. Raises StoreUnavailable if the database stays away. What the receipts
    there say of steps of unknown outcome is kept in `run.receipts`."""
    delays = [*CONTENTION_DELAYS_SECONDS]
    while run.tx_binding.kind == "elsewhere":
        try:
            run.receipts = yield RunTransaction(lambda tx: block_late_steps(run, tx))
        except RetrySafeError:
            raise
        except Exception as error:
            failure = error
        else:
            return
        if not delays:
            what = "the database of `tx` could not be reached before the undo"
            raise StoreUnavailable(f"{what}: {format_error(failure)}") from failure
        yield FlowPause(run.record.id, delays.pop(0))


def can_undo(run: OperationRun, entry: StepEntry) -> bool:
    """True if there is something to undo. A local step that failed was rolled back, so it did not happen."""
    step = run.steps[entry.step]
    return step.undo is not None and not (step.kind == "local" and entry.state == "failed")


def undo_all(run: OperationRun) -> Flow[Answer | None]:
    """Undo what is left. Returns the answer to give, or None if a person must look. A stuck undo is tried again: it is
    found here only after a person asked for it, or after a crash."""
    for place in reversed(range(len(run.journal.entries))):
        entry = run.journal.entries[place]
        if entry.state in TO_UNDO:
            yield from undo_one(run, run.steps[entry.step], place, entry)
    answer = run.journal.undoing
    assert answer is not None, "undoing was begun with an answer"
    if list_stuck_steps(run.journal):
        return None
    yield from store_answer(run, answer)
    return answer


def list_stuck_steps(journal: OperationJournal) -> list[str]:
    return [entry.step for entry in journal.entries if entry.state == "stuck"]


def undo_one(run: OperationRun, step: Step, place: int, entry: StepEntry) -> Flow[None]:
    """Send one undo, a bounded number of times. Its intent is committed first, so that the next attempt knows that it
    may have happened. The life of its key counts from the first time that it may have been sent; a stuck undo was
    sent."""
    since = entry.undo_at or run.earliest_time()
    begun = entry.replace(state="undoing", undo_at=since)
    if step.kind == "local":
        yield from undo_local(run, step, place, begun)
        return
    if begun != entry:
        yield from commit_entry(run, place, begun)
    failure: BaseException = TimeoutError(
        f"the key of its undo may be older than key_life={step.key_life:.0f} s, so it is not sent again; look there, "
        "undo it by hand if it stands, and then say how the run ended: retrysafe keys resolve"
    )
    key = run.derive_key(step, place, undo=True)
    for pause in (*retry_delays(UNDO_TRIES), None):
        if not is_key_usable(run, step, since):
            break
        try:
            yield CallFunction(lambda: call_undo(step, entry, {"key": key}), step.timeout)
        except LeaseLost:
            raise
        except Exception as error:
            failure = error
        else:
            yield from commit_entry(run, place, begun.replace(state="undone", error=""))
            return
        if pause is not None:
            yield FlowPause(run.record.id, pause)
    yield from commit_entry(run, place, begun.replace(state="stuck", error=format_error(failure)))


def undo_local(run: OperationRun, step: Step, place: int, entry: StepEntry) -> Flow[None]:
    """Undo a local step. The entry is part of the same commit, so the undo happens once and needs no intent. A receipt
    tells whether a step of unknown outcome happened, and what it returned."""
    outcome = run.receipts.get(place)
    if outcome == "":
        yield from commit_entry(run, place, entry.replace(state="undone", error=""))
        return
    entry = entry if outcome is None else entry.replace(result=outcome)

    def update_journal(_: Any, __: str) -> tuple[OperationJournal, None]:
        return run.journal.with_entry(place, entry.replace(state="undone", error="")), None

    def call_step_undo(handle: Any) -> Any:
        return call_undo(step, entry, {}, handle)

    change = StepChange(
        step.name,
        f"{run.journal.call_number(step.name, place)}:{step.name}:undo",
        call_step_undo,
        update_journal,
        keeps_result=False,
    )
    try:
        yield from retry_transaction(run, change, UNDO_TRIES)
    except (StepFailed, OperationEnding, StepOutcomeUnknown, UsageError) as failure:
        why = failure.why if isinstance(failure, StepFailed) else format_error(failure)
        yield from commit_entry(run, place, entry.replace(state="stuck", error=why))
        return
    if run.dirty:
        yield from commit_journal(run, run.journal)


def call_undo(step: Step, entry: StepEntry, ours: dict[str, Any], *handle: Any) -> Any:
    """Call `undo(tx?, **arguments of the step, result=…, key=…)`. The undo may leave out parameters."""
    undo: Callable[..., Any] | None = step.undo
    assert undo is not None
    result = typed.load(entry.result, step.returns) if entry.result else None
    offered = {**step.load_args(entry.args), "result": result, **ours}
    accepted = inspect.signature(undo).parameters
    if not any(p.kind is inspect.Parameter.VAR_KEYWORD for p in accepted.values()):
        offered = {name: value for name, value in offered.items() if name in accepted}
    return undo(*handle, **offered)


def commit_entry(run: OperationRun, place: int, entry: StepEntry) -> Flow[None]:
    yield from commit_journal(run, run.journal.with_entry(place, entry))
