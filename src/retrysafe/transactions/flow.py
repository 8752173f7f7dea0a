"""The transaction strength: the work and its receipt commit together, once, on the user's own connection.

    begin → lock and read → judge → the user's body → the receipt, last → commit

One generator tells the whole story and does no I/O. What makes it right:

1.  The receipt's unique id is the arbiter. The lock only spares a second caller a run that would be rolled back.
2.  Until the commit nothing has happened. So a body that fails leaves nothing to clean up, and a database that undoes
    the work because of others (serialization failure, deadlock) lets the whole body run again with the same key.
3.  A commit whose reply was lost is looked up by our token. It counts as absent only when the lock was to be had,
    which the lost transaction would still hold, and a later look still finds nothing: nobody guesses.
4.  A failure that the policy calls final is stored after the rollback, in a transaction of its own. Between the two
    another caller may have got through; then its answer is the one, and this caller is given it (or told to wait).
5.  A body that committed in the middle has split its work from its receipt, whether it returned or raised after that.
    It cannot be undone, so the key is marked uncertain and TransactionSplit says what is known.
"""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from retrysafe.core.judge import judge
from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Complete, Install, Lookup, LookupReply, Suspect
from retrysafe.core.outcomes import Busy, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Record
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.effects import FlowPause, NotifyWorker
from retrysafe.engine.events import EventName
from retrysafe.engine.guard import POLL_SECONDS, Ended, Task, Unstorable, build_replay, is_final, refusal_error
from retrysafe.errors import (
    NotSameDatabase,
    RetrySafeError,
    RolledBack,
    StoreError,
    StoreUnclear,
    TransactionSplit,
)
from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.receipts import CommittedEarly, LockedRead, TxMarker
from retrysafe.transactions import parting
from retrysafe.transactions.base import AfterCommitError, LockNotAvailable
from retrysafe.transactions.effects import BEGIN, COMMIT, FLUSH, ROLLBACK, TxBody, TxContext, TxFlow, TxWork
from retrysafe.transactions.failures import ErrorClass, classify_error, translate_error
from retrysafe.transactions.staging import Staging
from retrysafe.transactions.tx_receipts import TxReceipts, load_receipts

R = TypeVar("R")

RERUN_DELAY_SECONDS = 0.02
"""Seconds before the first rerun, at most; doubled each time, drawn at random, so that rivals part."""

RECOVERY_DELAYS_SECONDS = (0.0, 0.02, 0.1, 0.3, 1.0, 2.0)
"""Seconds before each look for a commit whose reply was lost."""


NO_OUTBOX = "a transaction on MongoDB does not carry an outbox yet"


class RerunNeeded(Exception):
    """All of it was rolled back, for a reason that may be gone next time."""


class OpenTx(NamedTuple):
    """A transaction that may run its body: the lock is held, and the record lets it."""

    statements: TxReceipts
    look: LockedRead
    grant: Grant


class MarkedTx(NamedTuple):
    """The same, with the mark by which the open transaction is recognised when the body has run."""

    opened: OpenTx
    mark: TxMarker


# The story ------------------------------------------------------------------------------------------------------------


def transaction_flow(task: Task, work: TxWork, context: TxContext) -> TxFlow[Ended]:
    """Run the body once, or give the stored answer."""
    claim = replace(task.build_claim(), on_lapse="rerun")
    if not context.install_id.value:
        # Before a transaction is open: an embedded store creates its tables now.
        context.install_id.value = yield Install()
    for rerun in range(context.max_reruns + 1):
        try:
            return (yield from run_attempt(claim, task, work, context))
        except RerunNeeded as undone:
            if rerun == context.max_reruns:
                raise RolledBack(task.key.value, str(undone)) from undone.__cause__
        yield FlowPause(claim.id, random.uniform(0, RERUN_DELAY_SECONDS * 2**rerun))
    raise AssertionError("the last rerun returns or raises")


