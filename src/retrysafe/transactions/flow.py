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
from retrysafe.core.moves import Grant, grantable
from retrysafe.core.ops import Claim, ClaimReply, Complete, Install, Lookup, LookupReply, Suspect
from retrysafe.core.outcomes import Busy, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Record
from retrysafe.core.times import SECOND
from retrysafe.engine.effects import Pause, Ring
from retrysafe.engine.events import Name
from retrysafe.engine.guard import POLL, Ended, Task, Unstorable, is_final, refusal, replayed
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
from retrysafe.stores.sql.names import Names
from retrysafe.stores.sql.receipts import Look, Mark, Split
from retrysafe.transactions import parting
from retrysafe.transactions.base import AfterCommit, Held
from retrysafe.transactions.effects import BEGIN, COMMIT, FLUSH, ROLLBACK, Body, Place, TxFlow, TxWork
from retrysafe.transactions.failures import Trouble, meaning, trouble
from retrysafe.transactions.receipting import Receipts, receipts
from retrysafe.transactions.staging import Staging

R = TypeVar("R")

RERUN_AFTER = 0.02
"""Seconds before the first rerun, at most; doubled each time, drawn at random, so that rivals part."""

FIND_OUT_AFTER = (0.0, 0.02, 0.1, 0.3, 1.0, 2.0)
"""Seconds before each look for a commit whose reply was lost."""


NO_OUTBOX = "a transaction on MongoDB does not carry an outbox yet"


class Undone(Exception):
    """All of it was rolled back, for a reason that may be gone next time."""


class Opened(NamedTuple):
    """A transaction that may run its body: the lock is held, and the record lets it."""

    statements: Receipts
    look: Look
    grant: Grant


class Entered(NamedTuple):
    """The same, with the mark by which the open transaction is recognised when the body has run."""

    opened: Opened
    mark: Mark


# The story ------------------------------------------------------------------------------------------------------------


def transaction(task: Task, work: TxWork, place: Place) -> TxFlow[Ended]:
    """Run the body once, or give the stored answer."""
    claim = replace(task.claim(), on_lapse="rerun")
    if not place.known.install:
        place.known.install = yield Install()  # before a transaction is open: an embedded store makes its tables now
    for rerun in range(place.reruns + 1):
        try:
            return (yield from attempt(claim, task, work, place))
        except Undone as undone:
            if rerun == place.reruns:
                raise RolledBack(task.key.value, str(undone)) from undone.__cause__
        yield Pause(claim.id, random.uniform(0, RERUN_AFTER * 2**rerun))
    raise AssertionError("the last rerun returns or raises")


def attempt(claim: Claim, task: Task, work: TxWork, place: Place) -> TxFlow[Ended]:
    opened = yield from admitted(claim, task, place)
    if isinstance(opened, Replay):
        return given_back(task, opened.record, place)
    place.events.emit("new", claim.id, task.target)
    mark = yield from ours(opened.statements.mark(opened.look))
    staging = Staging(claim.run, "tx", "" if isinstance(place.names, Names) else NO_OUTBOX, local=False)
    try:
        result = yield Body(work.call, staging)
        answer = work.answer(result)
        keep = task.policy.final(answer.status, None)
        if keep:
            yield FLUSH
    except Exception as error:
        was_parted = yield from parted(claim, Entered(opened, mark), error)
        yield ROLLBACK
        if was_parted:
            raise (yield from split(claim, task, place)) from error
        return (yield from failed(claim, task, work, place, error))
    if not keep:
        was_parted = yield from parted(claim, Entered(opened, mark))
        yield ROLLBACK
        if was_parted:
            raise (yield from split(claim, task, place))
        place.events.emit("released", claim.id, task.target)
        return Ended(answer, False, result, opened.statements.begun(claim, opened.look, opened.grant))
    if staging.jobs:
        yield from ours(opened.statements.plans.of(place.sealer.seal(staging.op(claim.namespace))))
    record = yield from receipted(claim, task, place, Entered(opened, mark), answer)
    try:
        hook_failed = yield from committed(claim, place)
    except (Undone, RetrySafeError):
        raise
    except Exception as error:  # the database said no at the last moment: a deferred constraint, for one
        return (yield from failed(claim, task, work, place, error))
    place.events.emit("completed", claim.id, task.target)
    if staging.jobs:
        yield Ring()
    if hook_failed is not None:
        raise hook_failed
    return Ended(answer, False, result, record._replace(answer=answer))


