"""Litestar: a guard that claims the key after your authentication guards, and the OpenAPI description of it.

    @post("/payments", guards=[signed_in, idempotent(scope=lambda request: request.user.account_id)])
    async def pay(data: Order) -> Payment: ...

    app = Litestar([pay])
    install(app, safe=safe)

Guards run in order, from the application's to the handler's: a request that an earlier guard refuses claims no key. It
is a guard and not a dependency, because Litestar does not run a dependency that no handler names as an argument.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from typing import Any, Unpack

from litestar import Litestar, Request, Response
from litestar.connection import ASGIConnection
from litestar.di import Provide
from litestar.exceptions import HTTPException
from litestar.handlers import BaseRouteHandler
from litestar.handlers.http_handlers import HTTPRouteHandler
from litestar.openapi.spec import Operation
from litestar.response.base import ASGIResponse
from litestar.utils.scope.state import CONNECTION_STATE_KEY

from retrysafe.core.keys import Key
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import RetrySafeError, UsageError
from retrysafe.policy import Policy
from retrysafe.web import asgi, asgi_adapter, openapi
from retrysafe.web.accepted_routes import is_accepting, mark_accepting, warn_without_status
from retrysafe.web.asgi import ASGIScope
from retrysafe.web.asgi_adapter import (
    OperationAnswer,
    await_if_needed,
    check_strength,
    claim_or_identify,
    find_exchange,
)
from retrysafe.web.endpoint_entry import REFUSED, UNKNOWN, EndpointEntry, EntryProbe, is_marked, mark_endpoint
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.openapi import PROBLEM_SCHEMA, Json, ProtectionSpec, Strength
from retrysafe.web.settings import Options, Scope, Settings
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.transaction_io import (
    AsyncRequestTransactionBase,
    TransactionRequest,
    aclaim_in_transaction,
    check_tx,
)

Connection = ASGIConnection[Any, Any, Any, Any]
AnyRequest = Request[Any, Any, Any]
INSTALL_HINT = "call retrysafe.web.litestar.install(app, safe=safe) after making the application"


class Refusal(ResponseReady, HTTPException):
    """The handler must not run; the middleware sends the answer. An HTTPException is not reported as an error."""

    def __init__(self, exchange: AsyncExchange) -> None:
        assert exchange.response is not None, "a refusal leaves its answer in the exchange"
        detail = "answered by the idempotency middleware"
        HTTPException.__init__(self, detail=detail, status_code=exchange.response.status)


class IdempotentGuard:
    """The guard that claims the request's key."""

    def __init__(self, scope: Callable[[Any], Any], policy: Policy | None, strength: Strength, tx: Any = None) -> None:
        check_strength(strength)
        check_tx(strength, tx)
        if not callable(scope):
            raise UsageError(f"scope={scope!r}: give a callable that takes the request and returns the principal")
        self.scope = scope
        self.policy = policy
        self.strength = strength
        self.tx = tx
        mark_accepting(self, policy)

    async def __call__(self, connection: Connection, route_handler: BaseRouteHandler) -> None:
        exchange = find_exchange(connection.scope, INSTALL_HINT)
        if exchange is None:
            return
        principal = await await_if_needed(self.scope(connection))
        target = f"{connection.scope['method']} {connection.scope['path_template']}"  # type: ignore[typeddict-item]
        try:
            if self.strength == "transaction":
                await aclaim_in_transaction(
                    exchange, principal, TransactionRequest(self.policy, target, self.tx), route_handler.fn
                )
            else:
                await claim_or_identify(exchange, principal, self.policy, target, self.strength)
        except ResponseReady as stop:
            raise Refusal(exchange) from stop


def idempotent(
    scope: Callable[[Any], Any], policy: Policy | None = None, *, strength: Strength = "guard", tx: Any = None
) -> IdempotentGuard:
    """A guard that claims the request's key. Put it last among the guards.

    scope     `callable(request)`, sync or async: returns the authenticated account or tenant, str, int or UUID
    policy    replaces the middleware's policy for this route
    strength  "operation" where an operation claims the key itself; "transaction" where the answer commits with the
              handler's own transaction, which it gets by `dependencies={"tx": provide_tx}`
    tx        what opens that transaction, unless `RetrySafe(tx=…)` is given
    """
    return IdempotentGuard(scope, policy, strength, tx)


def current_key(request: AnyRequest) -> Any:
    """The key of this request, or None. As a dependency: `dependencies={"key": provide_key}`."""
    exchange: AsyncExchange | None = request.scope.get(EXCHANGE)  # type: ignore[assignment]  # a key of our own
    key: Key | None = exchange.key if exchange is not None else None
    return key


provide_key = Provide(current_key, sync_to_thread=False)


