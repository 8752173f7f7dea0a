"""One request, from its claim to its settlement.

The middleware makes an exchange for each request it protects. The claim happens where the principal is known: at the
edge, when the middleware was given `scope`, or later, when the route asks (`claim(principal)`). A claim that may not
run leaves the answer to send in `response` and raises `ResponseReady`; whatever the application says then is discarded.

Everything that decides is here, once, as flows; the two colours in colours.py only drive them.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any, NamedTuple, Self
from uuid import UUID

from retrysafe.core.keys import Key
from retrysafe.core.ops import Lookup, LookupReply
from retrysafe.core.outcomes import Busy, Execute, Outcome, Replay
from retrysafe.core.records import Answer, Gone, Record
from retrysafe.core.states import State
from retrysafe.engine.effects import Flow
from retrysafe.engine.guard import (
    Task,
    refusal_error,
    settle_abandoned,
    settle_complete,
    settle_released,
    settle_withdrawn,
)
from retrysafe.engine.heartbeat import Lease, StopCallback
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
from retrysafe.web.error_text import describe_error
from retrysafe.web.fingerprints import fingerprint_request
from retrysafe.web.key_header import generate_key, quote_key, read_key
from retrysafe.web.key_usage import UsageKind
from retrysafe.web.paths import sanitize_target
from retrysafe.web.problems import Problem
from retrysafe.web.response_ready import ResponseReady
from retrysafe.web.routes import Route
from retrysafe.web.settings import Settings
from retrysafe.web.view import RequestView

EXCHANGE = "retrysafe.exchange"
"""Where the exchange is found: `scope[EXCHANGE]` on ASGI, `environ[EXCHANGE]` on WSGI."""

_log = logging.getLogger("retrysafe.web")

DRAIN_LIMIT_BYTES = 8 * 1024 * 1024
"""How many bytes of a refused body are still read. A connection that is closed on a client which is still sending
breaks, and the client never sees why."""


class BodyRefused(Exception):
    """The request body is too large, too slow or broken."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.title)
        self.problem = problem


class GrantedClaim(NamedTuple):
    """What a granted claim holds."""

    task: Task
    lease: Lease
    record: Record
    began: float


