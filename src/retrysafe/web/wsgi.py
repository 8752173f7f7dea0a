"""The WSGI middleware: Flask, Django, Pyramid, Bottle, or a bare application.

    app = IdempotencyMiddleware(app, safe=safe, scope=lambda request: request.raw["account"])

As on ASGI the claim is made here when `scope` is given, else by the route: `environ["retrysafe.exchange"].claim(who)`.
The application runs to its end before the first byte goes out, so a client that leaves disturbs nothing.

The time a body may take is checked between reads: a read that blocks is the server's own timeout to end. No lease is
held meanwhile.
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
from retrysafe.web.exchange_context import reset_current_exchange, set_current_exchange
from retrysafe.web.response_ready import ResponseReady, is_response_ready
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

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        # Upper case only to decide: the application gets it as it came, and many dispatch `patch` as PATCH.
        method = environ["REQUEST_METHOD"].upper()
        if method not in self._methods:
            if self.settings.serves_status and method == "GET":
                token = self._status_token(environ)
                if token is not None:
                    return self._respond_status(view_from_environ(environ), token, start_response)
            return self.app(environ, start_response)
        route = self.settings.routes.find(method, local_path(environ))
        if route is None:
            return self.app(environ, start_response)
        line = environ.get(self._header)
        if line is None and route.policy.mode == "optional":
            return self._run_without_key(environ, start_response, route)
        exchange = SyncExchange(self.settings, view_from_environ(environ), route, () if line is None else (line,))
        body = WsgiBody(environ, max(self.settings.max_body, route.policy.max_body))
        return self._run_with_reruns(environ, exchange, body, start_response)

    def _run_without_key(self, environ: Environ, start_response: StartResponse, route: Route) -> Iterable[bytes]:
        """No key, and none is needed: the application gets its own environment."""
        if self.settings.scope is not None:
            self.settings.census.count(route.target, "", "missing")
            return self.app(environ, start_response)
        environ[EXCHANGE] = exchange = SyncExchange(self.settings, view_from_environ(environ), route, ())
        exchange.untouched = True
        token = set_current_exchange(exchange)
        try:
            return self.app(environ, start_response)
        finally:
            reset_current_exchange(token)

    def _run_with_reruns(
        self, environ: Environ, exchange: SyncExchange, body: WsgiBody, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Run it, and again where the database undid it because of others (joining.py says when)."""
        pristine = dict(environ)
        told = self._run_once(environ, exchange, body, start_response)
        while exchange.rolled_back:
            exchange = exchange.for_retry()
            body.rewind()
            environ.clear()  # in place: whoever stands around us sees the environment of the run that counts
            environ.update(pristine)
            told = self._run_once(environ, exchange, body, start_response)
        return told

    def _run_once(
        self, environ: Environ, exchange: SyncExchange, body: WsgiBody, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Claim, run, settle, answer."""
        exchange.body = environ["wsgi.input"] = body
        environ[EXCHANGE] = exchange
        taker = AnswerCollector(exchange, start_response)
        token = set_current_exchange(exchange)
        try:
            if self.settings.scope is not None:
                exchange.claim(_read_principal(self.settings.scope, exchange.view))
            return taker.collect(self.app(environ, taker.start_response))
        except Exception as error:
            if is_response_ready(error) and exchange.response is not None:
                return taker.send_own(exchange.response)
            return taker.settle_failed(error)
        except BaseException as error:
            taker.settle_stopped(error)
            raise
        finally:
            reset_current_exchange(token)

    def _status_token(self, environ: Environ) -> str | None:
        prefix, path = self.settings.status_path + "/", local_path(environ)
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
        raise UsageError("scope= returned something to await, and WSGI cannot; give a plain function")
    return found


def local_path(environ: Environ) -> str:
    """The path below where the application is mounted."""
    whole: str = environ_path({"PATH_INFO": environ.get("PATH_INFO", "")})
    return whole or "/"


__all__ = ["IdempotencyMiddleware", "ResponseReady"]

__getattr__ = renamed_names("retrysafe.web.wsgi", {"Shortcut": "ResponseReady"})
