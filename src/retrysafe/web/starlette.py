"""Starlette: a decorator under your authentication, answers of operations, and problems for our errors.

    app = Starlette(routes=[...], middleware=[Middleware(IdempotencyMiddleware, safe=safe)])

    @requires("authenticated")
    @idempotent(scope=lambda request: request.user.account_id)
    async def pay(request: Request) -> Response: ...

The decorators outside it run first: who is refused there never meets a key. FastAPI has more (retrysafe.web.fastapi).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route, Router

from retrysafe.core.keys import Key
from retrysafe.errors import RetrySafeError
from retrysafe.policy import Policy
from retrysafe.web import asgi, asgi_adapter
from retrysafe.web.asgi import ASGIScope
from retrysafe.web.asgi_adapter import (
    OperationAnswer,
    await_if_needed,
    check_strength,
    claim_or_identify,
    find_exchange,
)
from retrysafe.web.asgi_answer import encode_headers
from retrysafe.web.endpoint_entry import ENTERED, REDIRECTED, REFUSED, UNKNOWN, EndpointEntry, EntryProbe
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.openapi import Strength
from retrysafe.web.response_ready import ResponseReady
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.transaction_io import (
    AsyncRequestTransactionBase,
    TransactionRequest,
    aclaim_in_transaction,
    add_handle,
    check_tx,
)

Handler = Callable[..., Any]
FIX = "app.add_middleware(IdempotencyMiddleware, safe=safe)"


class IdempotencyMiddleware(asgi.IdempotencyMiddleware):
    """The ASGI middleware, which besides sees what the router made of a request."""

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        return functools.partial(entry_of, OuterRoute.from_scope(scope), scope)


class OuterRoute(NamedTuple):
    """What a router further out had written into the scope before: an application may be mounted in another."""

    router: Any
    endpoint: Any
    route: Any

    @classmethod
    def from_scope(cls, scope: ASGIScope) -> OuterRoute:
        return cls(scope.get("router"), scope.get("endpoint"), scope.get("route"))


def entry_of(before: OuterRoute, scope: ASGIScope, code: int) -> EndpointEntry:
    """What the router wrote into this very scope. Nothing, where middleware answered before it or gave it a copy: then
    nobody knows."""
    endpoint, route = scope.get("endpoint"), scope.get("route")
    matched = endpoint is not before.endpoint
    last = _router_of(endpoint) if matched else None if before.router is not None else scope.get("router")
    if last is not None:  # none of its routes matched
        plain = last.default == last.not_found and not isinstance(route, Route)
        return UNKNOWN if not plain else REDIRECTED if code < 400 else REFUSED
    if not matched:
        return UNKNOWN
    wrong_method = isinstance(route, Route) and route.methods and scope["method"] not in route.methods
    return REFUSED if wrong_method and route is not before.route else ENTERED


def _router_of(endpoint: Any) -> Router | None:
    """The router of what is mounted there, if there is nothing between that might give it a copy of the scope."""
    if isinstance(endpoint, Starlette):
        return None if endpoint.user_middleware else endpoint.router
    if isinstance(endpoint, Router) and getattr(endpoint, "middleware_stack", endpoint.app) == endpoint.app:
        return endpoint
    return None


class Refusal(ResponseReady, HTTPException):
    """The handler must not run; the middleware sends the answer. An HTTPException, so that nobody reports an error."""

    def __init__(self, exchange: AsyncExchange) -> None:
        assert exchange.response is not None, "a shortcut leaves its answer in the exchange"
        HTTPException.__init__(self, exchange.response.status, "answered by the idempotency middleware")


async def claim(
    request: Request,
    principal: Any,
    policy: Policy | None = None,
    *,
    strength: Strength = "guard",
    refusal: type[Refusal] = Refusal,
) -> Key | None:
    """Claim this request's key for the principal. None: it runs unprotected, as its mode allows, or is a GET."""
    exchange = find_exchange(request.scope, FIX)
    if exchange is None:
        return None
    try:
        return await claim_or_identify(exchange, principal, policy, target_of(request), strength)
    except ResponseReady as stop:
        raise refusal(exchange) from stop


async def claim_in_transaction(
    request: Request,
    principal: Any,
    policy: Policy | None = None,
    *,
    tx: Any = None,
    handler: Any = None,
    refusal: type[Refusal] = Refusal,
) -> AsyncRequestTransactionBase | None:
    """Claim this request's key by opening a transaction, which commits with the answer. None: it is a GET."""
    exchange = find_exchange(request.scope, FIX)
    if exchange is None:
        return None
    try:
        return await aclaim_in_transaction(
            exchange, principal, TransactionRequest(policy, target_of(request), tx), handler or _handler_of(request)
        )
    except ResponseReady as stop:
        raise refusal(exchange) from stop


