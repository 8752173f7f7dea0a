"""Exchange: one protected request, from its claim to its settlement.

The middleware makes an exchange for each request that it protects. The claim is made where the principal is known: in
the middleware if it was given `scope`, otherwise in the route (`claim(principal)`). If the application must not run,
the claim leaves the answer to send in `response` and raises `ResponseReady`. The application's own answer is then
discarded.

All decisions are here, once, as flows. The sync and async classes in sync_async.py only drive them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self
from uuid import UUID

from retrysafe.core.keys import Key, set_request
from retrysafe.core.ops import Claim, ClaimReply, Complete, Lookup, LookupReply
from retrysafe.core.outcomes import Busy, Execute, Outcome, Replay
from retrysafe.core.records import Answer, Fence, Gone, Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.effects import Flow, LeaveClaim, Persist
from retrysafe.engine.guard import (
    Task,
    refusal_error,
    settle_abandoned,
    settle_complete,
    settle_released,
    settle_withdrawn,
)
from retrysafe.engine.heartbeat import Lease
from retrysafe.engine.new_keys import new_key
from retrysafe.engine.problem_documents import Problem
from retrysafe.errors import (
    CorruptRecord,
    KeyProblem,
    LeaseLost,
    MissingKey,
    OutcomeUnrecorded,
    RetrySafeError,
    ScopeRequired,
    StoreError,
    UsageError,
)
from retrysafe.policy import Policy
from retrysafe.web import problems, status
from retrysafe.web.capture import HeaderPairs, Response, build_replay, build_stored_answer
from retrysafe.web.claim_flows import claim_interruptibly, limit_waiters
from retrysafe.web.endpoint_entry import UNKNOWN, EndpointEntry, EntryProbe, should_withdraw
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.fingerprints import fingerprint_request
from retrysafe.web.key_header import quote_key, read_key
from retrysafe.web.key_usage import UsageKind
from retrysafe.web.paths import sanitize_target
from retrysafe.web.problems import describe_error
from retrysafe.web.routes import Route
from retrysafe.web.settings import Settings
from retrysafe.web.view import RequestView, read_mount_path

EXCHANGE = "retrysafe.exchange"
"""The key of the exchange: `scope[EXCHANGE]` on ASGI, `environ[EXCHANGE]` on WSGI."""

_log = logging.getLogger("retrysafe.web")

DRAIN_LIMIT_BYTES = 8 * 1024 * 1024
"""How many bytes of a refused body are still read. If the server closed the connection while the client is sending, the
client would get a connection error instead of the refusal."""


class BodyRefused(Exception):
    """The request body is too large, too slow or broken."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.title)
        self.problem = problem


class GrantedClaim(NamedTuple):
    """A claim that was granted: what to run, its lease, its record, and when it began (monotonic clock)."""

    task: Task
    lease: Lease
    record: Record
    began: float


