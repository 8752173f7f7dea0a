"""Starlette: a decorator below your authentication, responses for operations, and problems for our errors.

    app = Starlette(routes=[...], middleware=[Middleware(IdempotencyMiddleware, safe=safe)])

    @requires("authenticated")
    @idempotent(scope=lambda request: request.user.account_id)
    async def pay(request: Request) -> Response: ...

The decorators above it run first: a request that they refuse claims no key. FastAPI has its own module
(retrysafe.web.fastapi).
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, get_args

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
from retrysafe.web.accepted_routes import is_accepting, mark_accepting
from retrysafe.web.applications import find_routes, list_applications
from retrysafe.web.asgi import ASGIScope
from retrysafe.web.asgi_adapter import (
    OperationAnswer,
    await_if_needed,
    check_strength,
    claim_or_identify,
    find_exchange,
)
from retrysafe.web.asgi_answer import RESPONSE_BODY, RESPONSE_START, encode_headers
from retrysafe.web.endpoint_entry import ENTERED, REDIRECTED, REFUSED, UNKNOWN, EndpointEntry, EntryProbe
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.openapi import Strength
from retrysafe.web.paths import sanitize_target
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.transaction_io import (
    AsyncRequestTransactionBase,
    TransactionRequest,
    aclaim_in_transaction,
    add_handle,
    check_tx,
)

Handler = Callable[..., Any]
ANSWERS = get_args(OperationAnswer)
INSTALL_HINT = "app.add_middleware(IdempotencyMiddleware, safe=safe)"


class IdempotencyMiddleware(asgi.IdempotencyMiddleware):
    """The ASGI middleware, which also sees the router's result. For FastAPI's routes it sees what FastAPI rejects, too;
    the adapter for FastAPI has more."""

    _find_entry: Callable[[OuterRoute, ASGIScope, int], EndpointEntry] | None = None

    def make_entry_probe(self, scope: ASGIScope) -> EntryProbe | None:
        if self._find_entry is None:
            self._find_entry = _choose_find_entry(find_routes(list_applications(scope, self.app)))
        return functools.partial(self._find_entry, OuterRoute.from_scope(scope), scope)

    def list_accepting(self, scope: ASGIScope) -> Iterable[str]:
        return list_accepting(getattr(scope.get("app"), "routes", ()))


def _choose_find_entry(routes: Iterable[Any]) -> Callable[[OuterRoute, ASGIScope, int], EndpointEntry]:
    """FastAPI rejects a request after its router chose the route. Marks on the endpoints tell such a rejection."""
    if "fastapi" not in sys.modules:
        return find_entry
    from retrysafe.web import fastapi_routes  # here, not above: it imports this module

    fastapi_routes.mark_endpoints(routes, fastapi_routes.mark_endpoint_only)
    return functools.partial(fastapi_routes.find_entry, mark=fastapi_routes.mark_endpoint_only)


def list_accepting(routes: Iterable[Any], prefix: str = "") -> Iterator[str]:
    """The routes below these whose handler answers 202 by a policy of its own."""
    for route in routes:
        path = f"{prefix}{getattr(route, 'path', '')}"
        if is_accepting(getattr(route, "endpoint", None)):
            methods = sorted(set(getattr(route, "methods", None) or ()) - SAFE_METHODS)
            yield f"{','.join(methods)} {path}"
        yield from list_accepting(getattr(route, "routes", None) or (), path)


class OuterRoute(NamedTuple):
    """What an outer router had written into the scope before: an application may be mounted in another one."""

    router: Any
    endpoint: Any
    route: Any

    @classmethod
    def from_scope(cls, scope: ASGIScope) -> OuterRoute:
        return cls(scope.get("router"), scope.get("endpoint"), scope.get("route"))


def find_entry(before: OuterRoute, scope: ASGIScope, code: int) -> EndpointEntry:
    """Whether an endpoint was entered, from what the router wrote into this scope. If a middleware answered before the
    router, or gave the router a copy of the scope, nothing is there and the entry is unknown."""
    endpoint, route = scope.get("endpoint"), scope.get("route")
    matched = endpoint is not before.endpoint
    unmatched = _find_router(endpoint) if matched else None if before.router is not None else scope.get("router")
    if unmatched is not None:  # none of its routes matched
        plain = unmatched.default == unmatched.not_found and not isinstance(route, Route)
        return UNKNOWN if not plain else REDIRECTED if code < 400 else REFUSED
    if not matched:
        return UNKNOWN
    wrong_method = isinstance(route, Route) and route.methods and scope["method"] not in route.methods
    return REFUSED if wrong_method and route is not before.route else ENTERED


def _find_router(endpoint: Any) -> Router | None:
    """The router of a mounted application, if no middleware in between might give it a copy of the scope."""
    if isinstance(endpoint, Starlette):
        return None if endpoint.user_middleware else endpoint.router
    if isinstance(endpoint, Router) and getattr(endpoint, "middleware_stack", endpoint.app) == endpoint.app:
        return endpoint
    return None


class Refusal(ResponseReady, HTTPException):
    """The handler must not run; the middleware sends the answer. An HTTPException is not reported as an error."""

    def __init__(self, exchange: AsyncExchange) -> None:
        assert exchange.response is not None, "a refusal leaves its answer in the exchange"
        HTTPException.__init__(self, exchange.response.status, "answered by the idempotency middleware")


class AnsweredResponse(Response):
    """The handler was not called. The middleware sends its answer, and what is inside of it sees the status alone."""

    def __init__(self, exchange: AsyncExchange) -> None:
        assert exchange.response is not None, "a refusal leaves its answer in the exchange"
        self.status_code = exchange.response.status
        self.background = None
        self.body = b""
        self.raw_headers = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        await send({"type": RESPONSE_START, "status": self.status_code, "headers": []})
        await send({"type": RESPONSE_BODY, "body": b""})


async def claim(
    request: Request,
    principal: Any,
    policy: Policy | None = None,
    *,
    strength: Strength = "guard",
    refusal: type[Refusal] = Refusal,
) -> Key | None:
    """Claim this request's key for the principal. None: the mode allows it to run unprotected, or it is a GET."""
    exchange = find_exchange(request.scope, INSTALL_HINT)
    if exchange is None:
        return None
    try:
        return await claim_or_identify(exchange, principal, policy, build_target(request.scope), strength)
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
    """Claim this request's key by opening a transaction, which commits with the answer. None for a GET."""
    exchange = find_exchange(request.scope, INSTALL_HINT)
    if exchange is None:
        return None
    try:
        return await aclaim_in_transaction(
            exchange,
            principal,
            TransactionRequest(policy, build_target(request.scope), tx),
            handler or _find_handler(request),
        )
    except ResponseReady as stop:
        raise refusal(exchange) from stop


