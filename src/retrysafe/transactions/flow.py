"""The transaction strength: the work and its receipt commit together, once, on the user's own connection.

    begin → lock and read → judge → the user's body → the receipt, last → commit

The flow is one generator that does no I/O (engine/drive.py explains the protocol). Why it is correct:

1.  The receipt's unique id decides which caller commits. The lock only saves a second caller from a run that would be
    rolled back.
2.  Until the commit nothing has happened. So a body that fails leaves nothing to clean up. After a serialization
    failure or a deadlock the whole body runs again with the same key.
3.  A commit whose reply was lost is looked up by our token. It counts as absent only if the lock was free, which the
    lost transaction would still hold, and a later read still finds nothing.
4.  A failure that the policy calls final is stored after the rollback, in a transaction of its own. In between another
    caller may have committed. Then its answer counts, and this caller gets it (or InProgress).
5.  A body that committed in the middle has separated its work from its receipt, whether it returned, raised or was
    interrupted after that. It cannot be rolled back, so the key is marked uncertain, and TransactionSplit is raised.
    From that commit on others see that the outcome is unknown: by the record, which is written first (PostgreSQL,
    SQLite), by a marker (MySQL, MongoDB), or by the lock, which outlives the commit (MySQL, DuckDB).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from retrysafe.core.judge import judge
from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Complete, Install, Lookup, LookupReply
from retrysafe.core.outcomes import Busy, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.effects import FlowPause, NotifyWorker
from retrysafe.engine.events import REFUSED_EVENTS
from retrysafe.engine.guard import POLL_SECONDS, Ended, Task, Unstorable, build_replay, is_final, refusal_error
from retrysafe.errors import CommitUnclear, NotSameDatabase, RetrySafeError, RolledBack, StoreError
from retrysafe.stores.base import LockNotAvailable, Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.receipts import CommittedEarly, LockedRead, TxMarker
from retrysafe.transactions.base import AfterCommitError
from retrysafe.transactions.binding import TxContext, TxReceipts, load_receipts
from retrysafe.transactions.early_commits import SPLIT_NOTE, detect_early_commit, look_up_early_commit, mark_split
from retrysafe.transactions.effects import BEGIN, COMMIT, FLUSH, ROLLBACK, TxBody, TxFlow, TxWork
from retrysafe.transactions.failures import ErrorClass, classify_error, translate_error
from retrysafe.transactions.staging import Staging

R = TypeVar("R")

RERUN_DELAY_SECONDS = 0.02
"""The longest pause before the first rerun. It doubles each time, and is drawn at random, so that rivals meet less."""

RECOVERY_DELAYS_SECONDS = (0.0, 0.02, 0.1, 0.3, 1.0, 2.0)
"""Pauses before each lookup of a commit whose reply was lost."""


NO_OUTBOX = "a transaction on MongoDB does not carry an outbox yet"


class RerunNeeded(Exception):
    """The transaction was rolled back for a reason that may not occur again, so the body may run again."""


class OpenTx(NamedTuple):
    """An open transaction that may run its body: it has the lock, and the record allows it."""

    statements: TxReceipts
    look: LockedRead
    grant: Grant


class MarkedTx(NamedTuple):
    """An open transaction with the mark by which it is recognised after the body has run."""

    opened: OpenTx
    mark: TxMarker


# The whole flow -------------------------------------------------------------------------------------------------------


def transaction_flow(task: Task, work: TxWork, context: TxContext) -> TxFlow[Ended]:
    """Run the body once, or return the stored answer."""
    claim = replace(task.build_claim(), on_lapse="rerun")
    if not context.install_id.value:
        # Before a transaction is open, because an embedded store creates its tables now.
        context.install_id.value = yield Install()
    for rerun in range(context.max_reruns + 1):
        try:
            return (yield from run_attempt(claim, task, work, context))
        except RerunNeeded as rerun_needed:
            if rerun == context.max_reruns:
                raise RolledBack(task.key.value, str(rerun_needed)) from rerun_needed.__cause__
        yield FlowPause(claim.id, random.uniform(0, RERUN_DELAY_SECONDS * 2**rerun))
    raise AssertionError("the last rerun returns or raises")


def run_attempt(claim: Claim, task: Task, work: TxWork, context: TxContext) -> TxFlow[Ended]:
    opened = yield from open_or_wait(claim, task, context)
    if isinstance(opened, Replay):
        return replay(task, opened.record, context)
    attempt = 2 if opened.grant is Grant.TAKEOVER else 1
    context.events.emit_grant(claim.id, task.target, task.series, attempt)
    mark = yield from mark_transaction(claim, task, context, opened)
    staging = build_staging(claim, context)
    try:
        # Not in a generator of its own: on its way out of that, a StopIteration would become a RuntimeError.
        with count_execution(task, context):
            result = yield TxBody(work.call, staging)
        answer = work.answer(result)
        keep = task.policy.final(answer.status, None)
        if keep:
            yield FLUSH
    except Exception as error:
        if (yield from roll_back(claim, MarkedTx(opened, mark), error)):
            raise (yield from mark_split(claim, task, context)) from error
        return (yield from settle_failed(claim, task, work, context, error))
    except GeneratorExit:
        raise
    except BaseException as stop:
        yield from settle_interrupted(claim, task, context, MarkedTx(opened, mark), stop)
        raise
    if not keep:
        if (yield from roll_back(claim, MarkedTx(opened, mark))):
            raise (yield from mark_split(claim, task, context))
        context.events.emit("released", claim.id, task.target, task.series)
        return Ended(answer, False, result, opened.statements.build_claimed_record(claim, opened.look, opened.grant))
    record = yield from write_receipt(claim, task, context, MarkedTx(opened, mark), answer, staging=staging)
    try:
        hook_failed = yield from commit(claim, context)
    except (RerunNeeded, RetrySafeError):
        raise
    except Exception as error:  # the database refused the commit, for example by a deferred constraint
        return (yield from settle_failed(claim, task, work, context, error))
    context.events.emit("completed", claim.id, task.target, task.series)
    if staging.jobs:
        yield NotifyWorker()
    if hook_failed is not None:
        raise hook_failed
    return Ended(answer, False, result, record._replace(answer=answer))


def build_staging(claim: Claim, context: TxContext) -> Staging:
    """Where the body of a transaction stages jobs."""
    return Staging(claim.run, "tx", "" if isinstance(context.names, TableNames) else NO_OUTBOX, local=False)


@contextmanager
def count_execution(task: Task, context: TxContext) -> Iterator[None]:
    """Count how the user's work ended and how long it took."""
    figures = context.events.figures
    began = figures.begin_execution(task.series[0])
    try:
        yield
    except BaseException as error:
        figures.end_execution(task.series, began, type(error).__name__)
        raise
    figures.end_execution(task.series, began)