def receipted(claim: Claim, task: Task, place: Place, entered: Entered, answer: Answer) -> TxFlow[Record]:
    """The receipt, last. What is left to do is the commit."""
    (statements, look, grant), mark = entered
    try:
        record = yield from statements.write(claim, look, grant, sealed_answer(place, claim, answer), mark)
    except Split:
        yield ROLLBACK
        raise (yield from split(claim, task, place)) from None
    except Exception as error:
        # The body may have passed over an error of its own, after which PostgreSQL refuses ours.
        was_parted = yield from parted(claim, entered, error)
        yield ROLLBACK
        if was_parted:
            raise (yield from split(claim, task, place)) from error
        raise read(error) from error
    if record is None:
        yield ROLLBACK
        raise Undone("another caller settled the key first")
    return record


def parted(claim: Claim, entered: Entered, error: Exception | None = None) -> TxFlow[bool]:
    """Whether a body that is about to be rolled back has committed something before."""
    statements, mark = entered.opened.statements, entered.mark
    return (yield from parting.parted(statements, mark, statements.parted(claim, mark), error))


def given_back(task: Task, record: Record, place: Place) -> Ended:
    place.events.emit("replayed", record.id, task.target)
    return replayed(task, record)


def sealed_answer(place: Place, claim: Claim, answer: Answer) -> Answer:
    sealed = place.sealer.seal(Complete(claim.id, _NO_FENCE, answer))
    assert isinstance(sealed, Complete)
    return sealed.answer


_NO_FENCE: Any = (0, b"")


# Getting in -----------------------------------------------------------------------------------------------------------


def admitted(claim: Claim, task: Task, place: Place) -> TxFlow[Opened | Replay]:
    """An open transaction that may run, or the stored answer. While another is at it wait as the policy says,
    with no transaction open."""
    waited = 0.0
    while True:
        found = yield from looked(claim, place)
        if isinstance(found, Opened | Replay):
            return found
        left = task.policy.wait - waited
        if not (isinstance(found, Busy) and task.policy.busy == "wait" and left > 0):
            place.events.emit(_REFUSED[type(found)], claim.id, task.target)
            raise refusal(task, found)
        pause = min(random.uniform(*POLL), left)
        yield Pause(claim.id, pause)
        waited += pause


_REFUSED: dict[type[Outcome], Name] = {Busy: "busy", Mismatch: "mismatched", Uncertain: "uncertain"}


def looked(claim: Claim, place: Place) -> TxFlow[Opened | Outcome]:
    """Begin, lock, read, judge. Whatever does not run leaves no transaction open."""
    try:
        statements, look = yield from begun(claim, place)
    except Held:
        return (yield from peeked(claim))
    outcome = judged(claim, look)
    if isinstance(outcome, Grant):
        return Opened(statements, look, outcome)
    yield ROLLBACK
    return outcome


def begun(claim: Claim, place: Place) -> TxFlow[tuple[Receipts, Look]]:
    try:
        dialect: Dialect = yield BEGIN
    except Held:
        raise
    except Exception as error:
        raise meaning(error) from error
    statements = receipts(dialect, place.names)
    look = yield from ours(statements.look(claim))
    if look.install != place.known.install:
        yield ROLLBACK
        place.known.install = yield Install()  # the store's tables may have been made anew since we asked
        if look.install != place.known.install:
            raise NotSameDatabase(place.known.install, look.install)
        raise Undone("the store's tables were made anew")
    opened = place.sealer.unseal(LookupReply(look.record, look.now))
    return statements, look._replace(record=opened.record)


def judged(claim: Claim, look: Look) -> Grant | Outcome:
    """How the body may run, or why it does not. What is committed comes before the lock: a completed record does not
    change, so two callers who only want its answer do not wait for each other."""
    grant = grantable(look.record, claim, look.now)
    if grant is None:
        return judge(claim, ClaimReply(False, look.record, look.now))
    if not look.locked:
        return Busy(SECOND)
    if look.record is not None and look.record.point and grant is not Grant.REBIRTH:
        return Uncertain(look.record.started, f"an operation stopped at {look.record.point!r}; let it finish")
    return grant


def peeked(claim: Claim) -> TxFlow[Outcome]:
    """Another writer has the file. Reading needs no lock, so a stored answer can still be given."""
    seen: LookupReply = yield Lookup(claim.id, claim.now)
    if seen.record is None or grantable(seen.record, claim, seen.now) is not None:
        return Busy(SECOND)
    return judge(claim, ClaimReply(False, seen.record, seen.now))


def ours(plan: Plan[Statement, R]) -> TxFlow[R]:
    """Run one of our own plans; what the database says to it is read, and the transaction is over."""
    try:
        return (yield from plan)
    except Split:
        raise
    except Exception as error:
        yield ROLLBACK
        raise read(error) from error


def read(error: Exception) -> Exception:
    """What the database's word to one of our own statements means; the transaction is over."""
    if trouble(error) is Trouble.AGAIN:
        return Undone(f"the database undid it because of others ({error})")
    return meaning(error)