class Exchange:
    """What both colours share: who asks, with which key, for what; and what that means."""

    failed_with: BaseException | None = None
    """What the application's handler raised, where that matters: a transaction of it is not committed (joining.py)."""

    rolled_back = False
    """Whether the database undid the work because of others, so that the whole request is to run again. The answer in
    `response` is then for nobody."""

    def __init__(
        self, settings: Settings, view: RequestView, route: Route, lines: Sequence[str], reruns: int = 0
    ) -> None:
        self.settings = settings
        self.view = view
        self.route = route
        self.policy = route.policy
        self.target = route.target
        self.response: Response | None = None
        """The answer to send instead of the application's; None while it may speak for itself."""
        self.scope = ""
        self.key: Key | None = None
        self.grant: GrantedClaim | None = None
        self.asked = False
        """Whether anybody asked for a claim, granted or not."""
        self.started = False
        """Whether an answer has begun to go out."""
        self.untouched = False
        """Whether the middleware lets this request through without capturing it (keyless, `optional`)."""
        self.endpoint_entry: EndpointEntry | None = None
        """Whether an endpoint was entered, once an adapter has noted it."""
        self.entry_probe: EntryProbe | None = None
        """Who knows it otherwise, when the answer is there."""
        self.generated_key = ""
        self.key_lines = lines
        self.reruns = reruns
        """How often this request has run before, for nothing."""
        self.observed: Lease | None = None
        self._withdraws = False
        self._stops: tuple[StopCallback, ...] = ()

    @property
    def claimed(self) -> bool:
        """Whether the work is ours and not settled yet."""
        return self.grant is not None

    @property
    def record(self) -> Record | None:
        """The record of the claim while it is held."""
        return self.grant.record if self.grant is not None else None

    def for_retry(self) -> Self:
        """The same request from the beginning, with the same key: what takes the place of a run that was undone."""
        made = type(self)(self.settings, self.view, self.route, self.key_lines, self.reruns + 1)
        made.generated_key = self.generated_key
        return made

    def hand_over(self) -> GrantedClaim:
        """Give the claim to somebody who settles it himself (an operation); its answer then only passes by."""
        held, self.grant = self.grant, None
        if held is None:
            raise UsageError("there is no claim to hand over: await exchange.claim(principal) first")
        self._run_stops()
        self.settings.quotas.record_end(held.task.key.scope, 0, self.policy.retention)
        return held

    # Before the claim ---------------------------------------------------------------------------

    def begin(self, policy: Policy | None, target: str | None) -> Policy:
        self.policy, self.target = policy or self.policy, sanitize_target(target) if target else self.target
        if self.asked:
            raise UsageError(f"{self.target} asks for its claim twice; one request has one key and one claim")
        if self.started:
            raise UsageError(f"{self.target} asks for its claim after its answer has begun; ask before the work")
        if self.untouched and self.policy.mode != "optional":
            raise UsageError(
                f"{self.target} asks with mode={self.policy.mode!r}, but the middleware lets requests without a key "
                "through under its own mode='optional'; give the middleware the same mode, or name the route in routes="
            )
        self.asked = True
        return self.policy

    def _read_key_value(self, policy: Policy, scope: str) -> str | None:
        """The key, or None where there need not be one. Counts who sends what, once for each request."""
        if self.generated_key:
            return self.generated_key
        try:
            key = read_key(self.key_lines, self.settings.key_rule)
            if key is None and policy.mode == "required":
                raise MissingKey
        except KeyProblem as error:
            self.count_usage("missing" if isinstance(error, MissingKey) else "malformed", scope)
            raise self.refusal_error(error) from None
        if key is None and policy.mode == "generate":
            key = self.generated_key = generate_key()
            if self.count_usage("generated", scope):
                _log.warning(
                    "%s: a client sends no Idempotency-Key; one was minted, which protects nothing", self.target
                )
            return key
        self.count_usage("missing" if key is None else "keyed", scope)
        return key

    def count_usage(self, sent: UsageKind, scope: str) -> bool:
        return not self.reruns and self.settings.census.count(self.target, scope, sent)

    def read_key(self, scope: str, policy: Policy) -> Key | None:
        self.scope = scope
        value = self._read_key_value(policy, scope)
        if value is None:
            return None
        try:
            self.key = Key(value, scope)
        except (ScopeRequired, KeyProblem) as error:
            raise self.refusal_error(error if isinstance(error, ScopeRequired) else ScopeRequired(scope)) from None
        return self.key

    def build_task(self, key: Key, policy: Policy, chunks: list[bytes]) -> Task:
        form = fingerprint_request(self.view, self.route, chunks)
        object.__setattr__(key, "request", form)  # an operation that is given the key is compared by it
        return self.settings.safe.build_task(key, self.target, form, policy)

    # The claim ----------------------------------------------------------------------------------

    def claim_flow(self, task: Task) -> Flow[GrantedClaim]:
        """Claim it, or raise ResponseReady with the answer in place."""
        try:
            return (yield from self._claim_or_refuse(task))
        except (StoreError, RetrySafeError) as error:
            raise self.refusal_error(error) from error

    def _claim_or_refuse(self, task: Task) -> Flow[GrantedClaim]:
        settings, events, claim = self.settings, self.settings.safe.events, task.build_claim()
        if settings.quotas.is_exceeded(task.key.scope, task.policy.retention):
            found: LookupReply = yield Lookup(claim.id)
            if _would_run(found):
                raise self.refusal_error(problems.QUOTA, retry_after=self._retry_after())
        taking = claim_interruptibly(claim, task, events)
        if task.policy.busy == "wait":
            taking = limit_waiters(taking, settings.waiters, task, claim.id, events)
        outcome: Outcome = yield from taking
        if isinstance(outcome, Execute):
            _check_same_owner(outcome.record, task)
            events.emit("new", claim.id, task.target)
            lease = Lease(claim.id, task.key.value, outcome.fence, outcome.until)
            return GrantedClaim(task, lease, outcome.record, time.monotonic())
        if isinstance(outcome, Replay):
            _check_same_owner(outcome.record, task)
            answer = outcome.record.answer
            if answer is not None and answer.gone:
                raise self.refusal_error(problems.GONE)
            replay = build_replay(outcome.record)
            events.emit("replayed", claim.id, task.target)
            raise self.refusal_error(replay)
        if isinstance(outcome, Busy) and task.policy.busy == "accepted":
            known: LookupReply = yield Lookup(claim.id)
            if known.record is not None:
                raise self.refusal_error(
                    status.accepted_response(settings, mount_path(self.view), known.record, task.target)
                )
        raise self.refusal_error(refusal_error(task, outcome))

    def refusal_error(
        self, why: RetrySafeError | Problem | Response, *, retry_after: int | None = None
    ) -> ResponseReady:
        """Put the answer in place; raise what this returns."""
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
        """For the operator. The record is named by its id: its key and its scope are the client's (S28)."""
        record = self.key.id(self.settings.safe.namespace).hex() if self.key is not None else "none"
        _log.error("%s: %s (record %s)", self.target, self.describe_error(error), record)

    def describe_error(self, error: BaseException) -> str:
        return describe_error(error, self.scope, self.key.value if self.key is not None else "")

    def _retry_after(self) -> int:
        return self.settings.durations.retry_after(self.target, self.policy.lease)

    def _build_response(self, problem: Problem, retry_after: int | None = None) -> Response:
        return problems.build_problem_response(
            problem, self.settings.codes, self.settings.docs, retry_after=retry_after
        )

    def record_grant(self, held: GrantedClaim, *stops: StopCallback) -> Key:
        """Ours now; `stops` end the heartbeat, and what else lasts until it is settled."""
        self.grant = held
        self._stops = stops
        fresh = held.record.attempt == 1 and not self.reruns
        self.settings.quotas.record_start(held.task.key.scope, fresh, held.task.policy.retention)
        return held.task.key

    # Settlement ---------------------------------------------------------------------------------

    def is_storable(self, code: int, error: BaseException | None = None) -> bool:
        """Whether this ending is final. A rule of the user's that fails counts as "yes": once is what was promised."""
        if error is None and (self._is_framework_refusal(code) or code in self.settings.never_stored):
            return False
        try:
            return self.policy.final(code, error)
        except Exception:
            _log.exception("%s: failures= raised; the answer is stored", self.target)
            return True

    def _is_framework_refusal(self, code: int) -> bool:
        """Whether this is the framework's own refusal, for which the claim is withdrawn. What went well was entered,
        whatever anybody thinks he knows."""
        entry = UNKNOWN
        if code >= 300:
            try:
                entry = self.endpoint_entry or (self.entry_probe(code) if self.entry_probe is not None else UNKNOWN)
            except Exception:
                _log.exception("%s: whether an endpoint was entered could not be found out", self.target)
        self._withdraws = should_withdraw(self.policy, entry.entered, entry.redirected)
        return self._withdraws

    def settle_answered(self, code: int, headers: HeaderPairs, body: bytes) -> Flow[Response | None]:
        """The application gave its whole answer. None: send it. Otherwise: send this instead."""
        if not self.is_storable(code):
            return (yield from self._release_flow(f"it answered {code}"))
        return (yield from self._complete_flow(build_stored_answer(code, headers, body, self.settings.dropped)))

    def settle_tombstone(self, code: int, gone: Gone) -> Flow[Response | None]:
        """Its answer cannot be kept, but it happened: say so before the first byte goes out."""
        return (yield from self._complete_flow(Answer(code, gone=gone)))

    def settle_raised(self, error: BaseException) -> Flow[Response | None]:
        """The application failed without an answer: ours is the answer."""
        self.failed_with = error
        code = self.settings.codes.failed
        if not self.is_storable(code, error):
            yield from self._release_flow(f"it failed with {type(error).__qualname__}")
            return self._build_response(problems.FAILED_FOR_NOW)
        told = self._build_response(problems.FAILED)
        instead = yield from self._complete_flow(
            build_stored_answer(code, told.headers, told.body, self.settings.dropped)
        )
        return instead or told

    def settle_stopped(self, error: BaseException) -> Flow[Response | None]:
        """Cancelled, or the process is ending: nobody knows how far it got."""
        held = self._require_grant()
        try:
            yield from settle_abandoned(held.task, held.lease, error, self.settings.safe.events)
        except StoreError as trouble:
            self._log_unsettled(held, trouble)
        finally:
            self._end_claim(0)
        return None

    def release_flow(self) -> Flow[Response | None]:
        """An answer that is not final has passed by."""
        return (yield from self._release_flow("its answer was not final"))

    def release_unstarted(self) -> Flow[Response | None]:
        """The application was not called: whoever asks next may run it. Refused where somebody else has it by now."""
        return (yield from self._release_flow("it did not begin before its lease was over"))

    def _release_flow(self, note: str) -> Flow[Response | None]:
        held = self._require_grant()
        give_back = settle_withdrawn if self._withdraws else settle_released
        try:
            yield from give_back(held.task, held.lease, note, self.settings.safe.events)
        except StoreError as trouble:
            self._log_unsettled(held, trouble)  # the lease lapses by itself
        finally:
            self._end_claim(0)
        return None

    def _complete_flow(self, answer: Answer) -> Flow[Response | None]:
        held, stored = self._require_grant(), 0
        try:
            yield from settle_complete(held.task, held.lease, answer, self.settings.safe.events)
            stored = len(answer.body)
        except LeaseLost:
            return self._build_response(problems.LOST)
        except OutcomeUnrecorded as trouble:
            # An answer that is not stored must not be sent: the retry could get another one.
            said = self.describe_error(trouble.__cause__ or trouble)
            _log.error("%s: how it ended could not be written down: %s", self.target, said)
            return self._build_response(problems.UNRECORDED, self._retry_after())
        finally:
            self._end_claim(stored)
        return None

    def _require_grant(self) -> GrantedClaim:
        assert self.grant is not None, "only a claimed exchange is settled"
        return self.grant

    def _end_claim(self, size: int) -> None:
        """The claim is over, whatever became of it."""
        held, self.grant = self._require_grant(), None
        self._run_stops()
        if not self._withdraws:
            self.settings.durations.observe(self.target, time.monotonic() - held.began)
        unborn = self._withdraws and held.record.attempt == 1 and not self.reruns
        self.settings.quotas.record_end(held.task.key.scope, size, held.task.policy.retention, withdrawn_new=unborn)

    def _run_stops(self) -> None:
        stops, self._stops = self._stops, ()
        for stop in stops:
            stop()

    def _log_unsettled(self, held: GrantedClaim, trouble: StoreError) -> None:
        self.settings.safe.events.emit("store_failed", held.lease.id, self.target)
        _log.error("%s: how it ended could not be written down: %s", self.target, self.describe_error(trouble))

    # An answer that passes by -------------------------------------------------------------------

    def refuse_if_unprotected(self, code: int) -> bool:
        """Whether a route that must claim has answered without. Sets the answer to send instead."""
        if self.asked or code >= 400:
            return False
        if not self.route.listed or self.policy.mode != "required":
            if self.key_lines and self.count_usage("unclaimed", ""):
                _log.warning(
                    "%s was sent an Idempotency-Key, but nothing there asks for it: not protected", self.target
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
    """The principal as text; empty if there is none. Numbers and UUIDs are what account ids often are."""
    if isinstance(principal, str):
        return principal
    if isinstance(principal, int | UUID) and not isinstance(principal, bool):
        return str(principal)
    return ""


def mount_path(view: RequestView) -> str:
    """Where the application hangs below the server's root."""
    path: str = view.raw.get("root_path") or view.raw.get("SCRIPT_NAME") or ""
    return path


def _would_run(found: LookupReply) -> bool:
    record = found.record
    return record is None or record.state is State.RELEASED or record.expired(found.now)


def _check_same_owner(record: Record, task: Task) -> None:
    """The id says whose it is; the stored text must agree, or somebody moved a row (S2)."""
    if record.scope != task.key.scope or record.key != task.key.value:
        raise CorruptRecord(record.id, "it is stored under another scope or key than its id says")
