"""Local steps: the user's writes and the recovery point, in one commit.

Inside the transaction a small flow of its own runs (`commit_with_store`, `commit_with_receipt`). It yields our
statements, the user's function as `Work`, and FLUSH; `operations/perform.py` carries them out on the open transaction.

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
from retrysafe.core.times import duration_to_micros
from retrysafe.engine import typed
from retrysafe.engine.effects import Flow, FlowPause, NotifyWorker, Persist, RunTransaction
from retrysafe.errors import (
    LeaseLost,
    NotSameDatabase,
    OperationChanged,
    ResultNotStorable,
    StoreUnavailable,
    UsageError,
)
from retrysafe.operations.endings import OperationEnding
from retrysafe.operations.failures import StepFailed, StepOutcomeUnknown, TransactionNotOpened, format_error
from retrysafe.operations.journal import OperationJournal, StepEntry
from retrysafe.operations.receipts import (
    Inside,
    build_receipt_texts,
    check_not_late,
    name_record,
    run_receipt_statement,
)
from retrysafe.operations.run import OperationRun, announce, commit_journal, commit_was_applied, retry_delays
from retrysafe.operations.steps import Step
from retrysafe.stores.sql.receipts import SqlReceipts, TxMarker, load_receipts, same_database
from retrysafe.transactions import parting
from retrysafe.transactions.effects import FLUSH
from retrysafe.transactions.failures import ErrorClass, classify_error
from retrysafe.transactions.staging import Staging

CONTENTION_DELAYS_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Seconds before each further try when the database undid the step because of others."""


@dataclass(frozen=True, slots=True)
class CallInTransaction:
    """The user's function on the open transaction's handle; what it stages is collected."""

    function: Callable[[Any], Any]
    staging: Staging


def run_local_step(
    run: OperationRun, step: Step, place: int, known: StepEntry | None, given: dict[str, Any]
) -> Flow[Any]:
    """Rolled back and tried again when it fails."""
    if known is not None and known.state == "done":
        return run.read_result(step, known)
    run.tx_binding.require_tx(step.name)
    on_store = run.tx_binding.kind == "store"
    if on_store:
        yield from announce(run, step)  # that another one comes, where it was announced
    if run.tx_binding.kind == "elsewhere" and run.dirty and run.unwritten:
        yield from commit_journal(
            run, run.journal
        )  # the rule that receipts are numbered by must be known before the second

    def update_journal(result: Any, text: str) -> tuple[OperationJournal, Answer | None]:
        answer = result if isinstance(result, Answer) else None
        kept = "" if answer is not None and on_store else text
        args = step.dump_args(given, sealed=run.tx_binding.sealer.active)
        entry = StepEntry(step.name, "done", args, kept, run.earliest_time(), given=run.given)
        journal = run.journal.with_entry(place, entry).but(announced=run.foresee() if on_store else "")
        refused = run.left_out(journal) if answer is not None else None
        if refused is not None:
            raise refused  # rolled back
        return run.stamp_journal(journal), answer

    def call_step(handle: Any) -> Any:
        return step.function(handle, **given)

    changed = StepChange(
        step.name, f"{run.journal.call_number(step.name, place)}:{step.name}", call_step, update_journal, step.returns
    )
    changed = replace(changed, backoff=step.backoff, final=step.final, announces=None if on_store else step)
    result = yield from retry_transaction(run, changed, step.tries)
    return typed.load(run.journal.entries[place].result, step.returns) if result is ALREADY_COMMITTED else result


@dataclass(frozen=True, slots=True)
class StepChange:
    """What a transaction of a step (or of its undo) does, and what it makes of the journal."""

    step: str
    name: str
    """Of its receipt and its jobs: the place is in it, so that two calls of one step are two."""
    function: Callable[[Any], Any]
    update_journal: Callable[[Any, str], tuple[OperationJournal, Answer | None]]
    returns: Any = None
    keeps_result: bool = True
    """Whether the result matters."""
    backoff: tuple[float, ...] = ()
    final: tuple[type[Exception], ...] = ()
    announces: Step | None = None
    """What the store is told before, where it is told of the commit only after it."""


