"""Local steps: the user's writes and the recovery point, in one commit.

Inside the transaction a flow of its own runs (`commit_with_store`, `commit_with_receipt`). It yields our statements,
the user's function as `CallInTransaction`, and FLUSH; `operations/perform.py` performs them on the open transaction.

If the store is another database than the user's, the step writes a receipt `(run, step, result)` in the user's commit
instead. The journal in the store may lag behind: the next attempt finds the receipt before it runs the step again.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import dataclass, field, replace
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
from retrysafe.operations.commits import announce, commit_journal, commit_was_applied
from retrysafe.operations.errors import (
    OperationEnding,
    StepFailed,
    StepOutcomeUnknown,
    TransactionNotOpened,
    format_error,
)
from retrysafe.operations.journal import OperationJournal, StepEntry, was_unknown
from retrysafe.operations.receipts import (
    InsideTx,
    build_receipt_texts,
    check_not_late,
    name_record,
    run_receipt_statement,
)
from retrysafe.operations.run import OperationRun, retry_delays
from retrysafe.operations.steps import Step
from retrysafe.stores.sql.receipts import SqlReceipts, TxMarker, load_receipts, same_database
from retrysafe.transactions.early_commits import detect_early_commit
from retrysafe.transactions.effects import FLUSH
from retrysafe.transactions.failures import ErrorClass, classify_error
from retrysafe.transactions.staging import Staging

CONTENTION_DELAYS_SECONDS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
"""Pauses before each further try after a deadlock or serialization failure."""


@dataclass(frozen=True, slots=True)
class CallInTransaction:
    """An effect: call the user's function on the handle of the open transaction, and collect the jobs that it
    stages."""

    function: Callable[[Any], Any]
    staging: Staging


def run_local_step(
    run: OperationRun, step: Step, place: int, known: StepEntry | None, given: dict[str, Any]
) -> Flow[Any]:
    """Run the step in a transaction. If it fails, it is rolled back and tried again."""
    if known is not None and known.state == "done":
        return run.read_result(step, known)
    run.tx_binding.require_tx(step.name)
    on_store = run.tx_binding.kind == "store"
    if on_store:
        yield from announce(run, step)  # corrects the journal if another step was announced
    if run.tx_binding.kind == "elsewhere" and run.dirty and run.unwritten:
        # Before the second receipt is written, the store must know the rule by which receipts are numbered.
        yield from commit_journal(run, run.journal)

    args = step.dump_args(given, sealed=run.tx_binding.sealer.active)
    run.local_call = (place, StepEntry(step.name, "begun", args, "", run.earliest_time(), given=run.given))

    def update_journal(result: Any, text: str) -> tuple[OperationJournal, Answer | None]:
        answer = result if isinstance(result, Answer) else None
        kept = "" if answer is not None and on_store else text
        entry = StepEntry(step.name, "done", args, kept, run.earliest_time(), given=run.given)
        journal = run.journal.with_entry(place, entry).replace(announced=run.predict_announcement() if on_store else "")
        refused = run.left_out_error(journal) if answer is not None else None
        if refused is not None:
            raise refused  # the transaction is rolled back
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
    """A transaction of a step or of its undo: the function to run, and how the journal changes."""

    step: str
    name: str
    """The name of its receipt and its jobs. It has the number of the call in it, so that two calls of one step
    differ."""
    function: Callable[[Any], Any]
    update_journal: Callable[[Any, str], tuple[OperationJournal, Answer | None]]
    returns: Any = None
    keeps_result: bool = True
    """False if the function's result is ignored."""
    backoff: tuple[float, ...] = ()
    final: tuple[type[Exception], ...] = ()
    announces: Step | None = None
    """The step to announce before the transaction, if the store is another database."""
    lost: list[TxMarker] = field(default_factory=list)
    """The marks of transactions whose connection was lost before it was known whether they were committed."""


class AdvanceRefused(Exception):
    """The store refused the advance inside the user's transaction, which is rolled back. Another attempt has the
    record, or an earlier commit of this step has arrived in the meantime."""


ALREADY_COMMITTED = object()
"""In place of a result: the commit took place although its reply was lost."""