def write_receipt(
    claim: Claim, task: Task, context: TxContext, entered: MarkedTx, answer: Answer, *, staging: Staging | None = None
) -> TxFlow[Record]:
    """Write the staged jobs and then the receipt. Only the commit is left to do."""
    (statements, look, grant), mark = entered
    try:
        if staging is not None:
            staging.closed = True
        if staging is not None and staging.jobs:
            yield from statements.plans.plan_operation(context.sealer.seal(staging.build_op(claim.namespace)))
        record = yield from statements.write_receipt(claim, look, grant, seal_answer(context, claim, answer), mark)
    except CommittedEarly:
        yield ROLLBACK
        raise (yield from mark_split(claim, task, context)) from None
    except Exception as error:
        # The body may have swallowed an error of a statement. PostgreSQL refuses our statement after that.
        if (yield from roll_back(claim, entered, error)):
            raise (yield from mark_split(claim, task, context)) from error
        raise statement_error(error) from error
    if record is None:
        yield ROLLBACK
        raise RerunNeeded("another caller settled the key first")
    return record


def mark_transaction(claim: Claim, task: Task, context: TxContext, opened: OpenTx) -> TxFlow[TxMarker]:
    """Mark the open transaction, so that a commit in the middle is detected. Raises TransactionSplit if an earlier
    attempt left such a commit behind that is not on the record yet."""
    try:
        base = opened.statements.build_claimed_record(claim, opened.look, opened.grant)
        return (yield from run_plan(opened.statements.mark_transaction(opened.look, claim.id, base)))
    except CommittedEarly:
        yield ROLLBACK
        raise (yield from mark_split(claim, task, context)) from None


def roll_back(claim: Claim, entered: MarkedTx, error: Exception | None = None) -> TxFlow[bool]:
    """Roll back. Returns whether the body had committed something before."""
    statements, mark = entered.opened.statements, entered.mark
    other = statements.is_other_transaction(claim, mark)
    split = yield from detect_early_commit(statements, mark, other, error)
    yield ROLLBACK
    return (yield from look_up_early_commit(claim, mark)) if split is None else split


def settle_interrupted(
    claim: Claim, task: Task, context: TxContext, entered: MarkedTx, stop: BaseException
) -> TxFlow[None]:
    """The body was cancelled, or the process is shut down. If it had committed something, the key is uncertain."""
    if (yield from roll_back(claim, entered)):
        split = yield from mark_split(claim, task, context)
        stop.add_note(f"retrysafe: {split}")


