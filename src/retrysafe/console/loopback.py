"""`retrysafe console`: the console on this machine only, with a login link that works once.

The link is printed where the command was started. Who opens it gets a cookie; the link is used up. Sessions live in
this process and end with it. The server answers only requests whose `Host` is a name of this machine, so that a page of
another site cannot reach it under a name of its own (DNS rebinding).
"""

from __future__ import annotations

import hmac
import secrets
import threading
from collections.abc import Iterable
from socketserver import ThreadingMixIn
from typing import Any
from urllib.parse import urlsplit
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from retrysafe.console.access import Operator
from retrysafe.console.console import Console
from retrysafe.console.headers import harden, say
from retrysafe.console.messages import ConsoleRequest, ConsoleResponse, redirect
from retrysafe.console.wsgi import Environ, StartResponse, WsgiShell
from retrysafe.errors import UsageError

HOST = "127.0.0.1"
LOCAL_NAMES = frozenset({"127.0.0.1", "localhost"})
LOGIN_PATH = "/login"
SESSION_COOKIE = "retrysafe_console"
MAX_SESSIONS = 100
OPEN_PAGE = b"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>retrysafe</title></head>
<body><p>You are logged in. <a href="/">Open the console</a></p></body></html>
"""
"""For a link that was opened from a page of another site: a browser that were sent on from here would not send the new
cookie, and the link is used up."""


def find_host(request: ConsoleRequest) -> tuple[str, int]:
    """Name and port by which the browser reached this server; empty if its `Host` is none."""
    try:
        found = urlsplit(f"//{request.headers.get('host', '')}")
        return found.hostname or "", found.port or 0
    except ValueError:
        return "", 0


def name_cookie(request: ConsoleRequest) -> str:
    """Cookies do not know ports: a second console on this machine must not end the session of the first."""
    return f"{SESSION_COOKIE}_{find_host(request)[1]}"


class OneTimeLogin:
    """One link, one session for each link. `new_token` makes another link."""

    def __init__(self, operator: Operator) -> None:
        self._operator = operator
        self._lock = threading.Lock()
        self._tokens: set[str] = set()
        self._sessions: dict[str, Operator] = {}

    def new_token(self) -> str:
        token = secrets.token_urlsafe(32)
        with self._lock:
            self._tokens.add(token)
        return token

    def authenticate(self, request: ConsoleRequest) -> Operator | None:
        return self._sessions.get(request.cookies.get(name_cookie(request), ""))

    def log_in(self, request: ConsoleRequest) -> ConsoleResponse:
        """Use a link up, and start a session."""
        given = request.param("token")
        with self._lock:
            found = next((each for each in self._tokens if hmac.compare_digest(each.encode(), given.encode())), "")
            self._tokens.discard(found)
            if not found or len(self._sessions) >= MAX_SESSIONS:
                return say(403, "this link was used already, or is wrong; start the command again for a new one")
            session = secrets.token_urlsafe(32)
            self._sessions[session] = self._operator
        cookie = f"{name_cookie(request)}={session}; Path=/; HttpOnly; SameSite=Strict"
        if request.headers.get("sec-fetch-site", "none") in ("none", "same-origin"):
            led_to = redirect("/")
        else:
            led_to = ConsoleResponse(200, OPEN_PAGE, (("content-type", "text/html; charset=utf-8"),))
        return led_to.with_headers((("set-cookie", cookie),))


class LoopbackApp:
    """The console, and the login before it."""

    def __init__(self, console: Console, login: OneTimeLogin) -> None:
        self._console, self._login = console, login
        self._shell = WsgiShell(self.handle)

    def handle(self, request: ConsoleRequest) -> ConsoleResponse:
        if find_host(request)[0] not in LOCAL_NAMES:
            return say(403, "open this console by its address on this machine")
        if request.path == LOGIN_PATH and request.method == "GET":
            return harden(self._log_in(request))
        if self._login.authenticate(request) is None:
            return say(401, "open the link that the command printed; start the command again for a new one")
        return self._console.handle(request)

    def _log_in(self, request: ConsoleRequest) -> ConsoleResponse:
        try:
            return self._login.log_in(request)
        except UsageError as error:
            return say(400, str(error))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        return self._shell(environ, start_response)


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class _QuietHandler(WSGIRequestHandler):
    """Addresses hold keys and, once, the login token: they are not printed."""

    def log_message(self, format: str, *args: Any) -> None:
        pass


def open_server(app: LoopbackApp, port: int) -> WSGIServer:
    """A server that listens on this machine only. Port 0: any free one."""
    try:
        return make_server(HOST, port, app, server_class=_Server, handler_class=_QuietHandler)
    except OSError as error:
        raise UsageError(f"--port {port}: {error.strerror or error}; --port 0 takes a free one") from error