def retry_transaction(run: OperationRun, change: StepChange, tries: int) -> Flow[Any]:
    """Run the transaction until it commits, a bounded number of times. Before each further try, the stored record tells
    whether the last one was committed after all."""
    waiting = retry_delays(tries, change.backoff)
    contended = [*CONTENTION_DELAYS_SECONDS]
    while True:
        try:
            return (yield from run_unless_committed(run, change))
        except (OperationEnding, LeaseLost, UsageError, OperationChanged, StepOutcomeUnknown):
            raise
        except Exception as error:
            failure = error
        except GeneratorExit:
            raise
        except BaseException:
            # Stopped in the middle, perhaps after the commit: only the receipt tells, which later code asks for.
            run.in_doubt |= run.tx_binding.kind == "elsewhere"
            raise
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


def run_unless_committed(run: OperationRun, change: StepChange) -> Flow[Any]:
    """Run the transaction. If its connection is lost, ask whether the step itself had committed it: nothing runs again,
    and nothing is undone, before that is answered."""
    yield from check_lost_transactions(run, change)
    try:
        return (yield from run_transaction(run, change))
    except Exception as error:
        if not change.lost:
            raise
        failure = error
    yield from check_lost_transactions(run, change)
    raise failure


def check_lost_transactions(run: OperationRun, change: StepChange) -> Flow[None]:
    """Raise StepOutcomeUnknown if a transaction whose connection was lost was committed. A new transaction asks."""
    while change.lost:
        try:
            committed = yield RunTransaction(
                lambda tx: load_receipts(tx.dialect, run.tx_binding.names).was_committed(change.lost[0])
            )
        except Exception as error:
            raise TransactionNotOpened(format_error(error)) from error
        if committed:
            raise own_commit_error(change.step)
        change.lost.pop(0)


def run_transaction(run: OperationRun, change: StepChange) -> Flow[Any]:
    binding = run.tx_binding
    if binding.kind == "elsewhere":
        # The user's commit cannot check the fence, so a write to the store checks it just before.
        fence_checked = change.announces is not None and (yield from announce(run, change.announces))
        if not fence_checked and not (
            yield Persist(Renew(run.record.id, run.fence, duration_to_micros(run.duration)), run.lease.until)
        ):
            raise run.lease_lost_error()
    elif not binding.install_id.value:
        # Before the transaction is open, because an embedded store creates its tables now.
        binding.install_id.value = yield Install()
    inside = commit_with_store if binding.kind == "store" else commit_with_receipt
    staged: list[Job] = []
    result, journal, answer = yield RunTransaction(lambda tx: inside(run, change, tx, staged))
    if staged:
        yield NotifyWorker()
    run.pending_journal = None
    if binding.kind == "store":
        run.record_advance(journal)
        run.answer = answer
    else:
        run.journal, run.dirty, run.named = journal, True, True
    return result


# Inside the transaction ---------------------------------------------------------------------------------


def commit_with_store(run: OperationRun, change: StepChange, tx: Any, staged: list[Job]) -> InsideTx:
    """Commit on the store's own database: the recovery point is in the same commit, and so is the check of the
    fence."""
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


def commit_with_receipt(run: OperationRun, change: StepChange, tx: Any, staged: list[Job]) -> InsideTx:
    """Commit on another database. The unique key `(run, step)` of the receipt decides which attempt commits. The store
    gets the result with a later commit."""
    ours = build_receipt_texts(tx.dialect, run.tx_binding.names)
    whose = {"run": run.record.run, "step": change.name}
    found = yield from run_receipt_statement(ours, "receipt_step_find", whose)
    if found:
        text = run.tx_binding.sealer.open_text(found[0][0], run.record.run, change.name)
        if not text:
            raise run.lease_lost_error()  # an attempt that undoes this operation has blocked the step
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
    """Call the user's function. Returns its result as it is read back, and as text: this attempt gets the same value as
    a later one. A commit or rollback inside the function is detected; then it is unknown what was kept."""
    mark = yield from statements.mark_transaction()
    try:
        result = yield CallInTransaction(change.function, staging)
        result = result if change.keeps_result else None
        yield FLUSH
    except Exception as error:
        yield from check_split(change, statements, mark, error)
        raise
    except GeneratorExit:
        raise
    except BaseException:
        yield from check_interrupted(run, change, statements, mark)
        raise
    try:
        was_parted = yield from is_other_transaction(statements, mark)
    except Exception as error:
        # The step may have swallowed an error of a statement. PostgreSQL refuses our statement after that.
        yield from check_split(change, statements, mark, error)
        raise
    if was_parted:
        raise own_commit_error(change.step)
    try:
        text = typed.dump(result, typed.secrets_rule(run.tx_binding.sealer.active))
        result = typed.load(text, change.returns)
    except Exception as error:  # among others, anything that the type's constructor raises
        raise ResultNotStorable(f"step {change.step!r}", str(error), rolled_back=True) from error
    return result, text