def replay(task: Task, record: Record, context: TxContext) -> Ended:
    context.events.emit("replayed", record.id, task.target, task.series)
    return build_replay(task, record)


def seal_answer(context: TxContext, claim: Claim, answer: Answer) -> Answer:
    sealed = context.sealer.seal(Complete(claim.id, _NO_FENCE, answer))
    assert isinstance(sealed, Complete)
    return sealed.answer


_NO_FENCE: Any = (0, b"")


# The beginning --------------------------------------------------------------------------------------------------------


def open_or_wait(claim: Claim, task: Task, context: TxContext) -> TxFlow[OpenTx | Replay]:
    """Return an open transaction that may run, or the stored answer. While another caller runs, wait as long as the
    policy says, with no transaction open."""
    waited = 0.0
    while True:
        found = yield from begin_and_read(claim, context)
        if isinstance(found, OpenTx | Replay):
            return found
        left = task.policy.wait - waited
        if not (isinstance(found, Busy) and task.policy.busy == "wait" and left > 0):
            context.events.emit(REFUSED_EVENTS[type(found)], claim.id, task.target, task.series)
            raise refusal_error(task, found)
        pause = min(random.uniform(*POLL_SECONDS), left)
        yield FlowPause(claim.id, pause)
        waited += pause


def begin_and_read(claim: Claim, context: TxContext) -> TxFlow[OpenTx | Outcome]:
    """Begin, lock, read and judge. If the body may not run, no transaction is left open."""
    try:
        statements, look = yield from begin(claim, context)
    except LockNotAvailable:
        return (yield from read_unlocked(claim))
    outcome = decide(claim, look)
    if isinstance(outcome, Grant):
        return OpenTx(statements, look, outcome)
    yield ROLLBACK
    return outcome


def begin(claim: Claim, context: TxContext) -> TxFlow[tuple[TxReceipts, LockedRead]]:
    try:
        dialect: Dialect = yield BEGIN
    except LockNotAvailable:
        raise
    except Exception as error:
        raise translate_error(error) from error
    statements = load_receipts(dialect, context.names)
    look = yield from run_plan(statements.lock_and_read(claim))
    if look.install != context.install_id.value:
        yield ROLLBACK
        context.install_id.value = yield Install()  # the store's tables may have been recreated since the first time
        if look.install != context.install_id.value:
            raise NotSameDatabase(context.install_id.value, look.install)
        raise RerunNeeded("the store's tables were recreated")
    opened = context.sealer.unseal(LookupReply(look.record, look.now))
    return statements, look._replace(record=opened.record)


def decide(claim: Claim, look: LockedRead) -> Grant | Outcome:
    """How the body may run, or why it may not. The committed record is judged before the lock: a completed record does
    not change, so two callers that only need its answer do not wait for each other."""
    grant = decide_grant(look.record, claim, look.now)
    if grant is None:
        return judge(claim, ClaimReply(False, look.record, look.now))
    if not look.locked:
        return Busy(SECOND_MICROS)
    if look.record is not None and look.record.point and grant is not Grant.REBIRTH:
        return Uncertain(look.record.started, f"an operation stopped at {look.record.point!r}; let it finish")
    return grant


def read_unlocked(claim: Claim) -> TxFlow[Outcome]:
    """Read the record through the store, because another connection has SQLite's write lock. Reading needs no lock, so
    a stored answer can still be returned."""
    seen: LookupReply = yield Lookup(claim.id, claim.now)
    if seen.record is None or decide_grant(seen.record, claim, seen.now) is not None:
        return Busy(SECOND_MICROS)
    return judge(claim, ClaimReply(False, seen.record, seen.now))


def run_plan(plan: Plan[Statement, R]) -> TxFlow[R]:
    """Carry out one of our own plans. If a statement fails, roll back and raise what the failure means."""
    try:
        return (yield from plan)
    except CommittedEarly:
        raise
    except Exception as error:
        yield ROLLBACK
        raise statement_error(error) from error


def rollback_error(error: Exception) -> RerunNeeded:
    """The error to raise after a serialization failure or a deadlock."""
    return RerunNeeded(f"the database rolled it back because of other transactions ({error})")


def statement_error(error: Exception) -> Exception:
    """The error to raise after one of our own statements failed. The transaction is over."""
    if classify_error(error) is ErrorClass.RETRYABLE:
        return rollback_error(error)
    return translate_error(error)


# The end --------------------------------------------------------------------------------------------------------------