def run_attempt(claim: Claim, task: Task, work: TxWork, context: TxContext) -> TxFlow[Ended]:
    opened = yield from open_or_wait(claim, task, context)
    if isinstance(opened, Replay):
        return replay(task, opened.record, context)
    context.events.emit("new", claim.id, task.target)
    mark = yield from run_plan(opened.statements.mark_transaction(opened.look))
    staging = Staging(claim.run, "tx", "" if isinstance(context.names, TableNames) else NO_OUTBOX, local=False)
    try:
        result = yield TxBody(work.call, staging)
        answer = work.answer(result)
        keep = task.policy.final(answer.status, None)
        if keep:
            yield FLUSH
    except Exception as error:
        was_parted = yield from was_split(claim, MarkedTx(opened, mark), error)
        yield ROLLBACK
        if was_parted:
            raise (yield from mark_split(claim, task, context)) from error
        return (yield from settle_failed(claim, task, work, context, error))
    if not keep:
        was_parted = yield from was_split(claim, MarkedTx(opened, mark))
        yield ROLLBACK
        if was_parted:
            raise (yield from mark_split(claim, task, context))
        context.events.emit("released", claim.id, task.target)
        return Ended(answer, False, result, opened.statements.build_claimed_record(claim, opened.look, opened.grant))
    record = yield from write_receipt(claim, task, context, MarkedTx(opened, mark), answer, staging=staging)
    try:
        hook_failed = yield from commit(claim, context)
    except (RerunNeeded, RetrySafeError):
        raise
    except Exception as error:  # the database said no at the last moment: a deferred constraint, for one
        return (yield from settle_failed(claim, task, work, context, error))
    context.events.emit("completed", claim.id, task.target)
    if staging.jobs:
        yield NotifyWorker()
    if hook_failed is not None:
        raise hook_failed
    return Ended(answer, False, result, record._replace(answer=answer))


def write_receipt(
    claim: Claim, task: Task, context: TxContext, entered: MarkedTx, answer: Answer, *, staging: Staging | None = None
) -> TxFlow[Record]:
    """The jobs, and the receipt, last. What is left to do is the commit."""
    (statements, look, grant), mark = entered
    try:
        if staging is not None and staging.jobs:
            yield from statements.plans.plan_operation(context.sealer.seal(staging.build_op(claim.namespace)))
        record = yield from statements.write_receipt(claim, look, grant, seal_answer(context, claim, answer), mark)
    except CommittedEarly:
        yield ROLLBACK
        raise (yield from mark_split(claim, task, context)) from None
    except Exception as error:
        # The body may have passed over an error of its own, after which PostgreSQL refuses ours.
        was_parted = yield from was_split(claim, entered, error)
        yield ROLLBACK
        if was_parted:
            raise (yield from mark_split(claim, task, context)) from error
        raise read(error) from error
    if record is None:
        yield ROLLBACK
        raise RerunNeeded("another caller settled the key first")
    return record


def was_split(claim: Claim, entered: MarkedTx, error: Exception | None = None) -> TxFlow[bool]:
    """Whether a body that is about to be rolled back has committed something before."""
    statements, mark = entered.opened.statements, entered.mark
    return (yield from parting.parted(statements, mark, statements.is_other_transaction(claim, mark), error))


def replay(task: Task, record: Record, context: TxContext) -> Ended:
    context.events.emit("replayed", record.id, task.target)
    return build_replay(task, record)


def seal_answer(context: TxContext, claim: Claim, answer: Answer) -> Answer:
    sealed = context.sealer.seal(Complete(claim.id, _NO_FENCE, answer))
    assert isinstance(sealed, Complete)
    return sealed.answer


_NO_FENCE: Any = (0, b"")


# Getting in -----------------------------------------------------------------------------------------------------------


