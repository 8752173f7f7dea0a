"""The Flask extension: a middleware captures answers, and a decorator claims keys where the principal is known.

    idempotency = Idempotency(safe=RetrySafe("postgresql://…"))

    def create_app():
        app = Flask(__name__)
        idempotency.init_app(app)
        return app

    @app.post("/payments")
    @login_required
    @idempotency.protect(scope=lambda: current_user.account_id)
    def create_payment(): ...

Put `protect` below the decorator that authenticates, so that only a client that may make the request gets a replay.
Plain and async views, blueprints, streaming, the test client and the development server all work.

For an unhandled exception our 500 is stored and sent. Flask has logged the exception and sent `got_request_exception`
by then. If the application has its own error page for 500, that page is the answer and is stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import wraps
from typing import Any, TypeVar, Unpack

from flask import Flask, Response, current_app, got_request_exception, has_request_context, request
from werkzeug.exceptions import InternalServerError
from werkzeug.routing import RequestRedirect

from retrysafe.core.keys import Key
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import RetrySafeError, UsageError
from retrysafe.policy import Policy
from retrysafe.web import wsgi
from retrysafe.web.accepted_routes import warn_without_status
from retrysafe.web.asgi_adapter import OperationAnswer, check_strength, response_for_answer, response_for_error
from retrysafe.web.capture import Response as Captured
from retrysafe.web.endpoint_entry import ENTERED, REDIRECTED, REFUSED, UNKNOWN, EndpointEntry
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.openapi import Strength
from retrysafe.web.paths import normalize_path
from retrysafe.web.routes import SAFE_METHODS
from retrysafe.web.settings import Options, Settings
from retrysafe.web.settings import Scope as MiddlewareScope
from retrysafe.web.sync_async import SyncExchange
from retrysafe.web.transaction_io import TransactionRequest, add_handle, check_tx, claim_in_transaction
from retrysafe.web.wsgi_answer import Environ, StartResponse, WSGIApp

R = TypeVar("R")

Scope = Callable[[], Any]
"""Returns the principal: the authenticated account or tenant, from Flask's request context."""

EXTENSION_NAME = "retrysafe"


class IdempotencyMiddleware(wsgi.IdempotencyMiddleware):
    """The WSGI middleware, which also sees the result of Flask's router. If an outer middleware authenticates, use it
    directly: `app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, safe=safe, scope=…)`."""

    def __init__(
        self, app: WSGIApp, *, safe: RetrySafe, scope: MiddlewareScope | None = None, **options: Unpack[Options]
    ) -> None:
        super().__init__(_record_routing(app), safe=safe, scope=scope, **options)


def _record_routing(app: WSGIApp) -> WSGIApp:
    """Record the router's result when the answer begins: afterwards Flask drops the request."""

    def run_with_record(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        exchange: SyncExchange | None = environ.get(EXCHANGE)
        if exchange is None:
            return app(environ, start_response)

        def record_and_start(line: str, headers: Any, exc_info: Any = None) -> Any:
            exchange.endpoint_entry = find_entry(environ, int(line[:3]))
            return start_response(line, headers, exc_info)

        return app(environ, record_and_start)

    return run_with_record


def find_entry(environ: Environ, code: int) -> EndpointEntry:
    """The router's result, if the answer is the router's own: a hook or an error page may have replaced it."""
    routed = environ.get("werkzeug.request")
    if routed is None or not hasattr(routed, "routing_exception"):
        return UNKNOWN
    refusal = routed.routing_exception
    if refusal is None:
        return ENTERED
    if refusal.code != code:
        return UNKNOWN
    return REDIRECTED if isinstance(refusal, RequestRedirect) else REFUSED


class Idempotency:
    """The Flask extension. One object serves any number of applications.

    Without `safe`, each application's config must have `RETRYSAFE_URL`. `scope` is the default for `protect`. The other
    options are those of the middleware (retrysafe.web.settings.Options).
    """

    def __init__(
        self,
        app: Flask | None = None,
        *,
        safe: RetrySafe | None = None,
        scope: Scope | None = None,
        **options: Unpack[Options],
    ) -> None:
        if scope is not None and not callable(scope):
            raise UsageError(f"scope={scope!r}: give a callable without arguments that returns the principal")
        self._safe = safe
        self._scope = scope
        self._options = options
        self._accepting: list[str] = []
        """Views whose own policy answers 202."""
        self._settings: list[Settings] = []
        """Of the applications that this object serves."""
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Flask) -> None:
        """Put the middleware around this application. Add other WSGI middleware that changes answers before this."""
        if EXTENSION_NAME in app.extensions:
            raise UsageError(f"{app.name} has an Idempotency already; call init_app once for each application")
        middleware = IdempotencyMiddleware(app.wsgi_app, safe=self._safe or _safe_from_config(app), **self._options)
        app.extensions[EXTENSION_NAME] = middleware
        self._settings.append(middleware.settings)
        warn_without_status(middleware.settings, self._accepting)
        app.wsgi_app = middleware  # type: ignore[method-assign]  # Flask's documented seam
        got_request_exception.connect(_settle_failure, app)

    @property
    def census(self) -> KeyUsageStats:
        """Who sends keys to the current application, per route and client (docs/howto/rollout.md)."""
        return _current_middleware().settings.census

    @property
    def safe(self) -> RetrySafe:
        """The RetrySafe object of the current application."""
        return _current_middleware().settings.safe

    def protect(
        self,
        *,
        scope: Scope | None = None,
        policy: Policy | None = None,
        target: str | None = None,
        strength: Strength = "guard",
        tx: Any = None,
    ) -> Callable[[Callable[..., R]], Callable[..., R | Response]]:
        """Make a view safe to retry. `target` is the URL rule unless given. In the view, `current_key()` is the key.

        `strength="operation"`: the view calls an operation with that key and returns its answer. The operation makes
        the record.

        `strength="transaction"`: the view's argument `tx` is the connection or session of a transaction that commits
        with the answer. It is opened from `tx=`, or from `RetrySafe(tx=…)`.
        """
        check_strength(strength)
        check_tx(strength, tx)
        chosen = scope or self._scope
        if chosen is None:
            raise UsageError(
                "protect() needs the principal: protect(scope=lambda: current_user.account_id), or "
                "Idempotency(scope=...) for all views"
            )

        def decorate(view: Callable[..., R]) -> Callable[..., R | Response]:
            if policy is not None and policy.busy == "accepted":
                self._accepting.append(f"{view.__module__}.{view.__qualname__}")
                for settings in self._settings:
                    warn_without_status(settings, self._accepting)
            if strength == "transaction":
                return _protect_in_transaction(view, chosen, policy, target, tx)

            @wraps(view)
            def call_protected(*args: Any, **kwargs: Any) -> R | Response:
                try:
                    claim(chosen, policy, target, strength)
                except ResponseReady:
                    return _build_own_response()
                # Only the view: the claim runs in the request's own thread, an async view on an event loop.
                run: Callable[..., R] = current_app.ensure_sync(view)
                return run(*args, **kwargs) if strength == "guard" else _call_operation_view(run, *args, **kwargs)

            return call_protected

        return decorate


