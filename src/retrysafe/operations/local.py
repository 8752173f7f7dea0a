"""Local steps: the user's writes and the recovery point, in one commit.

Inside the transaction a small story of its own runs (`with_store`, `with_receipt`). It yields statements of ours, the
user's function as `Work`, and FLUSH; `operations/perform.py` carries them out on the open transaction.

Where the store is another database than the user's, the step leaves a receipt `(run, step, result)` in the user's
commit instead, and the store's cursor may lag behind: whoever comes next finds the receipt before it runs anything.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from typing import Any

from retrysafe.core.jobs import Job, Stage
from retrysafe.core.ops import Complete, Install, Op, Renew
from retrysafe.core.records import Answer
from retrysafe.core.times import micros
from retrysafe.engine import typed
from retrysafe.engine.effects import Flow, Pause, Persist, Ring, Transact
from retrysafe.errors import (
    LeaseLost,
    NotSameDatabase,
    OperationChanged,
    ResultNotStorable,
    StoreUnavailable,
    UsageError,
)
from retrysafe.operations.endings import Ending
from retrysafe.operations.failures import StepFailed, Unknown, Unopened, told
from retrysafe.operations.journal import Entry, Journal
from retrysafe.operations.receipts import Inside, asked, check_not_late, name_record, texts
from retrysafe.operations.run import Run, announce, commit, pauses, truth
from retrysafe.operations.steps import Step
from retrysafe.stores.sql.receipts import Mark, Receipts, receipts, same_database
from retrysafe.transactions import parting
from retrysafe.transactions.effects import FLUSH
from retrysafe.transactions.failures import Trouble, trouble
from retrysafe.transactions.staging import Staging

AGAIN = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each further try when the database undid the step because of others."""


@dataclass(frozen=True, slots=True)
class Work:
    """The user's function on the open transaction's handle; what it stages is collected."""

    function: Callable[[Any], Any]
    staging: Staging


def local(run: Run, step: Step, place: int, known: Entry | None, given: dict[str, Any]) -> Flow[Any]:
    """Rolled back and tried again when it fails."""
    if known is not None and known.state == "done":
        return run.read_back(step, known)
    run.ground.needed(step.name)
    on_store = run.ground.kind == "store"
    if on_store:
        yield from announce(run, step)  # that another one comes, where it was announced
    if run.ground.kind == "elsewhere" and run.dirty and run.unwritten:
        yield from commit(run, run.journal)  # the rule that receipts are numbered by must be known before the second

    def settled(result: Any, text: str) -> tuple[Journal, Answer | None]:
        answer = result if isinstance(result, Answer) else None
        kept = "" if answer is not None and on_store else text
        args = step.dump_args(given, sealed=run.ground.sealer.active)
        entry = Entry(step.name, "done", args, kept, run.earliest(), given=run.given)
        journal = run.journal.with_entry(place, entry).but(announced=run.foresee() if on_store else "")
        return run.stamped(journal), answer

    def work(handle: Any) -> Any:
        return step.function(handle, **given)

    changed = Change(step.name, f"{run.journal.number(step.name, place)}:{step.name}", work, settled, step.returns)
    changed = replace(changed, backoff=step.backoff, final=step.final, announces=None if on_store else step)
    result = yield from persistently(run, changed, step.tries)
    return typed.load(run.journal.entries[place].result, step.returns) if result is LANDED else result


@dataclass(frozen=True, slots=True)
class Change:
    """What a transaction of a step (or of its undo) does, and what it makes of the journal."""

    step: str
    name: str
    """Of its receipt and its jobs: the place is in it, so that two calls of one step are two."""
    function: Callable[[Any], Any]
    settled: Callable[[Any, str], tuple[Journal, Answer | None]]
    returns: Any = None
    keeps: bool = True
    """Whether the result matters."""
    backoff: tuple[float, ...] = ()
    final: tuple[type[Exception], ...] = ()
    announces: Step | None = None
    """What the store is told before, where it is told of the commit only after it."""


class Refused(Exception):
    """The store said no inside the user's transaction, which is rolled back: somebody else has the record, or an
    earlier commit of this step has arrived since it was last looked for."""


LANDED = object()
"""In place of a result: the commit took place although its reply was lost."""


def persistently(run: Run, change: Change, tries: int) -> Flow[Any]:
    """Until it commits, as often as it may. Before it runs again, what is stored tells whether it did commit."""
    waiting = pauses(tries, change.backoff)
    contended = [*AGAIN]
    while True:
        try:
            return (yield from once(run, change))
        except (Ending, LeaseLost, UsageError, OperationChanged, Unknown):
            raise
        except Exception as error:
            failure = error
        if (yield from truth(run)):
            return LANDED
        if isinstance(failure, Refused):
            raise run.lost()
        run.in_doubt |= run.ground.kind == "elsewhere" and trouble(failure) is Trouble.LOST
        if isinstance(failure, change.final):
            raise StepFailed(change.step, told(failure), final=True) from failure
        waits = contended if trouble(failure) is Trouble.AGAIN and contended else waiting
        if not waits and isinstance(failure, Unopened):
            raise StoreUnavailable(f"no transaction could be opened for step {change.step!r}: {failure}") from failure
        if not waits:
            raise StepFailed(change.step, told(failure)) from failure
        yield Pause(run.record.id, waits.pop(0))


