"""The transaction strength of a route: the claim *is* an open transaction of the user's, the answer commits with it.

    claim      begin on the user's own database, lock the key, read; a stored answer is given back at once
    handler    gets the connection or session, and writes what it likes
    answer     held back by the middleware as ever; its settlement is the receipt and the commit, then the first byte

Nothing else differs from the guard: the exchange decides what is final, what is too large and which headers are kept,
and asks its store for `Complete` or `Release`. Here a commit stands behind the one and a rollback behind the other, so
a process that dies before the commit has done nothing at all.

A handler that raised is rolled back first. If what its framework makes of that is final, it is stored by a receipt in
a transaction of its own, as transactions/flow.py does (rule 4).

What the database undid because of others (a serialization failure, a deadlock) runs again, wherever that was said: in
the handler, in what its framework does afterwards, or at the commit. Nothing has gone out by then, so the exchange is
marked `undone`, and the middleware calls the application once more, with the same key and the body it has kept. Only
who is undone again and again is told 409 `rolled-back`.
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
from retrysafe.core.outcomes import Busy, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Record
from retrysafe.engine.effects import Effect, Flow, FlowPause, Persist
from retrysafe.engine.events import EventName
from retrysafe.engine.guard import POLL_SECONDS, Task, refusal_error
from retrysafe.engine.heartbeat import Lease
from retrysafe.errors import CorruptRecord, RetrySafeError, RolledBack, StoreUnclear, TransactionSplit
from retrysafe.transactions.effects import FLUSH, MAX_RERUNS, ROLLBACK, TxFlow
from retrysafe.transactions.failures import ErrorClass, classify_error
from retrysafe.transactions.flow import (
    RERUN_DELAY_SECONDS,
    MarkedTx,
    OpenTx,
    RerunNeeded,
    begin_and_read,
    commit,
    mark_split,
    run_plan,
    store_answer,
    was_split,
    write_receipt,
)
from retrysafe.transactions.tx_context import build_tx_context
from retrysafe.web import problems
from retrysafe.web.capture import Response, build_replay
from retrysafe.web.exchange import Exchange, GrantedClaim
from retrysafe.web.response_ready import ResponseReady

_log = logging.getLogger("retrysafe.web")

MAX_OPENINGS = 3
"""How often the transaction is begun anew where the database itself undid the beginning."""

_REFUSED_EVENTS: dict[type[Outcome], EventName] = {Busy: "busy", Mismatch: "mismatched", Uncertain: "uncertain"}


class SettledInstead(Exception):
    """The claim ended otherwise than was asked; this is what the client gets."""

    def __init__(self, response: Response) -> None:
        super().__init__(response.status)
        self.response = response


class RequestTransaction:
    """One request's transaction, as flows. Its colours are in joined.py."""

    def __init__(self, exchange: Exchange, task: Task) -> None:
        self.exchange = exchange
        self.task = task
        self.claim = replace(task.build_claim(), on_lapse="rerun")
        self._events = exchange.settings.safe.events
        self._place = build_tx_context(exchange.settings.safe)
        self._entered: MarkedTx | None = None
        self._was_split = False
        """Whether the handler has committed something before it raised."""

    # The claim ------------------------------------------------------------------------------------

    def open_flow(self) -> TxFlow[None]:
        """Open the transaction, or raise ResponseReady with the answer in place."""
        task, rerun = self.task, self.exchange.reruns > 0
        try:
            yield from self._ensure_install_id()
            yield from (self._back_off() if rerun else self._check_quota())
            record = yield from self._open_with_retries()
        except RetrySafeError as error:
            raise self.exchange.refusal_error(error) from error
        if not rerun:
            self._events.emit("new", self.claim.id, task.target)
        lease = Lease(self.claim.id, task.key.value, record.fence, math.inf)  # the open transaction is the lease
        self.exchange.record_grant(GrantedClaim(task=task, lease=lease, record=record, began=time.monotonic()))

    def _back_off(self) -> TxFlow[None]:
        """After the database undid it because of others: they go first, and rivals part."""
        yield FlowPause(self.claim.id, random.uniform(0, RERUN_DELAY_SECONDS * 2 ** (self.exchange.reruns - 1)))

    def _check_quota(self) -> TxFlow[None]:
        quotas, task = self.exchange.settings.quotas, self.task
        if quotas.is_exceeded(task.key.scope, task.policy.retention) and (yield from self._would_run()):
            raise self.exchange.refusal_error(problems.QUOTA, retry_after=1)

    def _ensure_install_id(self) -> TxFlow[None]:
        known = self._place.install_id
        if not known.value:
            known.value = yield Install()  # before a transaction is open: an embedded store makes its tables now

    def _would_run(self) -> TxFlow[bool]:
        found: LookupReply = yield Lookup(self.claim.id)
        return found.record is None or found.record.expired(found.now)

    def _open_with_retries(self) -> TxFlow[Record]:
        for opening in range(MAX_OPENINGS):
            try:
                found = yield from self._wait_for_turn()
                if isinstance(found, OpenTx):
                    self._entered = MarkedTx(
                        found, (yield from run_plan(found.statements.mark_transaction(found.look)))
                    )
                    return found.statements.build_claimed_record(self.claim, found.look, found.grant)
            except RerunNeeded as undone:
                if opening == MAX_OPENINGS - 1:
                    raise RolledBack(self.task.key.value, str(undone)) from undone
            else:
                raise self._refusal_error(found)
        raise AssertionError("the last opening returns or raises")

    def _wait_for_turn(self) -> TxFlow[OpenTx | Outcome]:
        """While another is at it wait as the policy says, with no transaction open and a place among the waiters."""
        policy, waiters, scope = self.task.policy, self.exchange.settings.waiters, self.task.key.scope
        waited, waiting = 0.0, False
        try:
            while True:
                found = yield from begin_and_read(self.claim, self._place)
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
        """Put the stored answer or the problem in place."""
        if isinstance(found, Replay):
            response = self._build_replay(found.record)
            self._events.emit("replayed", self.claim.id, self.task.target)
            return self.exchange.refusal_error(response)
        self._events.emit(_REFUSED_EVENTS[type(found)], self.claim.id, self.task.target)
        return self.exchange.refusal_error(refusal_error(self.task, found))

    def _build_replay(self, record: Record) -> Response:
        if record.scope != self.task.key.scope or record.key != self.task.key.value:
            raise CorruptRecord(record.id, "it is stored under another scope or key than its id says")
        if record.answer is not None and record.answer.gone:
            return self._build_response(problems.GONE)
        return build_replay(record)

    # The settlement -------------------------------------------------------------------------------

    def settle_flow(self, flow: Flow[Response | None]) -> TxFlow[Response | None]:
        """Carry out what the exchange's own flow asks for, by a commit or a rollback."""
        try:
            return (yield from self._drive_flow(flow))
        except SettledInstead as instead:
            return instead.response
        except RerunNeeded as undone:
            return self._settle_rolled_back(str(undone))
        except (StoreUnclear, TransactionSplit) as error:
            self.exchange.log_error(error)
            return self._build_response(problems.UNKNOWN)
        except RetrySafeError as error:
            return self._response_for_error(error)
        except Exception as error:
            return (yield from self._settle_late_failure(error))
        finally:
            flow.close()  # before anybody looks whether the exchange is still claimed

    def _drive_flow(self, flow: Flow[Response | None]) -> TxFlow[Response | None]:
        """Errors of ours end it here. The flow's own reading of them is about a store that may have what it was sent;
        here nothing has happened."""
        try:
            effect = next(flow)
            while True:
                effect = flow.send((yield from self._perform(effect)))
        except StopIteration as done:
            told: Response | None = done.value
            return told

    def _perform(self, effect: Effect) -> Generator[Any, Any, Any]:
        if isinstance(effect, Persist):
            effect = effect.op  # a transaction is carried out once: it has nothing to insist on
        if isinstance(effect, Complete):
            yield from self._complete_flow(effect.answer)
            return True
        if isinstance(effect, Release | Withdraw | Suspect):
            yield from self._roll_back()
            # Nothing is unknown about work that was rolled back: a suspicion is not worth an event.
            return isinstance(effect, Release | Withdraw)
        return None  # an announcement: who waits for a transaction looks by himself

    def _complete_flow(self, answer: Answer) -> TxFlow[None]:
        if self.exchange.failed_with is not None:
            yield from self._roll_back()
            return (yield from self._store_answer(answer))
        assert self._entered is not None, "a claim is settled once, and after it was opened"
        try:
            yield FLUSH
        except Exception as error:
            yield from self._undo(error)
            if self.is_serialization_failure(error):
                raise RerunNeeded(f"the database undid it because of others ({error})") from error
            raise
        yield from write_receipt(self.claim, self.task, self._place, self._entered, answer)
        yield from commit(self.claim, self._place)
        return None

    def _roll_back(self) -> TxFlow[None]:
        """Raises Undone where it failed because of others: that is no ending, and its answer is nobody's."""
        failed = self.exchange.failed_with
        error = failed if isinstance(failed, Exception) else None
        yield from self._undo(error)
        if error is not None and self.is_serialization_failure(error):
            raise RerunNeeded(f"the database undid it because of others ({error})") from error

    def undo_flow(self, error: Exception | None) -> TxFlow[None]:
        """Roll back, once. Whether the handler has committed something before can be asked only until then."""
        entered, self._entered = self._entered, None
        if entered is not None:
            self._was_split = yield from was_split(self.claim, entered, error)
        yield ROLLBACK

    def _undo(self, error: Exception | None) -> TxFlow[None]:
        """Roll back, or raise TransactionSplit."""
        yield from self.undo_flow(error)
        if self._was_split:
            raise (yield from mark_split(self.claim, self.task, self._place)) from error

    def _store_answer(self, answer: Answer) -> TxFlow[None]:
        """What was written is rolled back; the answer gets a transaction of its own. Whoever has got in between has the
        key, and its answer counts."""
        instead = yield from store_answer(self.claim, self._place, answer)
        if isinstance(instead, Replay):
            raise SettledInstead(self._build_replay(instead.record))
        if instead is not None:
            raise refusal_error(self.task, instead)

    def _settle_late_failure(self, error: Exception) -> TxFlow[Response]:
        """The database said no to what the handler had left for the end: a pending insert, a deferred constraint."""
        exchange, codes = self.exchange, self.exchange.settings.codes
        _log.error("%s: what it wrote could not be committed", exchange.target, exc_info=error)
        exchange.failed_with = error
        if not exchange.is_storable(codes.failed, error):
            self._events.emit("released", self.claim.id, self.task.target)
            return self._build_response(problems.FAILED_FOR_NOW)
        told = self._build_response(problems.FAILED)
        try:
            yield from self._store_answer(
                Answer(told.status, told.body, exchange.settings.dropped.filter_headers(told.headers))
            )
        except SettledInstead as instead:
            return instead.response
        except (RetrySafeError, RerunNeeded) as trouble_:
            _log.error(
                "%s: how it ended could not be written down: %s", exchange.target, exchange.describe_error(trouble_)
            )
            return self._build_response(problems.FAILED_FOR_NOW)
        self._events.emit("completed", self.claim.id, self.task.target)
        return told

    def _settle_rolled_back(self, why: str) -> Response:
        """Nothing happened. The middleware runs the request again, unless it has been undone too often, or is one whose
        answer is not final and has begun to go out."""
        self.exchange.rolled_back = self.exchange.reruns < MAX_RERUNS and not self.exchange.started
        if not self.exchange.rolled_back:
            self._events.emit("released", self.claim.id, self.task.target)
        return self._response_for_error(RolledBack(self.task.key.value, why))

    @staticmethod
    def is_serialization_failure(error: Exception) -> bool:
        """Whether the database undid the work because of others: a serialization failure, a deadlock."""
        return classify_error(error) is ErrorClass.RETRYABLE

    def must_rerun(self, error: Exception) -> bool:
        """Whether a handler raised because of that, and its claim is still to be settled: what fails after the commit
        (a background task) is not the claim's any more."""
        return self.exchange.claimed and self.is_serialization_failure(error)

    def _response_for_error(self, error: RetrySafeError) -> Response:
        self.exchange.refusal_error(error)
        told = self.exchange.response
        assert told is not None, "a refusal leaves its answer"
        return told

    def _build_response(self, problem: problems.Problem) -> Response:
        settings = self.exchange.settings
        return problems.build_problem_response(problem, settings.codes, settings.docs)