# Getting out ----------------------------------------------------------------------------------------------------------


def committed(claim: Claim, place: Place) -> TxFlow[Exception | None]:
    """Commit, for certain. What a hook of the user's raised after it is given back: it must not vanish, and it does
    not change that all is done."""
    try:
        yield COMMIT
    except AfterCommit as after:
        after.error.add_note("retrysafe: this was raised after the commit, so the work and its answer are stored")
        return after.error
    except Exception as error:
        kind = trouble(error)
        if kind is Trouble.AGAIN:
            raise Undone(f"the database undid it because of others ({error})") from error
        if kind in (Trouble.REFUSED, Trouble.TAKEN):
            raise  # it said no, so nothing happened
        if not (yield from found_out(claim, place, error)):
            raise Undone(f"the connection broke at the commit ({error})") from error
    return None


def found_out(claim: Claim, place: Place, cause: Exception) -> TxFlow[bool]:
    """Whether a commit whose reply was lost took place."""
    over = False
    for pause in FIND_OUT_AFTER:
        yield Pause(claim.id, pause)
        try:
            _, look = yield from begun(claim, place)
            yield ROLLBACK
        except (Held, StoreError, Undone):
            look = yield from peek_for(claim)
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


def peek_for(claim: Claim) -> TxFlow[Look]:
    """No transaction to be had (a single connection, and it broke): the store itself may still be asked."""
    try:
        seen: LookupReply = yield Lookup(claim.id, claim.now)
    except StoreError:
        return Look(False, 0, "", 0, None)
    return Look(False, 0, "", seen.now, seen.record)


def failed(claim: Claim, task: Task, work: TxWork, place: Place, error: Exception) -> TxFlow[Ended]:
    """The body raised and was rolled back. Raises what the caller is told, unless somebody else has the answer."""
    if isinstance(error, Unstorable):
        raise error.problem from error.__cause__
    if trouble(error) is Trouble.AGAIN:
        raise Undone(f"the database undid it because of others ({error})") from error
    if is_final(task.policy, error):
        return (yield from stored_failure(claim, task, work, place, error))
    place.events.emit("released", claim.id, task.target)
    if trouble(error) is Trouble.TAKEN and place.reruns:
        # It may have run into the work of a twin whose receipt was committed just after our look.
        found = yield from looked(claim, place)
        if isinstance(found, Opened):
            yield ROLLBACK
        elif isinstance(found, Replay):
            return given_back(task, found.record, place)
    raise error


def stored_failure(claim: Claim, task: Task, work: TxWork, place: Place, error: Exception) -> TxFlow[Ended]:
    """The failure is the answer: a receipt of its own, since the work's transaction is gone."""
    try:
        instead = yield from written_down(claim, place, work.failure(error))
    except Exception as problem:  # the database's, or the user's own `failure`
        place.events.emit("store_failed", claim.id, task.target)
        error.add_note(f"retrysafe could not write down how this ended: {problem}")
        raise error from error.__cause__
    if instead is None:
        place.events.emit("completed", claim.id, task.target)
        raise error
    if isinstance(instead, Replay) and place.reruns:
        return given_back(task, instead.record, place)
    # Somebody else has the key now, and its answer will be the one: this caller must not be told another.
    raise refusal(task, Busy(SECOND) if isinstance(instead, Replay) else instead) from error


def written_down(claim: Claim, place: Place, answer: Answer) -> TxFlow[Outcome | None]:
    """Store an answer in a transaction of its own; None when it is stored, else who has the key instead."""
    found = yield from looked(claim, place)
    if not isinstance(found, Opened):
        return found
    mark = yield from ours(found.statements.mark(found.look))
    write = found.statements.write(claim, found.look, found.grant, sealed_answer(place, claim, answer), mark)
    if (yield from ours(write)) is None:
        yield ROLLBACK
        return Busy(SECOND)
    yield from committed(claim, place)
    return None


def split(claim: Claim, task: Task, place: Place) -> TxFlow[TransactionSplit]:
    """Part of the work is committed and has no receipt: nothing runs again before somebody has looked."""
    problem = TransactionSplit(task.key.value)
    try:
        dialect: Dialect = yield BEGIN
        plans = receipts(dialect, place.names).plans
        reply = yield from plans.of(claim)
        if reply.granted and reply.record is not None:
            note = "its body committed or rolled back in the middle of its transaction"
            yield from plans.of(Suspect(claim.id, reply.record.fence, note))
        yield COMMIT
    except Exception as error:
        place.events.emit("store_failed", claim.id, task.target)
        problem.add_note(f"retrysafe could not mark the key uncertain: {error}")
    else:
        place.events.emit("suspected", claim.id, task.target)
    return problem
