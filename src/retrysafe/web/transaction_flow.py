"""`strength="transaction"` of a route: the claim *is* an open transaction of the user, and the answer commits with it.

    claim      begin on the user's own database, lock the key, read; a stored answer is replayed at once
    handler    gets the connection or session and writes to it
    answer     buffered by the middleware; settling it writes the receipt and commits, then the first byte is sent

Everything else is as for the guard: the exchange decides what is final, what is too large and which headers are kept,
and asks for `Complete` or `Release`. Here `Complete` is a commit and `Release` is a rollback. A process that dies
before the commit has therefore changed nothing.

If the handler raises, its transaction is rolled back first. If the framework's answer to the exception is final, it is
stored by a receipt in a separate transaction, as rule 4 of transactions/flow.py says.

Work that the database rolled back because of other transactions (a serialization failure, a deadlock) runs again. The
failure may come up in the handler, in the framework's code after it, or at the commit. Nothing has been sent by then,
so the exchange sets `rolled_back`, and the middleware calls the application again with the same key and the kept body.
Only a request that is rolled back again and again gets 409 `rolled-back`.
"""

from __future__ import annotations

import logging
import math
import random
import time
from collections.abc import Generator
from dataclasses import replace
from typing import Any

from retrysafe.core.ops import Complete, Install, Lookup, LookupReply, Release, Suspect, Withdraw
from retrysafe.core.outcomes import Busy, Outcome, Replay
from retrysafe.core.records import Answer, Record
from retrysafe.engine.effects import Effect, Flow, FlowPause, NotifyWorker, Persist
from retrysafe.engine.events import REFUSED_EVENTS
from retrysafe.engine.guard import POLL_SECONDS, Task, refusal_error
from retrysafe.engine.heartbeat import Lease
from retrysafe.engine.problem_documents import Problem
from retrysafe.errors import CorruptRecord, RetrySafeError, RolledBack, StoreUnclear, TransactionSplit
from retrysafe.transactions.binding import MAX_RERUNS, build_tx_context
from retrysafe.transactions.early_commits import mark_split
from retrysafe.transactions.effects import FLUSH, ROLLBACK, TxFlow
from retrysafe.transactions.failures import ErrorClass, classify_error
from retrysafe.transactions.flow import (
    RERUN_DELAY_SECONDS,
    MarkedTx,
    OpenTx,
    RerunNeeded,
    begin_and_read,
    build_staging,
    commit,
    mark_transaction,
    roll_back,
    rollback_error,
    store_answer,
    write_receipt,
)
from retrysafe.web import problems
from retrysafe.web.capture import Response, build_replay
from retrysafe.web.exchange import Exchange
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.settlement import GrantedClaim

_log = logging.getLogger("retrysafe.web")

MAX_OPENINGS = 3
"""How often the transaction is begun again if the database rolls its beginning back."""