def check_split(
    change: StepChange, statements: SqlReceipts, mark: TxMarker, error: Exception
) -> Generator[Any, Any, None]:
    """Raise StepOutcomeUnknown if a step that failed had committed something before."""
    split = yield from detect_early_commit(statements, mark, is_other_transaction(statements, mark), error)
    if split:
        raise own_commit_error(change.step) from error
    if split is None:
        change.lost.append(mark)


def check_interrupted(
    run: OperationRun, change: StepChange, statements: SqlReceipts, mark: TxMarker
) -> Generator[Any, Any, None]:
    """The step was cancelled, or the process is shut down. If it had committed something before, the run is broken. If
    its connection does not answer, `ask_interrupted_step` asks later."""
    split = yield from detect_early_commit(statements, mark, is_other_transaction(statements, mark))
    if split:
        run.broken = own_commit_error(change.step)
    if split is None:
        change.lost.append(mark)
        run.interrupted_change = change


def ask_interrupted_step(run: OperationRun) -> Flow[None]:
    """Before a run is settled: ask whether a step that was interrupted, and lost its connection, had committed."""
    change, run.interrupted_change = run.interrupted_change, None
    if change is None:
        return
    try:
        yield from check_lost_transactions(run, change)
    except StepOutcomeUnknown as unknown:
        run.broken = unknown


def is_other_transaction(statements: SqlReceipts, mark: TxMarker) -> Generator[Any, Any, bool]:
    """True if the open transaction is not the marked one."""
    return not (yield from statements.is_same_transaction(mark))


def own_commit_error(step: str) -> StepOutcomeUnknown:
    return StepOutcomeUnknown(
        step,
        "it committed or rolled back its own transaction, so what it wrote and its recovery point were parted; "
        "leave commit and rollback to retrysafe, and use a savepoint inside",
        undoable=False,
    )


def check_same_database(run: OperationRun, tx: Any) -> InsideTx:
    """Raise NotSameDatabase unless the user's transaction is on the store's own database. Checked once."""
    binding = run.tx_binding
    try:
        yield from same_database(tx.dialect, binding.names, binding.install_id.value)
    except NotSameDatabase:
        raise
    except Exception as error:
        if classify_error(error) is ErrorClass.SCHEMA_MISSING:
            raise NotSameDatabase(binding.install_id.value, "") from error
        raise
    binding.database_checked = True


def block_late_steps(run: OperationRun, tx: Any) -> Generator[Any, Any, dict[int, str]]:
    """Write empty receipts for every local step that may come next. An owner that was taken over, and does not know it
    yet, must not commit a local step after the operation was undone.

    Returns what the receipts say of each local step whose outcome is not in the journal, by its place: its result as
    text, or an empty text if it did not happen. After this commit it cannot happen any more. Of a step that committed
    by itself a receipt says nothing."""
    statements = build_receipt_texts(tx.dialect, run.tx_binding.names)
    yield from name_record(run, statements)
    for step in run.steps.values():
        yield from block_late_step(run, statements, step, len(run.journal.entries))
    outcomes = {}
    for place, entry in enumerate(run.journal.entries):
        if entry.state == "begun" and run.steps[entry.step].kind == "local":
            receipt = yield from block_late_step(run, statements, run.steps[entry.step], place)
            if not was_unknown(entry):
                outcomes[place] = receipt
    return outcomes


def block_late_step(run: OperationRun, statements: dict[str, str], step: Step, place: int) -> Generator[Any, Any, str]:
    """Write an empty receipt for a local step, unless it has one. Returns the text of the receipt."""
    name = f"{run.journal.call_number(step.name, place)}:{step.name}"
    whose = {"run": run.record.run, "step": name}
    if step.kind != "local":
        return ""
    found = yield from run_receipt_statement(statements, "receipt_step_find", whose)
    if found:
        return run.tx_binding.sealer.open_text(found[0][0], run.record.run, name)
    sealed = run.tx_binding.sealer.seal_text("", run.record.run, name)
    yield from run_receipt_statement(statements, "receipt_step_put", {**whose, "result": sealed, "now": None})
    return ""