class Exchange:
    """One request and what is decided about it. Base class of AsyncExchange and SyncExchange."""

    failed_with: BaseException | None = None
    """The exception of the application's handler. With it, the request's transaction is not committed
    (transaction_flow.py)."""

    rolled_back = False
    """True if the database rolled the work back because of other transactions. The middleware then runs the whole
    request again, and the answer in `response` is not sent."""

    # What a request has at first. It is in the class, because an exchange is made for each request.
    response: Response | None = None
    """The answer to send instead of the application's; None while the application may answer."""
    scope = ""
    key: Key | None = None
    grant: GrantedClaim | None = None
    claim_requested = False
    """True once a claim was requested, granted or not."""
    started = False
    """True once the first part of an answer was sent."""
    uncaptured = False
    """True if the middleware does not capture this request (no key, and mode `optional`)."""
    endpoint_entry: EndpointEntry | None = None
    """Whether an endpoint was entered, if an adapter has recorded it."""
    entry_probe: EntryProbe | None = None
    """Called when the answer is there, if nothing was recorded."""
    generated_key = ""
    observation_lease: Lease | None = None
    _withdraws = False
    _error_type = ""
    """The class of the exception that ended the work, or the status of an answer that says it failed."""
    _stop: Callable[[], object] | None = None

    def __init__(
        self, settings: Settings, view: RequestView, route: Route, lines: Sequence[str], reruns: int = 0
    ) -> None:
        self.settings = settings
        self.view = view
        self.route = route
        self.policy = route.policy
        self.target = route.target
        self.series = route.series
        self.key_lines = lines
        self.reruns = reruns
        """How many earlier runs of this request the database has rolled back."""
        self._begun = time.monotonic()
        self._error_type = ""  # its own: it is read of each request, and from the class that takes ten times as long

    @property
    def claimed(self) -> bool:
        """True while this request holds a claim that is not settled yet."""
        return self.grant is not None

    @property
    def record(self) -> Record | None:
        """The record of the claim, while this request holds it."""
        return self.grant.record if self.grant is not None else None

    def copy_for_rerun(self) -> Self:
        """A new exchange for the same request and key, for the next run after a rollback."""
        copy = type(self)(self.settings, self.view, self.route, self.key_lines, self.reruns + 1)
        copy.generated_key = self.generated_key
        return copy

    def hand_over_claim(self) -> GrantedClaim:
        """Give the claim to a caller that settles it (an operation). The answer then passes through unstored."""
        grant, self.grant = self.grant, None
        if grant is None:
            raise UsageError("there is no claim to hand over: await exchange.claim(principal) first")
        self._leave_lease(grant.lease)
        self.settings.safe.figures.end_execution(grant.task.series, grant.began)
        self.settings.quotas.record_end(grant.task.key.scope, 0, self.policy.retention)
        return grant

    # Before the claim ---------------------------------------------------------------------------

    def begin(self, policy: Policy | None, target: str | None) -> Policy:
        self.policy = policy or self.policy
        if target:
            self.target = sanitize_target(target)
            self.series = ("http", self.target)
        if self.claim_requested:
            raise UsageError(f"{self.target} asks for its claim twice; one request has one key and one claim")
        if self.started:
            raise UsageError(f"{self.target} asks for its claim after its answer has begun; ask before the work")
        if self.uncaptured and self.policy.mode != "optional":
            raise UsageError(
                f"{self.target} asks with mode={self.policy.mode!r}, but the middleware lets requests without a key "
                "through under its own mode='optional'; give the middleware the same mode, or name the route in routes="
            )
        self.claim_requested = True
        return self.policy

    def _read_key_value(self, policy: Policy, scope: str) -> str | None:
        """The key; None if there is none and the mode allows that. Counts what the client sent, once per request."""
        if self.generated_key:
            return self.generated_key
        settings = self.settings
        try:
            key = read_key(self.key_lines, settings.key_rule)
            if key is None and policy.mode == "required":
                raise MissingKey
        except KeyProblem as error:
            self.count_usage("missing" if isinstance(error, MissingKey) else "malformed", scope)
            raise self.refusal_error(error) from None
        if key is None and policy.mode == "generate":
            key = self.generated_key = new_key()
            if self.count_usage("generated", scope):
                _log.warning(
                    "%s: a client sends no Idempotency-Key; one was generated, which protects nothing", self.target
                )
            return key
        if not self.reruns:
            settings.census.count(self.target, scope, "missing" if key is None else "keyed", self.series[1])
        return key

    def count_usage(self, sent: UsageKind, scope: str) -> bool:
        return not self.reruns and self.settings.census.count(self.target, scope, sent, self.series[1])

    def read_key(self, scope: str, policy: Policy) -> Key | None:
        self.scope = scope
        value = self._read_key_value(policy, scope)
        if value is None:
            return None
        try:
            self.key = Key.from_header(value, scope)
        except (ScopeRequired, KeyProblem) as error:
            raise self.refusal_error(error if isinstance(error, ScopeRequired) else ScopeRequired(scope)) from None
        return self.key

    def build_task(self, key: Key, policy: Policy, chunks: list[bytes]) -> Task:
        fingerprint = fingerprint_request(self.view, self.route, chunks)
        set_request(key, fingerprint)  # an operation with this key uses the request's fingerprint
        return self.settings.safe.build_task(key, self.target, fingerprint, policy, self.series)

    # The claim ----------------------------------------------------------------------------------

    def take_plain_reply(self, task: Task, claim: Claim, reply: ClaimReply) -> GrantedClaim | None:
        """The two common outcomes, without a flow: the claim is granted, or its answer is stored. A replay is left in
        `response`. Neither: None, and `claim_flow` decides about this reply. Whatever is not plain is left to it."""
        record = reply.record
        if record is None or record.scope != claim.scope or record.key != claim.key:
            return None
        if reply.granted:
            lapsed = record.lease_until <= reply.now
            return None if lapsed else self._build_grant(task, claim, record, reply.now, reply.asked)
        answer = record.answer
        if record.state is State.COMPLETED and record.fingerprint == claim.fingerprint and answer and not answer.gone:
            try:
                self._set_replay(task, record)
            except CorruptRecord:
                return None  # the flow meets the same damage, and refuses the request
        return None

    def _build_grant(self, task: Task, claim: Claim, record: Record, now: int, asked: float) -> GrantedClaim:
        if (events := self.settings.safe.events).heard or record.attempt > 1:
            events.emit_grant(claim.id, task.target, task.series, record.attempt)
        else:
            events.granted.append(task.series)
        until = asked + (record.lease_until - now) / SECOND_MICROS
        lease = Lease(claim.id, task.key.value, Fence(record.attempt, record.token), until)
        return GrantedClaim(task, lease, record, time.monotonic())

    def _set_replay(self, task: Task, record: Record) -> None:
        replay = build_replay(record)
        if (events := self.settings.safe.events).heard:
            events.emit("replayed", record.id, task.target, task.series)
        else:
            events.replayed.append(task.series)
        self.response = replay

    def claim_flow(self, task: Task, claim: Claim) -> Flow[GrantedClaim | None]:
        """Claim the key; or put the answer in place, and return None if it is a replay, else raise ResponseReady."""
        try:
            return (yield from self._claim_or_refuse(task, claim))
        except (StoreError, RetrySafeError) as error:
            raise self.refusal_error(error) from error

    def _claim_or_refuse(self, task: Task, claim: Claim) -> Flow[GrantedClaim | None]:
        settings, events = self.settings, self.settings.safe.events
        if settings.quotas.is_exceeded(task.key.scope, task.policy.retention):
            found: LookupReply = yield Lookup(claim.id)
            if _would_run(found):
                raise self.refusal_error(problems.QUOTA, retry_after=self._retry_after())
        claiming = claim_interruptibly(claim, task, events)
        if task.policy.busy == "wait":
            claiming = limit_waiters(claiming, settings.waiters, task, claim.id, events)
        outcome: Outcome = yield from claiming
        if isinstance(outcome, Execute):
            _check_same_owner(outcome.record, task)
            return self._build_grant(task, claim, outcome.record, outcome.now, outcome.asked)
        if isinstance(outcome, Replay):
            _check_same_owner(outcome.record, task)
            answer = outcome.record.answer
            if answer is not None and answer.gone:
                raise self.refusal_error(problems.GONE)
            self._set_replay(task, outcome.record)
            return None
        if isinstance(outcome, Busy) and task.policy.busy == "accepted":
            known: LookupReply = yield Lookup(claim.id)
            if known.record is not None:
                raise self.refusal_error(
                    status.build_accepted_response(settings, read_mount_path(self.view), known.record, task.target)
                )
        raise self.refusal_error(refusal_error(task, outcome))

    def refusal_error(
        self, why: RetrySafeError | Problem | Response, *, retry_after: int | None = None
    ) -> ResponseReady:
        """Put the answer into `response`. The caller raises the error that this returns."""
        if isinstance(why, Response):
            self.response = why
            return ResponseReady("the answer is stored")
        problem = why if isinstance(why, Problem) else problems.problem_for_error(why)
        if problem.code in ("failed", "unavailable", "unknown") and isinstance(why, RetrySafeError):
            self.log_error(why)
        if retry_after is None and problem.code in ("in_progress", "unavailable"):
            retry_after = self._retry_after()
        self.response = self._build_response(problem, retry_after)
        return ResponseReady(problem.title)

    def log_error(self, error: RetrySafeError) -> None:
        """Log an error for the operator. The log names the record by its id and never shows its key or scope (S28)."""
        record = self.key.id(self.settings.safe.namespace).hex() if self.key is not None else "none"
        _log.error("%s: %s (record %s)", self.target, self.describe_error(error), record)

    def describe_error(self, error: BaseException) -> str:
        return describe_error(error, self.scope, self.key.value if self.key is not None else "")

    def _retry_after(self) -> int:
        return self.settings.durations.retry_after(self.target, self.policy.lease)

    def observe_operation(self) -> None:
        """An operation ran in this request: remember how long it took, for the `Retry-After` of later requests."""
        self.settings.durations.observe(self.target, time.monotonic() - self._begun)

    def estimate_retry_after(self, longest: float) -> int:
        """Whole seconds until an operation of this route is probably finished; at most until its lease lapses."""
        return self.settings.durations.retry_after(self.target, longest)

    def _build_response(self, problem: Problem, retry_after: int | None = None) -> Response:
        return problems.build_problem_response(
            problem, self.settings.codes, self.settings.docs, retry_after=retry_after
        )

    def record_grant(self, grant: GrantedClaim, stop: Callable[[], object] | None = None) -> Key:
        """Record the granted claim. When it is settled, its lease ends and `stop` (a reset of the context) runs."""
        self.grant = grant
        self._stop = stop
        settings, task = self.settings, grant.task
        if (events := settings.safe.events).heard:
            events.figures.count_begin(task.series[0])
        else:
            events.begun.append(task.series[0])
        if settings.quotas.limited:
            new = grant.record.attempt == 1 and not self.reruns
            settings.quotas.record_start(task.key.scope, new, task.policy.retention)
        return task.key

    # Settlement ---------------------------------------------------------------------------------

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
            yield from settle_abandoned(grant.task, grant.lease, error, self.settings.safe.events)
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
            yield from give_back(grant.task, grant.lease, note, self.settings.safe.events)
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
            yield from settle_complete(grant.task, grant.lease, answer, self.settings.safe.events)
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
        if completed and not (self._error_type or settings.safe.events.heard):
            settings.safe.figures.end_completed(grant.task.series, seconds)
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
            safe.events.emit("completed", grant.lease.id, task.target, task.series)
        safe.figures.end_execution(task.series, grant.began, self._error_type)

    def _leave_lease(self, lease: Lease) -> None:
        lease.end()
        stop, self._stop = self._stop, None
        if stop is not None:
            stop()

    def _log_unsettled(self, grant: GrantedClaim, error: StoreError) -> None:
        self.settings.safe.events.emit("store_failed", grant.lease.id, self.target, grant.task.series)
        _log.error("%s: its outcome could not be stored: %s", self.target, self.describe_error(error))

    # An answer without a claim -------------------------------------------------------------------

    def refuse_if_unprotected(self, code: int) -> bool:
        """True if a route that must claim has answered without a claim; `response` is then the answer to send."""
        if self.claim_requested or code >= 400:
            return False
        if not self.route.listed or self.policy.mode != "required":
            if self.key_lines and self.count_usage("unclaimed", ""):
                _log.warning(
                    "%s was sent an Idempotency-Key, but the route never claims it: not protected", self.target
                )
            return False
        _log.error(
            "%s is listed as required, but the route never claimed its key: it ran unprotected. Pass scope= to the "
            "middleware, or use your framework's dependency or decorator on the route",
            self.target,
        )
        self.response = self._build_response(problems.UNPROTECTED)
        return True

    def extra_headers(self) -> HeaderPairs:
        return ((self.settings.header.lower(), quote_key(self.generated_key)),) if self.generated_key else ()


def scope_from_principal(principal: Any) -> str:
    """The principal as text; empty if there is none. Account ids are often numbers or UUIDs."""
    if isinstance(principal, str):
        return principal
    if isinstance(principal, int | UUID) and not isinstance(principal, bool):
        return str(principal)
    return ""


def _would_run(found: LookupReply) -> bool:
    record = found.record
    return record is None or record.state is State.RELEASED or record.expired(found.now)


def _check_same_owner(record: Record, task: Task) -> None:
    """Raise CorruptRecord unless the stored scope and key are those that the id was derived from (S2). They differ if a
    row was copied to another id."""
    if record.scope != task.key.scope or record.key != task.key.value:
        raise CorruptRecord(record.id, "it is stored under another scope or key than its id says")