def current_key() -> Key | None:
    """The key of the current request. Derive the keys for other systems from it."""
    exchange = _current_exchange()
    return exchange.key if exchange is not None else None


def claim(
    scope: Scope, policy: Policy | None = None, target: str | None = None, strength: Strength = "guard"
) -> Key | None:
    """Claim the current request's key without the decorator. None: the request runs unprotected, as its mode or method
    allows. Raises ResponseReady if the view must not run: return anything, the stored answer is sent."""
    exchange = _current_exchange()
    if exchange is None:
        return None
    target = target or _current_target()
    if strength == "guard":
        return exchange.claim(scope(), policy, target=target)
    task = exchange.identify(scope(), policy, target=target)
    return None if task is None else task.key


def _protect_in_transaction(
    view: Callable[..., R], scope: Scope, policy: Policy | None, target: str | None, tx: Any
) -> Callable[..., R | Response]:
    """The view, wrapped so that it runs in a transaction that commits with its answer."""

    @wraps(view)
    def call_protected(*args: Any, **kwargs: Any) -> R | Response:
        run: Callable[..., R] = current_app.ensure_sync(view)
        exchange = _current_exchange()
        if exchange is None:
            return run(*args, **add_handle(view, kwargs, None))
        try:
            transaction = claim_in_transaction(
                exchange, scope(), TransactionRequest(policy, target or _current_target(), tx)
            )
            return transaction.run_handler(lambda handle: run(*args, **add_handle(view, kwargs, handle)))
        except ResponseReady:
            return _build_own_response()

    return call_protected


def _current_target() -> str:
    return f"{request.method} {request.url_rule or normalize_path(request.path)}"


def _current_exchange() -> SyncExchange | None:
    found: SyncExchange | None = request.environ.get(EXCHANGE)
    if found is None and request.method not in SAFE_METHODS:
        _current_middleware()  # raises if the extension is missing
    return found


def _current_middleware() -> IdempotencyMiddleware:
    found: IdempotencyMiddleware | None = current_app.extensions.get(EXTENSION_NAME)
    if found is None:
        raise UsageError(
            f"{current_app.name} has protected views, but no Idempotency: call idempotency.init_app(app) where the "
            "application is made"
        )
    return found


def _build_own_response() -> Response:
    """The answer of the exchange, which replaces the view's. The middleware sends it in any case."""
    exchange = _current_exchange()
    assert exchange is not None, "only a claim is refused"
    assert exchange.response is not None, "a refusal leaves its answer"
    return _to_flask_response(exchange.response)


def _call_operation_view(view: Callable[..., R], *args: Any, **kwargs: Any) -> R | Response:
    """Run a view that calls an operation. The answer is sent as stored, our errors as problems."""
    try:
        answer = view(*args, **kwargs)
    except RetrySafeError as error:
        return _to_flask_response(response_for_error(error, _current_exchange()))
    return _to_flask_response(response_for_answer(answer)) if isinstance(answer, OperationAnswer) else answer


def _to_flask_response(response: Captured) -> Response:
    answer = Response(response.body, response.status)
    answer.headers.clear()
    answer.headers.extend(list(response.headers))
    return answer


def _settle_failure(sender: Flask, exception: BaseException, **_: Any) -> None:
    """Flask got an unhandled exception. Settle the claim now: after this Flask only makes an error page."""
    exchange = _current_exchange() if has_request_context() else None
    if exchange is not None and exchange.claimed and not _has_own_page(sender):
        exchange.response = exchange.settle(exchange.settle_raised(exception))


def _has_own_page(app: Flask) -> bool:
    """True if a handler is registered for 500: by its number, or for a base class of InternalServerError."""
    for name in (*request.blueprints, None):
        by_code = app.error_handler_spec.get(name, {})
        if by_code.get(500) or any(kind in by_code.get(None, {}) for kind in InternalServerError.__mro__):
            return True
    return False


def _safe_from_config(app: Flask) -> RetrySafe:
    url = app.config.get("RETRYSAFE_URL")
    if not url:
        raise UsageError(
            f"{app.name} has no store for its keys: pass Idempotency(safe=RetrySafe('postgresql://…')), or set "
            "app.config['RETRYSAFE_URL']"
        )
    return RetrySafe(str(url))
