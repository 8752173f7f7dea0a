"""Detect that a body has committed its transaction itself, and mark its key uncertain. What it wrote stays and has no
receipt, so the body must not run again (rule 5 of flow.py)."""

from __future__ import annotations

import logging
from collections.abc import Generator
from dataclasses import replace
from typing import Any, Protocol, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, ForgetMarker, LookupCommit, Suspect
from retrysafe.engine.effects import FlowPause
from retrysafe.engine.guard import Task
from retrysafe.errors import TransactionSplit
from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.receipts import TxMarker
from retrysafe.transactions.binding import TxContext, load_receipts
from retrysafe.transactions.effects import ASK_COMMITTED, BEGIN, COMMIT, SendDirect, TxFlow
from retrysafe.transactions.failures import undoes_transaction

R = TypeVar("R")
_log = logging.getLogger("retrysafe")
ROLLBACK_STATEMENT = Statement("ROLLBACK", {})

LOST_DELAYS_SECONDS = (0.0, 0.1, 0.3, 1.0)
"""Pauses before each lookup whether a transaction was committed by the user before its connection was lost."""

SPLIT_NOTE = "its body committed or rolled back in the middle of its transaction"


class CommitLookup(Protocol):
    """Receipts that can tell whether a marked transaction was committed."""

    def was_committed(self, mark: TxMarker) -> Plan[Any, bool | None]: ...


def detect_early_commit(
    statements: CommitLookup, mark: TxMarker, other: Plan[Any, bool], error: Exception | None = None
) -> Generator[Any, Any, bool | None]:
    """Whether the body has committed something. None: the connection does not answer, so another connection has to ask
    (`LookupCommit`).

    `other` asks whether the open transaction is another one than the marked one. After an error PostgreSQL answers
    nothing before a rollback; after it, the server tells whether the marked transaction was committed. A deadlock on
    MySQL rolls the whole transaction back; there the marker row tells.

    The question is asked whatever the error looks like: an error that looks like a lost connection may come from
    another system that the body called. A connection that is really lost does not answer. Then the adapter may have
    seen a commit, or the store is asked."""
    if error is None or not undoes_transaction(error):
        try:
            if not (yield from other):
                return (yield ASK_COMMITTED) is True  # on MongoDB a later transaction of the session may be committed
        except Exception as unanswered:
            _log.debug("the transaction does not answer: %s", unanswered)
        else:
            return (yield ASK_COMMITTED) is not False
    seen_by_adapter: bool | None = yield ASK_COMMITTED
    try:
        committed = yield from roll_back_and_send(statements.was_committed(mark))
    except Exception as unanswered:
        _log.debug("the connection cannot tell whether the transaction was committed: %s", unanswered)
        return seen_by_adapter or None
    return bool(committed or seen_by_adapter)


def roll_back_and_send(plan: Plan[Any, R]) -> Generator[Any, Any, R]:
    """Carry out a plan with SendDirect, after a rollback. A plan without statements causes no rollback."""
    rolled_back = False
    try:
        statement = next(plan)
        while True:
            if not rolled_back:
                yield SendDirect(ROLLBACK_STATEMENT)
                rolled_back = True
            statement = plan.send((yield SendDirect(statement)))
    except StopIteration as done:
        result: R = done.value
        return result


def look_up_early_commit(claim: Claim, mark: TxMarker) -> TxFlow[bool]:
    """Ask the store whether the transaction was committed: it has a connection of its own, and the transaction's was
    lost. If the server still has the transaction open after the last lookup, it counts as rolled back: it holds the
    key's lock, and no client is left that could commit it."""
    for pause in LOST_DELAYS_SECONDS:
        yield FlowPause(claim.id, pause)
        try:
            committed = yield LookupCommit(mark.began, mark.marker)
        except Exception as error:
            _log.debug("the store cannot tell whether the lost transaction was committed: %s", error)
        else:
            if committed is not None:
                return bool(committed)
    _log.warning("could not find out whether a transaction was committed before its connection was lost")
    return False


def mark_split(claim: Claim, task: Task, context: TxContext) -> TxFlow[TransactionSplit]:
    """Mark the key uncertain: part of the work is committed and has no receipt. Nothing runs again before a person has
    resolved it. Returns the error to raise."""
    problem = TransactionSplit(task.key.value)
    try:
        try:
            dialect: Dialect = yield BEGIN
        except Exception as error:
            _log.debug("no transaction can be opened to mark the key uncertain; the store does it: %s", error)
            yield from mark_split_in_store(claim)
        else:
            statements = load_receipts(dialect, context.names)
            reply = yield from statements.plans.plan_operation(claim)
            if reply.granted and reply.record is not None:
                yield from statements.plans.plan_operation(Suspect(claim.id, reply.record.fence, SPLIT_NOTE))
            yield from statements.forget_marker(claim.id)
            yield COMMIT
    except Exception as error:
        context.events.emit("store_failed", claim.id, task.target, task.series)
        problem.add_note(f"retrysafe could not mark the key uncertain: {error}")
    else:
        context.events.emit("suspected", claim.id, task.target, task.series)
    return problem


def mark_split_in_store(claim: Claim) -> TxFlow[None]:
    """Mark the key uncertain through the store: the user gave one connection, and it was lost. The lease of this claim
    is over at once, and its outcome unknown: an operator is asked even if nothing more reaches the store. A claim with
    a lease would be given back in the background if its reply was lost (engine/orphaned_claims.py)."""
    reply: ClaimReply = yield replace(claim, lease=0, on_lapse="uncertain")
    if reply.granted and reply.record is not None:
        yield Suspect(claim.id, reply.record.fence, SPLIT_NOTE)
    yield ForgetMarker(claim.id)