def _find_handler(request: Request) -> Any:
    """The handler that uses the transaction. If it is not known, an async function stands for it."""
    return request.scope.get("endpoint") or claim_in_transaction


def build_target(scope: Any) -> str:
    """`POST /orders/{id}`: the route template and not the path, so that there are few different targets."""
    # FastAPI keeps the path with the prefixes of included routers in a context; older versions keep it in the route.
    route = scope.get("fastapi", {}).get("effective_route_context") or scope.get("route")
    mounted = scope.get("root_path") or ""
    if mounted:
        mounted = mounted.removeprefix(scope.get("app_root_path", ""))
    path = getattr(route, "path", None) or _endpoint_name(scope)
    return _name_target(scope["method"], mounted, path)


@lru_cache(1_024)
def _name_target(method: str, mounted: str, path: str) -> str:
    return sanitize_target(f"{method.upper()} {mounted}{path}")


def _endpoint_name(scope: Any) -> str:
    """The handler's name, for older versions of Starlette, which do not put the route into the scope."""
    endpoint = scope.get("endpoint")
    return f"[{getattr(endpoint, '__qualname__', type(endpoint).__name__)}]"


def idempotent(
    scope: Callable[[Request], Any], policy: Policy | None = None, *, strength: Strength = "guard", tx: Any = None
) -> Callable[[Handler], Handler]:
    """Protect a handler. `scope(request)` returns the principal and may be async. The key is `request.state.key`.

    `strength="transaction"`: the handler's argument `tx` is the connection or session of a transaction that commits
    with the answer. It is opened from `tx=`, or from `RetrySafe(tx=…)`.
    """
    check_strength(strength)
    check_tx(strength, tx)

    def decorate(handler: Handler) -> Handler:
        @functools.wraps(handler)
        async def call_protected(*args: Any, **kwargs: Any) -> Any:
            request = next(one for one in (*args, *kwargs.values()) if isinstance(one, Request))
            principal = await await_if_needed(scope(request))
            if strength == "transaction":
                transaction = await claim_in_transaction(request, principal, policy, tx=tx, handler=handler)
                request.state.key = transaction.flows.task.key if transaction is not None else None
                return respond_if_answer(await _call_in_transaction(transaction, request, handler, args, kwargs))
            exchange, key = find_exchange(request.scope, INSTALL_HINT), None
            if exchange is not None:
                try:
                    key = await claim_or_identify(exchange, principal, policy, build_target(request.scope), strength)
                except ResponseReady as stop:
                    if request.scope.get("endpoint") is not call_protected:
                        raise Refusal(exchange) from stop  # what called us must not go on, as if the handler had run
                    return AnsweredResponse(exchange)
            request.state.key = key
            return respond_if_answer(await _call_handler(handler, args, kwargs))

        return mark_accepting(call_protected, policy)

    return decorate