def commit(claim: Claim, context: TxContext) -> TxFlow[Exception | None]:
    """Commit, and find out whether a commit whose reply was lost took place. If a hook of the user's raises after the
    commit, its error is returned: the caller must get it, but the work is done."""
    try:
        yield COMMIT
    except AfterCommitError as after:
        after.error.add_note("retrysafe: this was raised after the commit, so the work and its answer are stored")
        return after.error
    except Exception as error:
        kind = classify_error(error)
        if kind is ErrorClass.RETRYABLE:
            raise rollback_error(error) from error
        if kind in (ErrorClass.REFUSED, ErrorClass.CONSTRAINT):
            raise  # the database refused, so nothing happened
        if not (yield from recover_lost_commit(claim, context, error)):
            raise RerunNeeded(f"the connection broke at the commit ({error})") from error
    return None


def recover_lost_commit(claim: Claim, context: TxContext, cause: Exception) -> TxFlow[bool]:
    """Whether a commit whose reply was lost took place."""
    over = False
    for pause in RECOVERY_DELAYS_SECONDS:
        yield FlowPause(claim.id, pause)
        try:
            _, look = yield from begin(claim, context)
            yield ROLLBACK
        except (LockNotAvailable, StoreError, RerunNeeded):
            look = yield from look_up_commit(claim)
        if look.record is not None and look.record.token == claim.token and look.record.state is State.COMPLETED:
            return True
        if look.locked and over:
            return False
        # The lock was free, so the lost transaction is over. The next read sees what it has committed.
        over = over or look.locked
    raise CommitUnclear(
        f"the connection broke at the commit ({cause}), and whether it was carried out could not be found out; "
        "call again with the same key: it will be"
    ) from cause


def look_up_commit(claim: Claim) -> TxFlow[LockedRead]:
    """Read the record through the store, because no transaction can be opened: the user gave one connection, and it is
    lost."""
    try:
        seen: LookupReply = yield Lookup(claim.id, claim.now)
    except StoreError:
        return LockedRead(False, 0, "", 0, None)
    return LockedRead(False, 0, "", seen.now, seen.record)


def settle_failed(claim: Claim, task: Task, work: TxWork, context: TxContext, error: Exception) -> TxFlow[Ended]:
    """The body raised and was rolled back. Raises the error for the caller, unless another caller has stored an
    answer."""
    if isinstance(error, Unstorable):
        raise error.problem from error.__cause__
    if classify_error(error) is ErrorClass.RETRYABLE:
        raise rollback_error(error) from error
    if is_final(task.policy, error):
        return (yield from store_failure(claim, task, work, context, error))
    context.events.emit("released", claim.id, task.target, task.series)
    if classify_error(error) is ErrorClass.CONSTRAINT and context.max_reruns:
        # The violated constraint may come from another caller with this key, which committed just after our read.
        found = yield from begin_and_read(claim, context)
        if isinstance(found, OpenTx):
            yield ROLLBACK
        elif isinstance(found, Replay):
            return replay(task, found.record, context)
    raise error


def store_failure(claim: Claim, task: Task, work: TxWork, context: TxContext, error: Exception) -> TxFlow[Ended]:
    """Store the failure as the answer, in a transaction of its own: the work's transaction was rolled back."""
    try:
        instead = yield from store_answer(claim, context, work.failure(error))
    except Exception as problem:  # the database's, or the user's own `failure`
        context.events.emit("store_failed", claim.id, task.target, task.series)
        error.add_note(f"retrysafe could not write down how this ended: {problem}")
        raise error from error.__cause__
    if instead is None:
        context.events.emit("completed", claim.id, task.target, task.series)
        raise error
    if isinstance(instead, Replay) and context.max_reruns:
        return replay(task, instead.record, context)
    # Another caller has the key now, and its answer will count. This caller must not get a different one.
    raise refusal_error(task, Busy(SECOND_MICROS) if isinstance(instead, Replay) else instead) from error


def store_answer(claim: Claim, context: TxContext, answer: Answer) -> TxFlow[Outcome | None]:
    """Store an answer in a transaction of its own. Returns None if it is stored, else the outcome for this caller."""
    found = yield from begin_and_read(claim, context)
    if not isinstance(found, OpenTx):
        return found
    try:
        mark = yield from run_plan(found.statements.mark_transaction(found.look, claim.id))
    except CommittedEarly:
        yield ROLLBACK  # the next attempt to run the body finds the marker, too, and marks the key uncertain
        return Uncertain(found.look.now, SPLIT_NOTE)
    write = found.statements.write_receipt(claim, found.look, found.grant, seal_answer(context, claim, answer), mark)
    if (yield from run_plan(write)) is None:
        yield ROLLBACK
        return Busy(SECOND_MICROS)
    yield from commit(claim, context)
    return None