def once(run: Run, change: Change) -> Flow[Any]:
    ground = run.ground
    if ground.kind == "elsewhere":
        # The user's commit cannot ask the fence, so it is asked just before.
        told = change.announces is not None and (yield from announce(run, change.announces))
        if not told and not (yield Persist(Renew(run.record.id, run.fence, micros(run.duration)), run.lease.until)):
            raise run.lost()
    elif not ground.known.install:
        ground.known.install = yield Install()  # before a transaction is open: an embedded store makes its tables now
    inside = with_store if ground.kind == "store" else with_receipt
    staged: list[Job] = []
    result, journal, answer = yield Transact(lambda tx: inside(run, change, tx, staged))
    if staged:
        yield Ring()
    run.trying = None
    if ground.kind == "store":
        run.advanced(journal)
        run.answer = answer
    else:
        run.journal, run.dirty, run.named = journal, True, True
    return result


# Inside the transaction ---------------------------------------------------------------------------------


def with_store(run: Run, change: Change, tx: Any, staged: list[Job]) -> Inside:
    """On the store's own database: the recovery point is in the same commit, and the fence is asked there."""
    statements = receipts(tx.dialect, run.ground.names)
    if not run.ground.checked:
        yield from on_the_same_database(run, tx)
    staging = Staging(run.record.run, change.name)
    result, text = yield from worked(run, change, statements, staging)
    journal, answer = change.settled(result, text)
    ops: list[Op[Any]] = [staging.op(run.record.namespace)] if staging.jobs else []
    ops.append(run.advance(journal))
    if answer is not None:
        ops.append(Complete(run.record.id, run.fence, answer))
    staged += staging.jobs
    run.trying = journal
    for op in ops:
        sealed = run.ground.sealer.seal(op)
        plan = statements.plans.of(sealed) if isinstance(op, Stage) else statements.plans.obeyed(sealed)
        if (yield from plan) is False:
            raise Refused
    return result, journal, answer


def with_receipt(run: Run, change: Change, tx: Any, staged: list[Job]) -> Inside:
    """On another database: the receipt's key `(run, step)` is the arbiter. The store is told after the commit."""
    ours = texts(tx.dialect, run.ground.names)
    whose = {"run": run.record.run, "step": change.name}
    found = yield from asked(ours, "receipt_step_find", whose)
    if found:
        text = run.ground.sealer.open_text(found[0][0], run.record.run, change.name)
        if not text:
            raise run.lost()  # whoever undoes this operation has barred the step
        result = typed.load(text, change.returns)
    else:
        staging = Staging(run.record.run, change.name, refused="this store is not in the database of `tx`")
        result, text = yield from worked(run, change, receipts(tx.dialect, run.ground.names), staging)
        sealed = run.ground.sealer.seal_text(text, run.record.run, change.name)
        check_not_late(run)
        yield from asked(ours, "receipt_step_put", {**whose, "result": sealed, "now": None})
    yield from name_record(run, ours)
    journal, answer = change.settled(result, text)
    return result, journal, answer


def worked(run: Run, change: Change, statements: Receipts, staging: Staging) -> Generator[Any, Any, tuple[Any, str]]:
    """The user's function, and its result as text and as it will be read back: what a later attempt gets, this one
    gets too. A commit or rollback of the user's own is detected, and then nobody can say what was kept."""
    mark = yield from statements.mark()
    try:
        result = yield Work(change.function, staging)
        result = result if change.keeps else None
        yield FLUSH
    except Exception as error:
        if (yield from parting.parted(statements, mark, another(statements, mark), error)):
            raise parted(change.step) from error
        raise
    try:
        text = typed.dump(result, typed.kept_if(run.ground.sealer.active))
        result = typed.load(text, change.returns)
    except Exception as error:  # whatever the type's own constructor raises, among others
        raise ResultNotStorable(f"step {change.step!r}", str(error), rolled_back=True) from error
    try:
        was_parted = yield from another(statements, mark)
    except Exception as error:
        # The step may have passed over an error of its own, after which PostgreSQL refuses ours.
        if (yield from parting.parted(statements, mark, another(statements, mark), error)):
            raise parted(change.step) from error
        raise
    if was_parted:
        raise parted(change.step)
    return result, text


def another(statements: Receipts, mark: Mark) -> Generator[Any, Any, bool]:
    """Whether the open transaction is another one than the marked one."""
    return not (yield from statements.whole(mark))


def parted(step: str) -> Unknown:
    return Unknown(
        step,
        "it committed or rolled back its own transaction, so what it wrote and its recovery point were parted; "
        "leave commit and rollback to retrysafe, and use a savepoint inside",
        undoable=False,
    )


def on_the_same_database(run: Run, tx: Any) -> Inside:
    """NotSameDatabase unless the user's transaction is on the store's own database: asked once."""
    ground = run.ground
    try:
        yield from same_database(tx.dialect, ground.names, ground.known.install)
    except NotSameDatabase:
        raise
    except Exception as error:
        if trouble(error) is Trouble.MISSING:
            raise NotSameDatabase(ground.known.install, "") from error
        raise
    ground.checked = True


def barred(run: Run, tx: Any) -> Inside:
    """Leave empty receipts for whatever local step may come next: an owner that was taken over, and does not know it
    yet, must not run one after the operation was undone."""
    statements = texts(tx.dialect, run.ground.names)
    yield from name_record(run, statements)
    for step in run.steps.values():
        name = f"{run.journal.number(step.name, len(run.journal.entries))}:{step.name}"
        whose = {"run": run.record.run, "step": name}
        if step.kind == "local" and not (yield from asked(statements, "receipt_step_find", whose)):
            sealed = run.ground.sealer.seal_text("", run.record.run, name)
            yield from asked(statements, "receipt_step_put", {**whose, "result": sealed, "now": None})
