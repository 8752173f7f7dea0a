"""The WSGI middleware: Flask, Django, Pyramid, Bottle, or a bare application.

    app = IdempotencyMiddleware(app, safe=safe, scope=lambda request: request.raw["account"])

As on ASGI, the middleware makes the claim if `scope` is given. Otherwise the route makes it:
`environ["retrysafe.exchange"].claim(principal)`. The application runs to its end before the first byte is sent, so a
client that disconnects does not stop it.

`read_timeout` is checked between two reads of the body. A read that blocks ends with the server's own timeout; no lease
is held while the body is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any, Unpack

from retrysafe.core.deprecation import renamed_names
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.web import status
from retrysafe.web.exchange import EXCHANGE, scope_from_principal
from retrysafe.web.exchange_context import (
    ResponseReady,
    is_response_ready,
    reset_current_exchange,
    set_current_exchange,
)
from retrysafe.web.key_usage import KeyUsageStats
from retrysafe.web.keyless import KeylessSyncExchange
from retrysafe.web.routes import Route
from retrysafe.web.settings import Options, Scope, Settings
from retrysafe.web.sync_async import SyncExchange
from retrysafe.web.view import RequestView, environ_path, view_from_environ
from retrysafe.web.wsgi_answer import AnswerCollector, Environ, StartResponse, WSGIApp, transmit
from retrysafe.web.wsgi_body import WsgiBody


class IdempotencyMiddleware:
    """See the module; the options are in retrysafe.web.settings.Options."""

    def __init__(
        self, app: WSGIApp, *, safe: RetrySafe, scope: Scope | None = None, **options: Unpack[Options]
    ) -> None:
        self.app = app
        self.settings = Settings(safe, scope, options)
        for name, given in (("scope", scope), ("status_scope", options.get("status_scope"))):
            if inspect.iscoroutinefunction(given):
                raise UsageError(f"{name}= is an async function, and WSGI cannot await it; give a plain one")
        self._methods = self.settings.methods
        self._header = self.settings.header_environ

    @property
    def census(self) -> KeyUsageStats:
        """Who sends keys, per route and client (docs/howto/rollout.md)."""
        return self.settings.census

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        # Upper case for our decision only. The application gets the method as sent; many dispatch `patch` as PATCH.
        method = environ["REQUEST_METHOD"].upper()
        if method not in self._methods:
            if self.settings.serves_status and method == "GET":
                token = self._status_token(environ)
                if token is not None:
                    return self._respond_status(view_from_environ(environ), token, start_response)
            return self.app(environ, start_response)
        route = self.settings.routes.find(method, strip_mount_path(environ))
        if route is None:
            return self.app(environ, start_response)
        line = environ.get(self._header)
        if line is None and route.policy.mode == "optional":
            return self._run_without_key(environ, start_response, route)
        exchange = SyncExchange(self.settings, view_from_environ(environ), route, () if line is None else (line,))
        body = WsgiBody(environ, max(self.settings.max_body, route.policy.max_body))
        return self._run_with_reruns(environ, exchange, body, start_response)

    def _run_without_key(self, environ: Environ, start_response: StartResponse, route: Route) -> Iterable[bytes]:
        """No key was sent and none is needed: the application gets the server's environ."""
        if self.settings.scope is not None:
            self.settings.census.count(route.target, "", "missing", route.series[1])
            return self.app(environ, start_response)
        environ[EXCHANGE] = exchange = KeylessSyncExchange(self.settings, environ, route)
        exchange.uncaptured = True
        token = set_current_exchange(exchange)
        try:
            return self.app(environ, start_response)
        finally:
            reset_current_exchange(token)

    def _run_with_reruns(
        self, environ: Environ, exchange: SyncExchange, body: WsgiBody, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Run the application, and again each time the database rolled the work back because of other transactions
        (transaction_flow.py)."""
        snapshot = dict(environ)
        chunks = self._run_once(environ, exchange, body, start_response)
        while exchange.rolled_back:
            exchange = exchange.copy_for_rerun()
            body.rewind()
            environ.clear()  # in place: outer middleware hold the same dict and must see the last run's environ
            environ.update(snapshot)
            chunks = self._run_once(environ, exchange, body, start_response)
        return chunks

    def _run_once(
        self, environ: Environ, exchange: SyncExchange, body: WsgiBody, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Claim, run the application, settle the claim, answer."""
        exchange.body = environ["wsgi.input"] = body
        environ[EXCHANGE] = exchange
        collector = AnswerCollector(exchange, start_response)
        token = set_current_exchange(exchange)
        try:
            if self.settings.scope is not None:
                exchange.claim(_read_principal(self.settings.scope, exchange.view))
            return collector.collect(self.app(environ, collector.start_response))
        except Exception as error:
            if is_response_ready(error) and exchange.response is not None:
                return collector.send_own(exchange.response)
            return collector.settle_failed(error)
        except BaseException as error:
            collector.settle_stopped(error)
            raise
        finally:
            reset_current_exchange(token)

    def _status_token(self, environ: Environ) -> str | None:
        prefix, path = self.settings.status_path + "/", strip_mount_path(environ)
        return path[len(prefix) :] if path.startswith(prefix) else None

    def _respond_status(self, view: RequestView, token: str, start_response: StartResponse) -> Iterable[bytes]:
        settings = self.settings
        assert settings.status_scope is not None, "checked when the middleware was made"
        principal = scope_from_principal(_read_principal(settings.status_scope, view))
        flow = status.status_flow(settings, view.raw.get("SCRIPT_NAME", ""), token, principal)
        return transmit(start_response, settings.safe.run(flow))


def _read_principal(scope: Scope, view: RequestView) -> Any:
    found = scope(view)
    if inspect.iscoroutine(found):
        found.close()
        raise UsageError("scope= returned an awaitable, and WSGI cannot await it; give a plain function")
    return found


def strip_mount_path(environ: Environ) -> str:
    """The path below the application's mount point."""
    path: str = environ_path({"PATH_INFO": environ.get("PATH_INFO", "")})
    return path or "/"


__all__ = ["IdempotencyMiddleware", "ResponseReady"]

__getattr__ = renamed_names("retrysafe.web.wsgi", {"Shortcut": "ResponseReady"})