class AdvanceRefused(Exception):
    """The store said no inside the user's transaction, which is rolled back: somebody else has the record, or an
    earlier commit of this step has arrived since it was last looked for."""


ALREADY_COMMITTED = object()
"""In place of a result: the commit took place although its reply was lost."""


def retry_transaction(run: OperationRun, change: StepChange, tries: int) -> Flow[Any]:
    """Until it commits, as often as it may. Before it runs again, what is stored tells whether it did commit."""
    waiting = retry_delays(tries, change.backoff)
    contended = [*CONTENTION_DELAYS_SECONDS]
    while True:
        try:
            return (yield from run_transaction(run, change))
        except (OperationEnding, LeaseLost, UsageError, OperationChanged, StepOutcomeUnknown):
            raise
        except Exception as error:
            failure = error
        if (yield from commit_was_applied(run)):
            return ALREADY_COMMITTED
        if isinstance(failure, AdvanceRefused):
            raise run.lease_lost_error()
        run.in_doubt |= run.tx_binding.kind == "elsewhere" and classify_error(failure) is ErrorClass.CONNECTION_LOST
        if isinstance(failure, change.final):
            raise StepFailed(change.step, format_error(failure), final=True) from failure
        waits = contended if classify_error(failure) is ErrorClass.RETRYABLE and contended else waiting
        if not waits and isinstance(failure, TransactionNotOpened):
            raise StoreUnavailable(f"no transaction could be opened for step {change.step!r}: {failure}") from failure
        if not waits:
            raise StepFailed(change.step, format_error(failure)) from failure
        yield FlowPause(run.record.id, waits.pop(0))


def run_transaction(run: OperationRun, change: StepChange) -> Flow[Any]:
    ground = run.tx_binding
    if ground.kind == "elsewhere":
        # The user's commit cannot ask the fence, so it is asked just before.
        told = change.announces is not None and (yield from announce(run, change.announces))
        if not told and not (
            yield Persist(Renew(run.record.id, run.fence, duration_to_micros(run.duration)), run.lease.until)
        ):
            raise run.lease_lost_error()
    elif not ground.install_id.value:
        # Before a transaction is open: an embedded store creates its tables now.
        ground.install_id.value = yield Install()
    inside = commit_with_store if ground.kind == "store" else commit_with_receipt
    staged: list[Job] = []
    result, journal, answer = yield RunTransaction(lambda tx: inside(run, change, tx, staged))
    if staged:
        yield NotifyWorker()
    run.pending_journal = None
    if ground.kind == "store":
        run.record_advance(journal)
        run.answer = answer
    else:
        run.journal, run.dirty, run.named = journal, True, True
    return result


# Inside the transaction ---------------------------------------------------------------------------------


def commit_with_store(run: OperationRun, change: StepChange, tx: Any, staged: list[Job]) -> Inside:
    """On the store's own database: the recovery point is in the same commit, and the fence is asked there."""
    statements = load_receipts(tx.dialect, run.tx_binding.names)
    if not run.tx_binding.database_checked:
        yield from check_same_database(run, tx)
    staging = Staging(run.record.run, change.name)
    result, text = yield from run_function(run, change, statements, staging)
    journal, answer = change.update_journal(result, text)
    ops: list[Op[Any]] = [staging.build_op(run.record.namespace)] if staging.jobs else []
    ops.append(run.build_advance(journal))
    if answer is not None:
        ops.append(Complete(run.record.id, run.fence, answer))
    staged += staging.jobs
    run.pending_journal = journal
    for op in ops:
        sealed = run.tx_binding.sealer.seal(op)
        plan = (
            statements.plans.plan_operation(sealed) if isinstance(op, Stage) else statements.plans.apply_fenced(sealed)
        )
        if (yield from plan) is False:
            raise AdvanceRefused
    return result, journal, answer


