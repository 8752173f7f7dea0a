"""Litestar: the claim as a guard behind your authentication guards, and the OpenAPI document that says so.

    @post("/payments", guards=[signed_in, idempotent(scope=lambda request: request.user.account_id)])
    async def pay(data: Order) -> Payment: ...

    app = Litestar([pay])
    install(app, safe=safe)

Guards run in order, from the application's to the handler's: who is refused by an earlier one never meets a key. A
guard and not a dependency, because Litestar leaves out a dependency that no handler names, and with it the protection.
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
from retrysafe.web.openapi import PROBLEM_SCHEMA, Json, ProtectionSpec, Strength
from retrysafe.web.response_ready import ResponseReady
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
FIX = "call retrysafe.web.litestar.install(app, safe=safe) after making the application"


class Refusal(ResponseReady, HTTPException):
    """The handler must not run; the middleware sends the answer. An HTTPException, so that nobody reports an error."""

    def __init__(self, exchange: AsyncExchange) -> None:
        assert exchange.response is not None, "a shortcut leaves its answer in the exchange"
        told = "answered by the idempotency middleware"
        HTTPException.__init__(self, detail=told, status_code=exchange.response.status)


class IdempotentGuard:
    """The guard. It lets a request through whose key it has claimed."""

    def __init__(self, scope: Callable[[Any], Any], policy: Policy | None, strength: Strength, tx: Any = None) -> None:
        check_strength(strength)
        check_tx(strength, tx)
        if not callable(scope):
            raise UsageError(f"scope={scope!r}: give a callable that takes the request and returns whose it is")
        self.scope = scope
        self.policy = policy
        self.strength = strength
        self.tx = tx

    async def __call__(self, connection: Connection, route_handler: BaseRouteHandler) -> None:
        exchange = find_exchange(connection.scope, FIX)
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

    scope     `callable(request)`, may be `async`: the authenticated account or tenant, str, int or UUID
    policy    what this route gets instead of the middleware's policy
    strength  "operation" where an operation claims the key itself; "transaction" where the answer commits with the
              handler's own transaction, which it gets by `dependencies={"tx": provide_tx}`
    tx        where that transaction comes from, unless `RetrySafe(tx=…)` says so
    """
    return IdempotentGuard(scope, policy, strength, tx)


def current_key(request: AnyRequest) -> Any:
    """The key of this request, or None. As a dependency: `dependencies={"key": provide_key}`."""
    exchange: AsyncExchange | None = request.scope.get(EXCHANGE)  # type: ignore[assignment]  # a key of our own
    key: Key | None = exchange.key if exchange is not None else None
    return key


provide_key = Provide(current_key, sync_to_thread=False)


async def current_tx(request: AnyRequest) -> AsyncGenerator[Any, None]:
    """The connection or session of this request's transaction. A handler that raises is rolled back here."""
    exchange: AsyncExchange | None = request.scope.get(EXCHANGE)  # type: ignore[assignment]  # a key of our own
    joined = exchange.transaction if exchange is not None else None
    if exchange is None or not isinstance(joined, AsyncRequestTransactionBase):
        yield None
        return
    async with joined.hand_over_handle(lambda: Refusal(exchange)) as handle:
        yield handle


provide_tx = Provide(current_tx)


class IdempotencyMiddleware(asgi.IdempotencyMiddleware):
    """The ASGI middleware, which besides knows where Litestar keeps what it made of a request: the parsed body, that an
    answer has begun. A request that runs again begins without."""

    state_keys_to_drop = (CONNECTION_STATE_KEY,)

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        return None if "path_params" in scope else functools.partial(entry_of, scope)


def entry_of(scope: ASGIScope, code: int) -> EndpointEntry:
    """Asked only where the mark on the handler has not been passed. The router begins by making room for parameters: if
    it has, it was given this very scope."""
    handler = scope.get("route_handler")
    if handler is None:
        return REFUSED if "path_params" in scope else UNKNOWN
    if not isinstance(handler, HTTPRouteHandler) or not is_marked(handler.fn):
        return UNKNOWN
    # These answer in the handler's place, and may have done its work.
    return UNKNOWN if handler.resolve_before_request() is not None or handler.cache else REFUSED


def install(app: Litestar, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]) -> None:
    """The middleware around the whole application, problems for our errors, and the OpenAPI document. Call it once,
    when all routes are registered."""
    outer: Any = app.asgi_handler
    # Inside CORS: whose page may read a replay is decided for each request, and not kept with the answer.
    inside_cors = app.cors_config is not None and hasattr(outer, "app")
    made = IdempotencyMiddleware(outer.app if inside_cors else outer, safe=safe, scope=scope, **options)
    if inside_cors:
        outer.app = made
    else:
        app.asgi_handler = made  # type: ignore[assignment]  # ASGI in Litestar's own types
    app.exception_handlers.setdefault(RetrySafeError, _respond_problem)
    for route in app.routes:
        for handler in getattr(route, "route_handlers", ()):
            _document_handler(handler, made.settings)
            if isinstance(handler, HTTPRouteHandler) and handler.http_methods & made.settings.methods:
                handler._fn = mark_endpoint(handler.fn)


# Answers ----------------------------------------------------------------------------------------


class AnswerResponse(Response[bytes]):
    """A whole answer, as it is."""

    def __init__(self, told: Any) -> None:
        super().__init__(told.body, status_code=told.status)
        self.told = told

    def to_asgi_response(self, *args: Any, **kwargs: Any) -> ASGIResponse:
        return ASGIResponse(body=self.told.body, status_code=self.told.status, headers=self.told.headers)


def respond(answer: OperationAnswer) -> AnswerResponse:
    """An operation's answer as a response: its status, headers and bytes. An `Ended` also says if it is a replay,
    and `Accepted` is a 202."""
    return AnswerResponse(asgi_adapter.response_for_answer(answer))


def _respond_problem(request: AnyRequest, error: RetrySafeError) -> Response[bytes]:
    exchange: Any = request.scope.get(EXCHANGE)
    return AnswerResponse(asgi_adapter.response_for_error(error, exchange))


# OpenAPI ----------------------------------------------------------------------------------------


def _document_handler(handler: HTTPRouteHandler, settings: Settings) -> None:
    guard = next((one for one in handler.resolve_guards() if isinstance(one, IdempotentGuard)), None)
    if guard is None or not handler.http_methods & settings.methods:
        return
    how = ProtectionSpec(
        guard.policy or settings.policy,
        guard.strength,
        settings.codes,
        settings.header,
        settings.key_rule,
    )
    handler.operation_class = _build_operation_class(handler.operation_class, how)


def _build_operation_class(base: type[Operation], how: ProtectionSpec) -> type[Operation]:
    def to_schema(self: Operation) -> Json:
        told = base.to_schema(self)
        openapi.describe_operation(told, how, PROBLEM_SCHEMA)
        return told

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