def _handler_of(request: Request) -> Any:
    """What will use the transaction; where nobody says, something `async`, as this is."""
    return request.scope.get("endpoint") or claim_in_transaction


def target_of(request: Request) -> str:
    """`POST /orders/{id}`: the route and not the address, so that there are few of them."""
    scope = request.scope
    # FastAPI keeps the path with the prefixes of included routers beside the route; older ones put it into the route.
    route = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
    mounted = scope.get("root_path", "").removeprefix(scope.get("app_root_path", ""))
    path = getattr(route, "path", None) or _endpoint_name(scope)
    return f"{request.method.upper()} {mounted}{path}"


def _endpoint_name(scope: Any) -> str:
    """Older Starlettes do not tell the route; the handler's name is as good."""
    endpoint = scope.get("endpoint")
    return f"[{getattr(endpoint, '__qualname__', type(endpoint).__name__)}]"


def idempotent(
    scope: Callable[[Request], Any], policy: Policy | None = None, *, strength: Strength = "guard", tx: Any = None
) -> Callable[[Handler], Handler]:
    """Protect a handler. `scope(request)` says whose key it is, and may be `async`. See `request.state.key`.

    `strength="transaction"`: the handler's argument `tx` is the connection or session of a transaction that commits
    with the answer; `tx=` says where it comes from, unless `RetrySafe(tx=…)` does.
    """
    check_strength(strength)
    check_tx(strength, tx)

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def protected(*args: Any, **kwargs: Any) -> Any:
            request = next(one for one in (*args, *kwargs.values()) if isinstance(one, Request))
            principal = await await_if_needed(scope(request))
            if strength == "transaction":
                joined = await claim_in_transaction(request, principal, policy, tx=tx, handler=handler)
                request.state.key = joined.flows.task.key if joined is not None else None
                return respond_if_answer(await _call_in_transaction(joined, request, handler, args, kwargs))
            request.state.key = await claim(request, principal, policy, strength=strength)
            return respond_if_answer(await _call_handler(handler, args, kwargs))

        return protected

    return decorate


async def _call_handler(handler: Handler, args: Any, kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(handler):
        return await handler(*args, **kwargs)
    return await run_in_threadpool(handler, *args, **kwargs)


async def _call_in_transaction(
    joined: AsyncRequestTransactionBase | None, request: Request, handler: Handler, args: Any, kwargs: Any
) -> Any:
    """Call a handler in its transaction."""
    if joined is None:
        return await _call_handler(handler, args, add_handle(handler, kwargs, None))
    if not inspect.iscoroutinefunction(handler):
        await request.body()  # a plain handler cannot
    try:
        return await joined.run_handler(
            lambda handle: _call_handler(handler, args, add_handle(handler, kwargs, handle))
        )
    except ResponseReady as stop:
        exchange = find_exchange(request.scope, FIX)
        assert exchange is not None, "it was joined"
        raise Refusal(exchange) from stop


# Answers ----------------------------------------------------------------------------------------


def respond(answer: OperationAnswer) -> Response:
    """An operation's answer as a response: its status, headers and bytes. An `Ended` also says if it is a replay,
    and `Accepted` is a 202."""
    return _to_starlette_response(asgi_adapter.response_for_answer(answer))


def respond_if_answer(result: Any) -> Any:
    return respond(result) if isinstance(result, OperationAnswer) else result


def add_problem_handlers(app: Starlette) -> None:
    """Answer our errors (in progress, mismatch, not finished …) with their problems, where a handler raises them."""
    app.add_exception_handler(RetrySafeError, _respond_problem)
    app.add_exception_handler(Refusal, _respond_status_only)


async def _respond_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, RetrySafeError), "registered for these"
    return _to_starlette_response(asgi_adapter.response_for_error(error, request.scope.get(EXCHANGE)))


async def _respond_status_only(request: Request, error: Exception) -> Response:
    """What the framework sees of a replay or refusal: its status. The bytes are the middleware's."""
    return Response(status_code=getattr(error, "status_code", 500))


def _to_starlette_response(told: Any) -> Response:
    response = Response(told.body, told.status)
    response.raw_headers = encode_headers(
        told.headers
    )  # ours exactly: several of one name, and no content type of Starlette's
    return response


__all__ = [
    "IdempotencyMiddleware",
    "Refusal",
    "add_problem_handlers",
    "claim",
    "idempotent",
    "respond",
]
