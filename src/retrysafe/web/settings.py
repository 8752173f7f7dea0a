"""Every option of a middleware. They are checked at start, so that a wrong one is not found in production."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TypedDict

from retrysafe.engine.problem_documents import DOCS_URL
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.policy import Policy
from retrysafe.web.capture import DROPPED, NEVER_STORED, DroppedHeaders
from retrysafe.web.key_header import DEFAULT_HEADER, KeyRule
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.problems import Codes
from retrysafe.web.routes import PROTECTED_METHODS, RouteFingerprint, RouteOption, RouteTable
from retrysafe.web.traffic import Quota, Quotas, RouteDurations, Waiters
from retrysafe.web.view import RequestView

Scope = Callable[[RequestView], str | Awaitable[str | None] | None]
"""Returns the principal: the authenticated tenant or account. Never a header that the client chooses, never an IP."""

STATUS_PATH = "/.well-known/retrysafe/status"


class Options(TypedDict, total=False):
    """The options of both middlewares besides `safe` and `scope`.

    policy        the policy of every protected request whose route has none of its own
    routes        `{"POST /orders/{id}/pay": Policy(...)}`; None leaves a route unprotected
    methods       which methods are protected: POST, PUT, PATCH, DELETE
    header        the name of the key's header
    key_rule      rules for keys beyond the grammar: a minimum length, UUIDs only
    fingerprint   `callable(view, body)`: what counts as the same request (also per route)
    codes         the statuses of our own answers
    dropped       response headers that are not stored (capture.DROPPED)
    never_stored  statuses that are about the attempt and not about the request (capture.NEVER_STORED)
    read_timeout  seconds that a request body may take to arrive, before the claim; 30
    grace         seconds that the work of a cancelled request may go on (server shutdown); 10
    waiters       how many requests of this process may wait under `busy="wait"`; 100, shared among scopes
    quota         what one scope may use
    status_path   where the status of `busy="accepted"` is served
    status_scope  the principal of a request there; `scope` unless given
    docs          the address that our problems link to
    census        where the use of keys is counted (web/key_usage.py); one is made unless given
    """

    policy: Policy | None
    routes: Mapping[str, RouteOption]
    methods: Iterable[str]
    header: str
    key_rule: KeyRule
    fingerprint: RouteFingerprint | None
    codes: Codes
    dropped: Iterable[str]
    never_stored: Iterable[int]
    read_timeout: float
    grace: float
    waiters: int
    quota: Quota | None
    status_path: str
    status_scope: Scope | None
    docs: str
    census: KeyUsageStats


class Settings:
    """The checked options and the statistics of one middleware."""

    def __init__(self, safe: RetrySafe, scope: Scope | None, options: Options) -> None:
        unknown = set(options) - set(Options.__annotations__)
        if unknown:
            raise UsageError(
                f"IdempotencyMiddleware has no option {sorted(unknown)}; see retrysafe.web.settings.Options"
            )
        if not isinstance(safe, RetrySafe):
            raise UsageError(f"safe={safe!r}: give the RetrySafe object of the application")
        if scope is not None and not callable(scope):
            raise UsageError(f"scope={scope!r}: give a callable that takes the request and returns the principal")
        self.safe = safe
        self.scope = scope
        self.policy = options.get("policy") or safe.policy or Policy()
        methods = frozenset(method.upper() for method in options.get("methods", PROTECTED_METHODS))
        self.routes = RouteTable(self.policy, options.get("routes", {}), methods, options.get("fingerprint"))
        self.methods = self.routes.methods
        self.header = options.get("header", DEFAULT_HEADER)
        self.header_bytes = self.header.lower().encode("ascii")
        self.header_environ = "HTTP_" + self.header.upper().replace("-", "_")
        self.key_rule = options.get("key_rule", KeyRule())
        self.codes = options.get("codes", Codes())
        self.dropped = DroppedHeaders(options.get("dropped", DROPPED))
        self.never_stored = frozenset(options.get("never_stored", NEVER_STORED))
        self.read_timeout = _check_positive("read_timeout", options.get("read_timeout", 30.0))
        self.grace = _check_positive("grace", options.get("grace", 10.0))
        self.status_path = options.get("status_path", STATUS_PATH).rstrip("/")
        self.status_scope = options.get("status_scope") or scope
        self.docs = options.get("docs", DOCS_URL)
        self.max_body = max(policy.max_body for policy in self.routes.list_policies())
        self.durations = RouteDurations()
        self.waiters = Waiters(options.get("waiters", 100))
        self.quotas = Quotas(options.get("quota"))
        self.census = options.get("census") or KeyUsageStats()
        self.census.report_to(safe.figures)
        self.events = safe.events
        accepted = any(policy.busy == "accepted" for policy in self.routes.list_policies())
        self.warned_targets: set[str] = set()
        """Routes that answer 202 without a status URL, and were logged."""
        self.serves_status = accepted or "status_scope" in options or "status_path" in options
        if self.serves_status and self.status_scope is None:
            raise UsageError(
                "busy='accepted' serves a status URL, which needs the principal: pass scope= or status_scope="
            )


def _check_positive(name: str, value: float) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or value <= 0:
        raise UsageError(f"{name}={value!r}: give seconds, more than zero")
    return float(value)