def open_or_wait(claim: Claim, task: Task, context: TxContext) -> TxFlow[OpenTx | Replay]:
    """An open transaction that may run, or the stored answer. While another is at it wait as the policy says,
    with no transaction open."""
    waited = 0.0
    while True:
        found = yield from begin_and_read(claim, context)
        if isinstance(found, OpenTx | Replay):
            return found
        left = task.policy.wait - waited
        if not (isinstance(found, Busy) and task.policy.busy == "wait" and left > 0):
            context.events.emit(_REFUSED_EVENTS[type(found)], claim.id, task.target)
            raise refusal_error(task, found)
        pause = min(random.uniform(*POLL_SECONDS), left)
        yield FlowPause(claim.id, pause)
        waited += pause


_REFUSED_EVENTS: dict[type[Outcome], EventName] = {Busy: "busy", Mismatch: "mismatched", Uncertain: "uncertain"}


def begin_and_read(claim: Claim, context: TxContext) -> TxFlow[OpenTx | Outcome]:
    """Begin, lock, read, judge. Whatever does not run leaves no transaction open."""
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
        context.install_id.value = yield Install()  # the store's tables may have been made anew since we asked
        if look.install != context.install_id.value:
            raise NotSameDatabase(context.install_id.value, look.install)
        raise RerunNeeded("the store's tables were made anew")
    opened = context.sealer.unseal(LookupReply(look.record, look.now))
    return statements, look._replace(record=opened.record)


def decide(claim: Claim, look: LockedRead) -> Grant | Outcome:
    """How the body may run, or why it does not. What is committed comes before the lock: a completed record does not
    change, so two callers who only want its answer do not wait for each other."""
    grant = decide_grant(look.record, claim, look.now)
    if grant is None:
        return judge(claim, ClaimReply(False, look.record, look.now))
    if not look.locked:
        return Busy(SECOND_MICROS)
    if look.record is not None and look.record.point and grant is not Grant.REBIRTH:
        return Uncertain(look.record.started, f"an operation stopped at {look.record.point!r}; let it finish")
    return grant


def read_unlocked(claim: Claim) -> TxFlow[Outcome]:
    """Another writer has the file. Reading needs no lock, so a stored answer can still be given."""
    seen: LookupReply = yield Lookup(claim.id, claim.now)
    if seen.record is None or decide_grant(seen.record, claim, seen.now) is not None:
        return Busy(SECOND_MICROS)
    return judge(claim, ClaimReply(False, seen.record, seen.now))


def run_plan(plan: Plan[Statement, R]) -> TxFlow[R]:
    """Run one of our own plans; what the database says to it is read, and the transaction is over."""
    try:
        return (yield from plan)
    except CommittedEarly:
        raise
    except Exception as error:
        yield ROLLBACK
        raise read(error) from error


def read(error: Exception) -> Exception:
    """What the database's word to one of our own statements means; the transaction is over."""
    if classify_error(error) is ErrorClass.RETRYABLE:
        return RerunNeeded(f"the database undid it because of others ({error})")
    return translate_error(error)


# Getting out ----------------------------------------------------------------------------------------------------------


def commit(claim: Claim, context: TxContext) -> TxFlow[Exception | None]:
    """Commit, for certain. What a hook of the user's raised after it is given back: it must not vanish, and it does
    not change that all is done."""
    try:
        yield COMMIT
    except AfterCommitError as after:
        after.error.add_note("retrysafe: this was raised after the commit, so the work and its answer are stored")
        return after.error
    except Exception as error:
        kind = classify_error(error)
        if kind is ErrorClass.RETRYABLE:
            raise RerunNeeded(f"the database undid it because of others ({error})") from error
        if kind in (ErrorClass.REFUSED, ErrorClass.CONSTRAINT):
            raise  # it said no, so nothing happened
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
        if look.record is not None and look.record.token == claim.token:
            return True
        if look.locked and over:
            return False
        # Whoever gets the lock knows that the lost transaction is over; what it left is seen by the next look.
        over = over or look.locked
    raise StoreUnclear(
        f"the connection broke at the commit ({cause}), and whether it was carried out could not be found out; "
        "call again with the same key: it will be"
    ) from cause