class SettledInstead(Exception):
    """The claim was settled in another way than the exchange asked. The client gets this response."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class RequestTransaction:
    """One request's transaction, as flows. transaction_io.py drives them, sync and async."""

    def __init__(self, exchange: Exchange, task: Task) -> None:
        self.exchange = exchange
        self.task = task
        self.claim = replace(task.build_claim(), on_lapse="rerun")
        self._events = exchange.settings.events
        self._context = build_tx_context(exchange.settings.safe)
        self.staging = build_staging(self.claim, self._context)
        """The jobs that the handler stages. They commit with its work."""
        self._marked_tx: MarkedTx | None = None
        self._was_split = False
        """True if the handler committed part of its work before it raised."""

    # The claim ------------------------------------------------------------------------------------

    def open_flow(self) -> TxFlow[None]:
        """Open the transaction, or put the answer in place and raise ResponseReady."""
        task, rerun = self.task, self.exchange.reruns > 0
        try:
            yield from self._ensure_install_id()
            yield from (self._back_off() if rerun else self._check_quota())
            record = yield from self._open_with_retries()
        except RetrySafeError as error:
            raise self.exchange.refusal_error(error) from error
        lease = Lease(self.claim.id, task.key.value, record.fence, math.inf)  # the open transaction is the lease
        self.exchange.record_grant(GrantedClaim(task=task, lease=lease, record=record, began=time.monotonic()))

    def _back_off(self) -> TxFlow[None]:
        """Wait a random time after a rollback, so that the conflicting transactions finish first."""
        yield FlowPause(self.claim.id, random.uniform(0, RERUN_DELAY_SECONDS * 2 ** (self.exchange.reruns - 1)))

    def _check_quota(self) -> TxFlow[None]:
        quotas, task = self.exchange.settings.quotas, self.task
        if quotas.is_exceeded(task.key.scope, task.policy.retention) and (yield from self._would_run()):
            raise self.exchange.refusal_error(problems.QUOTA, retry_after=1)

    def _ensure_install_id(self) -> TxFlow[None]:
        known = self._context.install_id
        if not known.value:
            known.value = yield Install()  # before the transaction: an embedded store creates its tables here

    def _would_run(self) -> TxFlow[bool]:
        found: LookupReply = yield Lookup(self.claim.id)
        return found.record is None or found.record.expired(found.now)

    def _open_with_retries(self) -> TxFlow[Record]:
        for opening in range(MAX_OPENINGS):
            try:
                found = yield from self._wait_for_turn()
                if isinstance(found, OpenTx):
                    mark = yield from mark_transaction(self.claim, self.task, self._context, found)
                    self._marked_tx = MarkedTx(found, mark)
                    return found.statements.build_claimed_record(self.claim, found.look, found.grant)
            except RerunNeeded as rerun_needed:
                if opening == MAX_OPENINGS - 1:
                    raise RolledBack(self.task.key.value, str(rerun_needed)) from rerun_needed
            else:
                raise self._refusal_error(found)
        raise AssertionError("the last opening returns or raises")

    def _wait_for_turn(self) -> TxFlow[OpenTx | Outcome]:
        """While another owner has the key, wait as the policy says, as a counted waiter and without a transaction."""
        policy, waiters, scope = self.task.policy, self.exchange.settings.waiters, self.task.key.scope
        waited, waiting = 0.0, False
        try:
            while True:
                found = yield from begin_and_read(self.claim, self._context)
                left = policy.wait - waited
                if not (isinstance(found, Busy) and policy.busy == "wait" and left > 0):
                    return found
                waiting = waiting or waiters.enter(scope)
                if not waiting:
                    return found
                pause = min(random.uniform(*POLL_SECONDS), left)
                yield FlowPause(self.claim.id, pause)
                waited += pause
        finally:
            if waiting:
                waiters.leave(scope)

    def _refusal_error(self, found: Outcome) -> ResponseReady:
        """Put the stored answer or the problem into `response`. The caller raises the error that this returns."""
        if isinstance(found, Replay):
            response = self._build_replay(found.record)
            self._events.emit("replayed", self.claim.id, self.task.target, self.task.series)
            return self.exchange.refusal_error(response)
        self._events.emit(REFUSED_EVENTS[type(found)], self.claim.id, self.task.target, self.task.series)
        return self.exchange.refusal_error(refusal_error(self.task, found))

    def _build_replay(self, record: Record) -> Response:
        if record.scope != self.task.key.scope or record.key != self.task.key.value:
            raise CorruptRecord(record.id, "it is stored under another scope or key than its id says")
        if record.answer is not None and record.answer.gone:
            return self._build_response(problems.GONE)
        return build_replay(record)

    # The settlement -------------------------------------------------------------------------------

    def settle_flow(self, flow: Flow[Response | None]) -> TxFlow[Response | None]:
        """Run the exchange's settlement flow, with a commit or a rollback for what it asks."""
        try:
            return (yield from self._drive_flow(flow))
        except SettledInstead as instead:
            return instead.response
        except RerunNeeded as rerun_needed:
            return self._settle_rolled_back(str(rerun_needed))
        except (StoreUnclear, TransactionSplit) as error:
            self.exchange.log_error(error)
            return self._build_response(problems.UNKNOWN)
        except RetrySafeError as error:
            return self._response_for_error(error)
        except Exception as error:
            return (yield from self._settle_late_failure(error))
        finally:
            flow.close()  # ends the claim, before the caller reads `exchange.claimed`

    def _drive_flow(self, flow: Flow[Response | None]) -> TxFlow[Response | None]:
        """Errors are not thrown into the flow. It would treat them as errors of a store that may have done what it was
        sent; here nothing was done."""
        try:
            effect = next(flow)
            while True:
                effect = flow.send((yield from self._perform(effect)))
        except StopIteration as done:
            response: Response | None = done.value
            return response

    def _perform(self, effect: Effect) -> Generator[Any, Any, Any]:
        if isinstance(effect, Persist):
            effect = effect.op  # a transaction is never sent twice, so there is nothing to repeat
        if isinstance(effect, Complete):
            yield from self._complete_flow(effect.answer)
            return True
        if isinstance(effect, Release | Withdraw | Suspect):
            yield from self._roll_back_or_rerun()
            # The outcome of work that was rolled back is known, so Suspect gets no event.
            return isinstance(effect, Release | Withdraw)
        return None  # a notification: those who wait for a transaction poll

    def _complete_flow(self, answer: Answer) -> TxFlow[None]:
        if self.exchange.failed_with is not None:
            yield from self._roll_back_or_rerun()
            return (yield from self._store_answer(answer))
        assert self._marked_tx is not None, "a claim is settled once, and after it was opened"
        try:
            yield FLUSH
        except Exception as error:
            yield from self._roll_back_checked(error)
            if self.is_serialization_failure(error):
                raise rollback_error(error) from error
            raise
        yield from write_receipt(self.claim, self.task, self._context, self._marked_tx, answer, staging=self.staging)
        yield from commit(self.claim, self._context)
        if self.staging.jobs:
            yield NotifyWorker()
        return None

    def _roll_back_or_rerun(self) -> TxFlow[None]:
        """Roll back. Raises RerunNeeded if it failed because of other transactions: then the request runs again."""
        failed = self.exchange.failed_with
        error = failed if isinstance(failed, Exception) else None
        yield from self._roll_back_checked(error)
        if error is not None and self.is_serialization_failure(error):
            raise rollback_error(error) from error

    def roll_back_flow(self, error: Exception | None) -> TxFlow[None]:
        """Roll back, once, and find out whether the handler has committed part of its work before."""
        marked_tx, self._marked_tx = self._marked_tx, None
        if marked_tx is not None:
            self._was_split = yield from roll_back(self.claim, marked_tx, error)
        else:
            yield ROLLBACK

    def _roll_back_checked(self, error: Exception | None) -> TxFlow[None]:
        """Roll back. Raises TransactionSplit if the handler had committed part of its work."""
        yield from self.roll_back_flow(error)
        if self._was_split:
            raise (yield from mark_split(self.claim, self.task, self._context)) from error

    def _store_answer(self, answer: Answer) -> TxFlow[None]:
        """Store the answer in a transaction of its own, after the rollback. If another request got the key in between,
        its answer counts."""
        instead = yield from store_answer(self.claim, self._context, answer)
        if isinstance(instead, Replay):
            raise SettledInstead(self._build_replay(instead.record))
        if instead is not None:
            raise refusal_error(self.task, instead)

    def _settle_late_failure(self, error: Exception) -> TxFlow[Response]:
        """The database refused, after the handler returned, a pending insert or a deferred constraint."""
        exchange, codes = self.exchange, self.exchange.settings.codes
        _log.error("%s: its transaction could not be committed", exchange.target, exc_info=error)
        exchange.failed_with = error
        if not exchange.is_storable(codes.failed, error):
            self._events.emit("released", self.claim.id, self.task.target, self.task.series)
            return self._build_response(problems.FAILED_FOR_NOW)
        failed = self._build_response(problems.FAILED)
        try:
            yield from self._store_answer(
                Answer(failed.status, failed.body, exchange.settings.dropped.filter_headers(failed.headers))
            )
        except SettledInstead as instead:
            return instead.response
        except (RetrySafeError, RerunNeeded) as failure:
            _log.error("%s: its outcome could not be stored: %s", exchange.target, exchange.describe_error(failure))
            return self._build_response(problems.FAILED_FOR_NOW)
        self._events.emit("completed", self.claim.id, self.task.target, self.task.series)
        return failed

    def _settle_rolled_back(self, why: str) -> Response:
        """Nothing was done. The middleware runs the request again, unless it was rolled back too often, or part of its
        answer (one that is not final) was already sent."""
        self.exchange.rolled_back = self.exchange.reruns < MAX_RERUNS and not self.exchange.started
        if not self.exchange.rolled_back:
            self._events.emit("released", self.claim.id, self.task.target, self.task.series)
        return self._response_for_error(RolledBack(self.task.key.value, why))

    @staticmethod
    def is_serialization_failure(error: Exception) -> bool:
        """True if the database rolled back because of other transactions: a serialization failure, a deadlock."""
        return classify_error(error) is ErrorClass.RETRYABLE

    def must_rerun(self, error: Exception) -> bool:
        """True if the handler failed because of other transactions and its claim is not settled. A failure after the
        commit (in a background task) does not concern the claim."""
        return self.exchange.claimed and self.is_serialization_failure(error)

    def _response_for_error(self, error: RetrySafeError) -> Response:
        self.exchange.refusal_error(error)
        response = self.exchange.response
        assert response is not None, "a refusal leaves its answer"
        return response

    def _build_response(self, problem: Problem) -> Response:
        settings = self.exchange.settings
        return problems.build_problem_response(problem, settings.codes, settings.docs)
