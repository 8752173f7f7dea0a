"""The WSGI shell: for Flask, and for the loopback server of `retrysafe console`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Any

from retrysafe.console.headers import CUT_SHORT, find_bad_length, list_headers
from retrysafe.console.messages import ConsoleRequest, ConsoleResponse

Environ = dict[str, Any]
StartResponse = Callable[..., Any]
WsgiApp = Callable[[Environ, StartResponse], Iterable[bytes]]


class WsgiShell:
    def __init__(self, handle: Callable[[ConsoleRequest], ConsoleResponse]) -> None:
        self._handle = handle

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        body = read_body(environ)
        response = self._handle(build_request(environ, body)) if isinstance(body, bytes) else body
        phrase = HTTPStatus(response.status).phrase
        start_response(f"{response.status} {phrase}", list_headers(response))
        return [response.body]


def build_request(environ: Environ, body: bytes) -> ConsoleRequest:
    headers = {
        name[5:].replace("_", "-").lower(): str(value) for name, value in environ.items() if name.startswith("HTTP_")
    }
    for name in ("CONTENT_TYPE", "CONTENT_LENGTH"):
        if environ.get(name):
            headers[name.replace("_", "-").lower()] = str(environ[name])
    # WSGI has paths as bytes that were read as latin-1.
    path = str(environ.get("PATH_INFO", "")).encode("latin-1").decode("utf-8", "replace")
    mount = str(environ.get("SCRIPT_NAME", "")).encode("latin-1").decode("utf-8", "replace").rstrip("/")
    query = str(environ.get("QUERY_STRING", ""))
    return ConsoleRequest(str(environ["REQUEST_METHOD"]), path or "/", query, headers, body, mount, environ)


def read_body(environ: Environ) -> bytes | ConsoleResponse:
    """The whole body, or why it is refused."""
    declared = str(environ.get("CONTENT_LENGTH") or "")
    refusal = find_bad_length(declared)
    if refusal is not None:
        return refusal
    length = int(declared or 0)
    try:
        body = bytes(environ["wsgi.input"].read(length)) if length else b""
    except Exception:  # the client went away; each server has its own errors for that
        return CUT_SHORT
    return body if len(body) == length else CUT_SHORT


def mount_beside(app: WsgiApp, console: WsgiApp, path: str) -> WsgiApp:
    """Below `path` the console answers, everywhere else the application."""
    prefix = "/" + path.strip("/").encode().decode("latin-1")

    def choose(environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        found = str(environ.get("PATH_INFO", ""))
        if found != prefix and not found.startswith(f"{prefix}/"):
            return app(environ, start_response)
        script = str(environ.get("SCRIPT_NAME", "")) + prefix
        return console({**environ, "SCRIPT_NAME": script, "PATH_INFO": found[len(prefix) :]}, start_response)

    return choose
