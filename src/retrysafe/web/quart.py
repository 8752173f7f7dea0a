"""Quart: a decorator below your authentication.

    app = Quart(__name__)
    install(app, safe=safe)

    @app.post("/payments")
    @login_required
    @idempotent(scope=lambda: current_user.account_id)
    async def pay(): ...

The decorators above it run first: a request that they refuse claims no key. In the view, `current_key()` is the key.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, Unpack

from quart import Quart, Response, current_app, request
from werkzeug.exceptions import HTTPException
from werkzeug.routing import RequestRedirect

from retrysafe.core.keys import Key
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import RetrySafeError
from retrysafe.policy import Policy
from retrysafe.web import asgi_adapter
from retrysafe.web.accepted_routes import is_accepting, mark_accepting
from retrysafe.web.asgi import ASGIScope, IdempotencyMiddleware
from retrysafe.web.asgi_adapter import (
    OperationAnswer,
    await_if_needed,
    check_strength,
    claim_or_identify,
    find_exchange,
)
from retrysafe.web.endpoint_entry import ENTERED, REDIRECTED, REFUSED, EndpointEntry
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.openapi import Strength
from retrysafe.web.paths import normalize_path
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.settings import Options, Scope
from retrysafe.web.sync_async import AsyncExchange
from retrysafe.web.transaction_io import TransactionRequest, aclaim_in_transaction, add_handle, check_tx

View = Callable[..., Any]
INSTALL_HINT = "call retrysafe.web.quart.install(app, safe=safe)"


class Refusal(ResponseReady, HTTPException):
    """The view must not run; the middleware sends the answer. An HTTPException is not reported as an error."""

    def __init__(self, exchange: AsyncExchange) -> None:
        assert exchange.response is not None, "a refusal leaves its answer in the exchange"
        HTTPException.__init__(self, "answered by the idempotency middleware")
        self.code = exchange.response.status


class _InstalledMiddleware(IdempotencyMiddleware):
    """The middleware, which also knows the application's routes."""

    quart: Quart

    def list_accepting(self, scope: ASGIScope) -> Iterator[str]:
        for rule in self.quart.url_map.iter_rules():
            if is_accepting(self.quart.view_functions.get(rule.endpoint)):
                yield f"{','.join(sorted(set(rule.methods or ()) - SAFE_METHODS))} {rule.rule}"


def install(app: Quart, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]) -> KeyUsageStats:
    """Install the middleware around the application, and problems for our errors. Returns the census: who sends keys
    (docs/howto/rollout.md)."""
    inner: Any = app.asgi_app
    middleware = _InstalledMiddleware(inner, safe=safe, scope=scope, **options)
    middleware.quart = app
    app.asgi_app = middleware  # type: ignore[method-assign, assignment]  # as Quart documents
    app.register_error_handler(RetrySafeError, _respond_problem)
    app.dispatch_request = _record_routing(app.dispatch_request)  # type: ignore[method-assign]
    return middleware.census


def _record_routing(dispatch: Callable[..., Any]) -> Callable[..., Any]:
    """Record the router's result when Quart dispatches: a matched route, or the router's exception."""

    @functools.wraps(dispatch)
    async def record_and_dispatch(*args: Any, **kwargs: Any) -> Any:
        exchange: Any = request.scope.get(EXCHANGE)
        if exchange is not None:
            exchange.endpoint_entry = find_entry(request.routing_exception)
        return await dispatch(*args, **kwargs)

    return record_and_dispatch


def find_entry(refusal: BaseException | None) -> EndpointEntry:
    if refusal is None:
        return ENTERED
    return REDIRECTED if isinstance(refusal, RequestRedirect) else REFUSED


def idempotent(
    scope: Callable[[], Any], policy: Policy | None = None, *, strength: Strength = "guard", tx: Any = None
) -> Callable[[View], View]:
    """Protect a view.

    scope     `callable()`, sync or async: returns the authenticated account or tenant, str, int or UUID
    policy    replaces the middleware's policy for this view
    strength  "operation" where an operation claims the key itself, with `key=current_key()`; "transaction" where the
              answer commits with the view's own transaction, whose connection or session is its argument `tx`
    tx        what opens that transaction, unless `RetrySafe(tx=…)` is given
    """
    check_strength(strength)
    check_tx(strength, tx)

    def decorate(view: View) -> View:
        @functools.wraps(view)
        async def call_protected(*args: Any, **kwargs: Any) -> Any:
            if strength == "transaction":
                return await _protect_in_transaction(view, await await_if_needed(scope()), policy, tx)(*args, **kwargs)
            await claim(await await_if_needed(scope()), policy, strength=strength)
            result = await current_app.ensure_async(view)(*args, **kwargs)
            return respond(result) if isinstance(result, OperationAnswer) else result

        return mark_accepting(call_protected, policy)

    return decorate


def _protect_in_transaction(view: View, principal: Any, policy: Policy | None, tx: Any) -> View:
    """The view, wrapped so that it runs in a transaction that commits with its answer."""

    async def call_protected(*args: Any, **kwargs: Any) -> Any:
        run = current_app.ensure_async(view)
        exchange = find_exchange(request.scope, INSTALL_HINT)
        if exchange is None:
            return await run(*args, **add_handle(view, kwargs, None))
        await request.get_data(cache=True, parse_form_data=False)
        try:
            transaction = await aclaim_in_transaction(
                exchange, principal, TransactionRequest(policy, _current_target(), tx), view
            )
            return await transaction.run_handler(lambda handle: run(*args, **add_handle(view, kwargs, handle)))
        except ResponseReady as stop:
            raise Refusal(exchange) from stop

    return call_protected


def _current_target() -> str:
    return f"{request.method} {request.url_rule.rule if request.url_rule else normalize_path(request.path)}"


async def claim(principal: Any, policy: Policy | None = None, *, strength: Strength = "guard") -> Key | None:
    """Claim the current request's key for the principal. None: it may run unprotected by its mode, or is a GET."""
    exchange = find_exchange(request.scope, INSTALL_HINT)
    if exchange is None:
        return None
    if not exchange.uncaptured:
        # Quart reads the body in a task of its own. Wait for it: of two readers each would get a part of the body.
        await request.get_data(cache=True, parse_form_data=False)
    try:
        return await claim_or_identify(exchange, principal, policy, _current_target(), strength)
    except ResponseReady as stop:
        raise Refusal(exchange) from stop


def current_key() -> Key | None:
    """The key of the current request, after it was claimed or read."""
    exchange: AsyncExchange | None = request.scope.get(EXCHANGE)  # type: ignore[assignment]  # a key of our own
    return exchange.key if exchange is not None else None


def respond(answer: OperationAnswer) -> Response:
    """An operation's answer as a response: its status, headers and bytes. A replayed `Ended` is marked as a replay, and
    `Accepted` becomes a 202."""
    return _to_quart_response(asgi_adapter.response_for_answer(answer))


async def _respond_problem(error: RetrySafeError) -> Response:
    exchange: Any = request.scope.get(EXCHANGE)
    return _to_quart_response(asgi_adapter.response_for_error(error, exchange))


def _to_quart_response(answer: Any) -> Response:
    response = Response(answer.body, answer.status)
    response.headers.clear()
    for name, value in answer.headers:
        response.headers.add(name, value)
    return response


__all__ = ["IdempotencyMiddleware", "Refusal", "claim", "current_key", "idempotent", "install", "respond"]
