"""Settlement: how a claimed request ends. What is stored of its answer, and what is told of it.

The base class of Exchange (exchange.py), which makes the claim. These are flows, too: sync_async.py drives them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import NamedTuple

from retrysafe.core.keys import Key
from retrysafe.core.ops import Complete
from retrysafe.core.records import Answer, Gone, Record
from retrysafe.engine.effects import Flow, LeaveClaim, Persist
from retrysafe.engine.events import Series
from retrysafe.engine.guard import Task, settle_abandoned, settle_complete, settle_released, settle_withdrawn
from retrysafe.engine.heartbeat import Lease
from retrysafe.engine.problem_documents import Problem
from retrysafe.errors import LeaseLost, OutcomeUnrecorded, StoreError, UsageError
from retrysafe.policy import Policy
from retrysafe.web import problems
from retrysafe.web.capture import HeaderPairs, Response, build_stored_answer
from retrysafe.web.endpoint_entry import UNKNOWN, EndpointEntry, EntryProbe, should_withdraw
from retrysafe.web.problems import describe_error
from retrysafe.web.settings import Settings

_log = logging.getLogger("retrysafe.web")


class GrantedClaim(NamedTuple):
    """A claim that was granted: what to run, its lease, its record, and when it began (monotonic clock)."""

    task: Task
    lease: Lease
    record: Record
    began: float


class Settlement:
    """What an exchange has of its claim, and how it ends. It begins with `record_grant`."""

    settings: Settings
    policy: Policy
    target: str
    series: Series
    reruns: int

    failed_with: BaseException | None = None
    """The exception of the application's handler. With it, the request's transaction is not committed
    (transaction_flow.py)."""

    # What a request has at first. It is in the class, because an exchange is made for each request.
    scope = ""
    key: Key | None = None
    grant: GrantedClaim | None = None
    endpoint_entry: EndpointEntry | None = None
    """Whether an endpoint was entered, if an adapter has recorded it."""
    entry_probe: EntryProbe | None = None
    """Called when the answer is there, if nothing was recorded."""
    _withdraws = False
    _error_type = ""
    """The class of the exception that ended the work, or the status of an answer that says it failed."""
    _stop: Callable[[], object] | None = None

    @property
    def claimed(self) -> bool:
        """True while this request holds a claim that is not settled yet."""
        return self.grant is not None

    @property
    def record(self) -> Record | None:
        """The record of the claim, while this request holds it."""
        return self.grant.record if self.grant is not None else None

    def hand_over_claim(self) -> GrantedClaim:
        """Give the claim to a caller that settles it (an operation). The answer then passes through unstored."""
        grant, self.grant = self.grant, None
        if grant is None:
            raise UsageError("there is no claim to hand over: await exchange.claim(principal) first")
        self._leave_lease(grant.lease)
        self.settings.safe.figures.end_execution(self.series, grant.began)
        self.settings.quotas.record_end(grant.task.key.scope, 0, self.policy.retention)
        return grant

    def describe_error(self, error: BaseException) -> str:
        return describe_error(error, self.scope, self.key.value if self.key is not None else "")

    def _retry_after(self) -> int:
        return self.settings.durations.retry_after(self.target, self.policy.lease)

    def _build_response(self, problem: Problem, retry_after: int | None = None) -> Response:
        return problems.build_problem_response(
            problem, self.settings.codes, self.settings.docs, retry_after=retry_after
        )

    def record_grant(self, grant: GrantedClaim, stop: Callable[[], object] | None = None) -> Key:
        """Record the granted claim. When it is settled, its lease ends and `stop` (a reset of the context) runs."""
        self.grant = grant
        self._stop = stop
        settings, task = self.settings, grant.task
        if (events := settings.events).heard or grant.record.attempt > 1 or self.reruns:
            self._tell_begin(grant)
        else:
            events.granted.append(self.series)  # a grant and the begin of an execution in one
        if settings.quotas.limited:
            new = grant.record.attempt == 1 and not self.reruns
            settings.quotas.record_start(task.key.scope, new, task.policy.retention)
        return task.key

    def _tell_begin(self, grant: GrantedClaim) -> None:
        events = self.settings.events
        if not self.reruns:
            events.emit_grant(grant.lease.id, self.target, self.series, grant.record.attempt)
        events.figures.count_begin(self.series[0])

    # The end ------------------------------------------------------------------------------------------

    def is_storable(self, code: int, error: BaseException | None = None) -> bool:
        """True if this ending is final. If the user's `failures=` raises, it is final: the work must run only once."""
        policy = self.policy
        if code < 300:
            self._withdraws = False  # an endpoint was entered
            if code not in self.settings.never_stored and not callable(policy.failures):
                return True  # under every rule
        elif error is None and self._is_framework_refusal(code):
            return False
        if error is None and code in self.settings.never_stored:
            return False
        try:
            return policy.final(code, error)
        except Exception:
            _log.exception("%s: failures= raised; the answer is stored", self.target)
            return True

    def _is_framework_refusal(self, code: int) -> bool:
        """True if the framework refused the request before any endpoint was entered, and the claim is withdrawn."""
        entry = UNKNOWN
        try:
            entry = self.endpoint_entry or (self.entry_probe(code) if self.entry_probe is not None else UNKNOWN)
        except Exception:
            _log.exception("%s: finding out whether an endpoint was entered failed", self.target)
        self._withdraws = should_withdraw(self.policy, entry.entered, entry.redirected)
        return self._withdraws

    def build_final_answer(self, code: int, headers: HeaderPairs, body: bytes) -> Answer | None:
        """What is stored of the application's answer; None if it is not final, and the key is given back."""
        if code >= 500:
            self._error_type = str(code)
        return build_stored_answer(code, headers, body, self.settings.dropped) if self.is_storable(code) else None

    def settle_answered(self, code: int, headers: HeaderPairs, body: bytes) -> Flow[Response | None]:
        """The application's answer is complete. Returns None to send it, or the response to send instead."""
        answer = self.build_final_answer(code, headers, body)
        if answer is None:
            return (yield from self.give_back_flow(f"it answered {code}"))
        return (yield from self.complete_flow(answer))

    def build_completion(self, answer: Answer) -> Persist:
        """What stores the answer, for a caller that sends it itself. From here on a heartbeat no longer finds out
        whether the lease was lost."""
        lease = self._require_grant().lease
        lease.settling = True
        return Persist(Complete(lease.id, lease.fence, answer), lease.until)

    def end_plain_completion(self, answer: Answer) -> bool:
        """The answer is stored, and there is nothing else to do. False: `complete_flow` goes on from the reply."""
        assert self.grant is not None, "only a claimed exchange is settled"
        task = self.grant.task
        if task.policy.busy == "wait" and task.notifies_waiters:
            return False
        self._end_claim(len(answer.body), completed=True)
        return True

    def settle_tombstone(self, code: int, gone: Gone) -> Flow[Response | None]:
        """Store a tombstone: the work was done, but its answer cannot be kept. Done before the first byte is sent."""
        return (yield from self.complete_flow(Answer(code, gone=gone)))

    def settle_raised(self, error: BaseException) -> Flow[Response | None]:
        """The application raised without an answer: store and send our own problem."""
        self.failed_with, self._error_type = error, type(error).__name__
        code = self.settings.codes.failed
        if not self.is_storable(code, error):
            yield from self.give_back_flow(f"it failed with {type(error).__qualname__}")
            return self._build_response(problems.FAILED_FOR_NOW)
        failed = self._build_response(problems.FAILED)
        instead = yield from self.complete_flow(
            build_stored_answer(code, failed.headers, failed.body, self.settings.dropped)
        )
        return instead or failed

    def settle_stopped(self, error: BaseException) -> Flow[Response | None]:
        """The work was cancelled, or the process is ending: how far it got is not known."""
        grant, self._error_type = self._require_grant(), type(error).__name__
        try:
            yield from settle_abandoned(grant.task, grant.lease, error, self.settings.events)
        except StoreError as failure:
            self._log_unsettled(grant, failure)
        finally:
            self._end_claim(0)
        return None

    def release_flow(self) -> Flow[Response | None]:
        """Release the key after an answer that is not final was sent."""
        return (yield from self.give_back_flow("its answer was not final"))

    def release_unstarted(self) -> Flow[Response | None]:
        """Undo the claim because the application was not called. The store refuses it if another owner has the key."""
        self._withdraws = True
        return (yield from self.give_back_flow("it did not begin before its lease was over"))

    def give_back_flow(self, note: str) -> Flow[Response | None]:
        grant = self._require_grant()
        give_back = settle_withdrawn if self._withdraws else settle_released
        try:
            yield from give_back(grant.task, grant.lease, note, self.settings.events)
        except StoreError as error:
            self._log_unsettled(grant, error)  # the lease lapses by itself
            if self._withdraws:  # nothing ran: nobody needs to be asked
                yield LeaveClaim(grant.lease.id, grant.lease.fence.token)
        finally:
            self._end_claim(0)
        return None

    def complete_flow(self, answer: Answer) -> Flow[Response | None]:
        grant, stored = self._require_grant(), 0
        try:
            yield from settle_complete(grant.task, grant.lease, answer, self.settings.events)
            stored = len(answer.body)
        except LeaseLost:
            return self._build_response(problems.LOST)
        except OutcomeUnrecorded as error:
            # An answer that is not stored must not be sent: the retry could get another one.
            cause = self.describe_error(error.__cause__ or error)
            _log.error("%s: its outcome could not be stored: %s", self.target, cause)
            return self._build_response(problems.UNRECORDED, self._retry_after())
        finally:
            self._end_claim(stored)
        return None

    def _require_grant(self) -> GrantedClaim:
        assert self.grant is not None, "only a claimed exchange is settled"
        return self.grant

    def _end_claim(self, size: int, *, completed: bool = False) -> None:
        """The claim is settled, or settling it failed: stop the heartbeat and update durations and quotas. `completed`:
        no flow has told yet that the answer is stored."""
        settings, grant = self.settings, self._require_grant()
        self.grant = None
        self._leave_lease(grant.lease)
        seconds = time.monotonic() - grant.began
        if completed and not (self._error_type or settings.events.heard):
            settings.safe.figures.end_completed(self.series, seconds)
        else:
            self._tell_end(grant, completed)
        if not self._withdraws:
            settings.durations.observe(self.target, seconds)
        if settings.quotas.limited:
            withdrawn_new = self._withdraws and grant.record.attempt == 1 and not self.reruns
            scope, retention = grant.task.key.scope, grant.task.policy.retention
            settings.quotas.record_end(scope, size, retention, withdrawn_new=withdrawn_new)

    def _tell_end(self, grant: GrantedClaim, completed: bool) -> None:
        safe, task = self.settings.safe, grant.task
        if completed:
            safe.events.emit("completed", grant.lease.id, task.target, self.series)
        safe.figures.end_execution(self.series, grant.began, self._error_type)

    def _leave_lease(self, lease: Lease) -> None:
        lease.end()
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def _log_unsettled(self, grant: GrantedClaim, error: StoreError) -> None:
        self.settings.events.emit("store_failed", grant.lease.id, self.target, self.series)
        _log.error("%s: its outcome could not be stored: %s", self.target, self.describe_error(error))