def look_up_commit(claim: Claim) -> TxFlow[LockedRead]:
    """No transaction to be had (a single connection, and it broke): the store itself may still be asked."""
    try:
        seen: LookupReply = yield Lookup(claim.id, claim.now)
    except StoreError:
        return LockedRead(False, 0, "", 0, None)
    return LockedRead(False, 0, "", seen.now, seen.record)


def settle_failed(claim: Claim, task: Task, work: TxWork, context: TxContext, error: Exception) -> TxFlow[Ended]:
    """The body raised and was rolled back. Raises what the caller is told, unless somebody else has the answer."""
    if isinstance(error, Unstorable):
        raise error.problem from error.__cause__
    if classify_error(error) is ErrorClass.RETRYABLE:
        raise RerunNeeded(f"the database undid it because of others ({error})") from error
    if is_final(task.policy, error):
        return (yield from store_failure(claim, task, work, context, error))
    context.events.emit("released", claim.id, task.target)
    if classify_error(error) is ErrorClass.CONSTRAINT and context.max_reruns:
        # It may have run into the work of a twin whose receipt was committed just after our look.
        found = yield from begin_and_read(claim, context)
        if isinstance(found, OpenTx):
            yield ROLLBACK
        elif isinstance(found, Replay):
            return replay(task, found.record, context)
    raise error


def store_failure(claim: Claim, task: Task, work: TxWork, context: TxContext, error: Exception) -> TxFlow[Ended]:
    """The failure is the answer: a receipt of its own, since the work's transaction is gone."""
    try:
        instead = yield from store_answer(claim, context, work.failure(error))
    except Exception as problem:  # the database's, or the user's own `failure`
        context.events.emit("store_failed", claim.id, task.target)
        error.add_note(f"retrysafe could not write down how this ended: {problem}")
        raise error from error.__cause__
    if instead is None:
        context.events.emit("completed", claim.id, task.target)
        raise error
    if isinstance(instead, Replay) and context.max_reruns:
        return replay(task, instead.record, context)
    # Somebody else has the key now, and its answer will be the one: this caller must not be told another.
    raise refusal_error(task, Busy(SECOND_MICROS) if isinstance(instead, Replay) else instead) from error


def store_answer(claim: Claim, context: TxContext, answer: Answer) -> TxFlow[Outcome | None]:
    """Store an answer in a transaction of its own; None when it is stored, else who has the key instead."""
    found = yield from begin_and_read(claim, context)
    if not isinstance(found, OpenTx):
        return found
    mark = yield from run_plan(found.statements.mark_transaction(found.look))
    write = found.statements.write_receipt(claim, found.look, found.grant, seal_answer(context, claim, answer), mark)
    if (yield from run_plan(write)) is None:
        yield ROLLBACK
        return Busy(SECOND_MICROS)
    yield from commit(claim, context)
    return None


def mark_split(claim: Claim, task: Task, context: TxContext) -> TxFlow[TransactionSplit]:
    """Part of the work is committed and has no receipt: nothing runs again before somebody has looked."""
    problem = TransactionSplit(task.key.value)
    try:
        dialect: Dialect = yield BEGIN
        plans = load_receipts(dialect, context.names).plans
        reply = yield from plans.plan_operation(claim)
        if reply.granted and reply.record is not None:
            note = "its body committed or rolled back in the middle of its transaction"
            yield from plans.plan_operation(Suspect(claim.id, reply.record.fence, note))
        yield COMMIT
    except Exception as error:
        context.events.emit("store_failed", claim.id, task.target)
        problem.add_note(f"retrysafe could not mark the key uncertain: {error}")
    else:
        context.events.emit("suspected", claim.id, task.target)
    return problem