async def current_tx(request: AnyRequest) -> AsyncGenerator[Any, None]:
    """The connection or session of this request's transaction. If the handler raises, it is rolled back here."""
    exchange: AsyncExchange | None = request.scope.get(EXCHANGE)  # type: ignore[assignment]  # a key of our own
    transaction = exchange.transaction if exchange is not None else None
    if exchange is None or not isinstance(transaction, AsyncRequestTransactionBase):
        yield None
        return
    async with transaction.lend_handle(lambda: Refusal(exchange)) as handle:
        yield handle


provide_tx = Provide(current_tx)


class IdempotencyMiddleware(asgi.IdempotencyMiddleware):
    """The ASGI middleware, which also knows where Litestar caches data about a request (the parsed body, that an answer
    has begun). A rerun starts without that data."""

    state_keys_to_drop = (CONNECTION_STATE_KEY,)

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        return None if "path_params" in scope else functools.partial(find_entry, scope)


def find_entry(scope: ASGIScope, code: int) -> EndpointEntry:
    """Called only if no marked handler was called. The router first sets `path_params`: if it is there, the router got
    this very scope."""
    handler = scope.get("route_handler")
    if handler is None:
        return REFUSED if "path_params" in scope else UNKNOWN
    if not isinstance(handler, HTTPRouteHandler) or not is_marked(handler.fn):
        return UNKNOWN
    # A `before_request` hook or a cached response answers instead of the handler, and may have done its work.
    return UNKNOWN if handler.resolve_before_request() is not None or handler.cache else REFUSED


def install(app: Litestar, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]) -> KeyUsageStats:
    """Install the middleware around the whole application, problems for our errors, and the OpenAPI description. Call
    it once, after all routes are registered. Returns the census: who sends keys (docs/howto/rollout.md)."""
    outer: Any = app.asgi_handler
    # Inside CORS: the CORS headers depend on the request's origin, so they must not be stored with the answer.
    inside_cors = app.cors_config is not None and hasattr(outer, "app")
    middleware = IdempotencyMiddleware(outer.app if inside_cors else outer, safe=safe, scope=scope, **options)
    if inside_cors:
        outer.app = middleware
    else:
        app.asgi_handler = middleware  # type: ignore[assignment]  # ASGI in Litestar's own types
    app.exception_handlers.setdefault(RetrySafeError, _respond_problem)
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            _document_handler(handler, middleware.settings)
            if isinstance(handler, HTTPRouteHandler) and handler.http_methods & middleware.settings.methods:
                handler._fn = mark_endpoint(handler.fn)
                if any(is_accepting(guard) for guard in handler.resolve_guards()):
                    methods = sorted(handler.http_methods & middleware.settings.methods)
                    warn_without_status(middleware.settings, [f"{','.join(methods)} {route.path}"])
    return middleware.census


# Answers ----------------------------------------------------------------------------------------


class AnswerResponse(Response[bytes]):
    """A whole answer, sent unchanged."""

    def __init__(self, answer: Any) -> None:
        super().__init__(answer.body, status_code=answer.status)
        self.answer = answer

    def to_asgi_response(self, *args: Any, **kwargs: Any) -> ASGIResponse:
        return ASGIResponse(body=self.answer.body, status_code=self.answer.status, headers=self.answer.headers)


def respond(answer: OperationAnswer) -> AnswerResponse:
    """An operation's answer as a response: its status, headers and bytes. A replayed `Ended` is marked as a replay, and
    `Accepted` becomes a 202."""
    return AnswerResponse(asgi_adapter.response_for_answer(answer))


def _respond_problem(request: AnyRequest, error: RetrySafeError) -> Response[bytes]:
    exchange: Any = request.scope.get(EXCHANGE)
    return AnswerResponse(asgi_adapter.response_for_error(error, exchange))


# OpenAPI ----------------------------------------------------------------------------------------


def _document_handler(handler: HTTPRouteHandler, settings: Settings) -> None:
    guard = next((one for one in handler.resolve_guards() if isinstance(one, IdempotentGuard)), None)
    if guard is None or not handler.http_methods & settings.methods:
        return
    spec = ProtectionSpec(
        guard.policy or settings.policy,
        guard.strength,
        settings.codes,
        settings.header,
        settings.key_rule,
    )
    handler.operation_class = _build_operation_class(handler.operation_class, spec)


def _build_operation_class(base: type[Operation], spec: ProtectionSpec) -> type[Operation]:
    def to_schema(self: Operation) -> Json:
        operation = base.to_schema(self)
        openapi.describe_operation(operation, spec, PROBLEM_SCHEMA)
        return operation

    return type("ProtectedOperation", (base,), {"to_schema": to_schema})


__all__ = [
    "AnswerResponse",
    "IdempotencyMiddleware",
    "Refusal",
    "current_key",
    "current_tx",
    "idempotent",
    "install",
    "provide_key",
    "provide_tx",
    "respond",
]