def commit_with_receipt(run: OperationRun, change: StepChange, tx: Any, staged: list[Job]) -> Inside:
    """On another database: the receipt's key `(run, step)` is the arbiter. The store is told after the commit."""
    ours = build_receipt_texts(tx.dialect, run.tx_binding.names)
    whose = {"run": run.record.run, "step": change.name}
    found = yield from run_receipt_statement(ours, "receipt_step_find", whose)
    if found:
        text = run.tx_binding.sealer.open_text(found[0][0], run.record.run, change.name)
        if not text:
            raise run.lease_lost_error()  # whoever undoes this operation has barred the step
        result = typed.load(text, change.returns)
    else:
        staging = Staging(run.record.run, change.name, refused="this store is not in the database of `tx`")
        result, text = yield from run_function(run, change, load_receipts(tx.dialect, run.tx_binding.names), staging)
        sealed = run.tx_binding.sealer.seal_text(text, run.record.run, change.name)
        check_not_late(run)
        yield from run_receipt_statement(ours, "receipt_step_put", {**whose, "result": sealed, "now": None})
    yield from name_record(run, ours)
    journal, answer = change.update_journal(result, text)
    return result, journal, answer


def run_function(
    run: OperationRun, change: StepChange, statements: SqlReceipts, staging: Staging
) -> Generator[Any, Any, tuple[Any, str]]:
    """The user's function, and its result as text and as it will be read back: what a later attempt gets, this one
    gets too. A commit or rollback of the user's own is detected, and then nobody can say what was kept."""
    mark = yield from statements.mark_transaction()
    try:
        result = yield CallInTransaction(change.function, staging)
        result = result if change.keeps_result else None
        yield FLUSH
    except Exception as error:
        if (yield from parting.parted(statements, mark, another(statements, mark), error)):
            raise split_error(change.step) from error
        raise
    try:
        was_parted = yield from another(statements, mark)
    except Exception as error:
        # The step may have passed over an error of its own, after which PostgreSQL refuses ours.
        if (yield from parting.parted(statements, mark, another(statements, mark), error)):
            raise split_error(change.step) from error
        raise
    if was_parted:
        raise split_error(change.step)
    try:
        text = typed.dump(result, typed.secrets_rule(run.tx_binding.sealer.active))
        result = typed.load(text, change.returns)
    except Exception as error:  # whatever the type's own constructor raises, among others
        raise ResultNotStorable(f"step {change.step!r}", str(error), rolled_back=True) from error
    return result, text


def another(statements: SqlReceipts, mark: TxMarker) -> Generator[Any, Any, bool]:
    """Whether the open transaction is another one than the marked one."""
    return not (yield from statements.is_same_transaction(mark))


def split_error(step: str) -> StepOutcomeUnknown:
    return StepOutcomeUnknown(
        step,
        "it committed or rolled back its own transaction, so what it wrote and its recovery point were parted; "
        "leave commit and rollback to retrysafe, and use a savepoint inside",
        undoable=False,
    )


def check_same_database(run: OperationRun, tx: Any) -> Inside:
    """NotSameDatabase unless the user's transaction is on the store's own database: asked once."""
    ground = run.tx_binding
    try:
        yield from same_database(tx.dialect, ground.names, ground.install_id.value)
    except NotSameDatabase:
        raise
    except Exception as error:
        if classify_error(error) is ErrorClass.SCHEMA_MISSING:
            raise NotSameDatabase(ground.install_id.value, "") from error
        raise
    ground.database_checked = True


def block_late_steps(run: OperationRun, tx: Any) -> Inside:
    """Leave empty receipts for whatever local step may come next: an owner that was taken over, and does not know it
    yet, must not run one after the operation was undone."""
    statements = build_receipt_texts(tx.dialect, run.tx_binding.names)
    yield from name_record(run, statements)
    places = [(step, len(run.journal.entries)) for step in run.steps.values()]
    places += [(run.steps[entry.step], at) for at, entry in enumerate(run.journal.entries) if entry.state == "begun"]
    for step, place in places:
        name = f"{run.journal.call_number(step.name, place)}:{step.name}"
        whose = {"run": run.record.run, "step": name}
        if step.kind == "local" and not (yield from run_receipt_statement(statements, "receipt_step_find", whose)):
            sealed = run.tx_binding.sealer.seal_text("", run.record.run, name)
            yield from run_receipt_statement(statements, "receipt_step_put", {**whose, "result": sealed, "now": None})