async def _call_handler(handler: Handler, args: Any, kwargs: Any) -> Any:
    if inspect.iscoroutinefunction(handler):
        return await handler(*args, **kwargs)
    return await run_in_threadpool(handler, *args, **kwargs)


async def _call_in_transaction(
    transaction: AsyncRequestTransactionBase | None, request: Request, handler: Handler, args: Any, kwargs: Any
) -> Any:
    """Call a handler in its transaction, which commits with the answer."""
    if transaction is None:
        return await _call_handler(handler, args, add_handle(handler, kwargs, None))
    if not inspect.iscoroutinefunction(handler):
        await request.body()  # a plain handler cannot await it
    try:
        return await transaction.run_handler(
            lambda handle: _call_handler(handler, args, add_handle(handler, kwargs, handle))
        )
    except ResponseReady as stop:
        exchange = find_exchange(request.scope, INSTALL_HINT)
        assert exchange is not None, "a transaction was opened for it"
        raise Refusal(exchange) from stop


# Answers ----------------------------------------------------------------------------------------


def respond(answer: OperationAnswer) -> Response:
    """An operation's answer as a response: its status, headers and bytes. A replayed `Ended` is marked as a replay, and
    `Accepted` becomes a 202."""
    return _to_starlette_response(asgi_adapter.response_for_answer(answer))


def respond_if_answer(result: Any) -> Any:
    return respond(result) if isinstance(result, ANSWERS) else result


def add_problem_handlers(app: Starlette) -> None:
    """Answer our errors (in progress, mismatch, not finished …) with their problems, where a handler raises them."""
    app.add_exception_handler(RetrySafeError, _respond_problem)
    app.add_exception_handler(Refusal, _respond_status_only)


async def _respond_problem(request: Request, error: Exception) -> Response:
    assert isinstance(error, RetrySafeError), "registered for these"
    return _to_starlette_response(asgi_adapter.response_for_error(error, request.scope.get(EXCHANGE)))


async def _respond_status_only(request: Request, error: Exception) -> Response:
    """The framework sees only the status of a replay or refusal. The middleware sends the rest."""
    return Response(status_code=getattr(error, "status_code", 500))


def _to_starlette_response(answer: Any) -> Response:
    response = Response(answer.body, answer.status)
    # Set directly: several lines of one name are allowed, and Starlette adds no content type.
    response.raw_headers = encode_headers(answer.headers)
    return response


__all__ = [
    "IdempotencyMiddleware",
    "Refusal",
    "add_problem_handlers",
    "claim",
    "idempotent",
    "respond",
]
