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

from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.web import status
from retrysafe.web.colours import SyncExchange
from retrysafe.web.current import enter, leave
from retrysafe.web.exchange import EXCHANGE, as_scope
from retrysafe.web.routes import Route
from retrysafe.web.settings import Options, Scope, Settings
from retrysafe.web.shortcut import Shortcut, is_shortcut
from retrysafe.web.view import RequestView, environ_path, of_environ
from retrysafe.web.wsgi_answer import AnswerTaker, Environ, StartResponse, WSGIApp, transmit
from retrysafe.web.wsgi_body import Body


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
                    return self._status(of_environ(environ), token, start_response)
            return self.app(environ, start_response)
        route = self.settings.routes.find(method, local_path(environ))
        if route is None:
            return self.app(environ, start_response)
        line = environ.get(self._header)
        if line is None and route.policy.mode == "optional":
            return self._keyless(environ, start_response, route)
        exchange = SyncExchange(self.settings, of_environ(environ), route, () if line is None else (line,))
        body = Body(environ, max(self.settings.max_body, route.policy.max_body))
        return self._work(environ, exchange, body, start_response)

    def _keyless(self, environ: Environ, start_response: StartResponse, route: Route) -> Iterable[bytes]:
        """No key, and none is needed: the application gets its own environment."""
        if self.settings.scope is not None:
            self.settings.census.count(route.target, "", "missing")
            return self.app(environ, start_response)
        environ[EXCHANGE] = exchange = SyncExchange(self.settings, of_environ(environ), route, ())
        exchange.untouched = True
        token = enter(exchange)
        try:
            return self.app(environ, start_response)
        finally:
            leave(token)

    def _work(
        self, environ: Environ, exchange: SyncExchange, body: Body, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Run it, and again where the database undid it because of others (joining.py says when)."""
        pristine = dict(environ)
        told = self._run(environ, exchange, body, start_response)
        while exchange.undone:
            exchange = exchange.again()
            body.rewind()
            environ.clear()  # in place: whoever stands around us sees the environment of the run that counts
            environ.update(pristine)
            told = self._run(environ, exchange, body, start_response)
        return told

    def _run(
        self, environ: Environ, exchange: SyncExchange, body: Body, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Claim, run, settle, answer."""
        exchange.body = environ["wsgi.input"] = body
        environ[EXCHANGE] = exchange
        taker = AnswerTaker(exchange, start_response)
        token = enter(exchange)
        try:
            if self.settings.scope is not None:
                exchange.claim(_principal(self.settings.scope, exchange.view))
            return taker.take(self.app(environ, taker.start_response))
        except Exception as error:
            if is_shortcut(error) and exchange.response is not None:
                return taker.own(exchange.response)
            return taker.failed(error)
        except BaseException as error:
            taker.stopped(error)
            raise
        finally:
            leave(token)

    def _status_token(self, environ: Environ) -> str | None:
        prefix, path = self.settings.status_path + "/", local_path(environ)
        return path[len(prefix) :] if path.startswith(prefix) else None

    def _status(self, view: RequestView, token: str, start_response: StartResponse) -> Iterable[bytes]:
        settings = self.settings
        assert settings.status_scope is not None, "checked when the middleware was made"
        principal = as_scope(_principal(settings.status_scope, view))
        flow = status.looked_up(settings, view.raw.get("SCRIPT_NAME", ""), token, principal)
        return transmit(start_response, settings.safe.run(flow))


def _principal(scope: Scope, view: RequestView) -> Any:
    found = scope(view)
    if inspect.iscoroutine(found):
        found.close()
        raise UsageError("scope= returned something to await, and WSGI cannot; give a plain function")
    return found


def local_path(environ: Environ) -> str:
    """The path below where the application is mounted."""
    whole: str = environ_path({"PATH_INFO": environ.get("PATH_INFO", "")})
    return whole or "/"


__all__ = ["IdempotencyMiddleware", "Shortcut"]
