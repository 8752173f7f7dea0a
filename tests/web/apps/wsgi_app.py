"""The reference application as bare WSGI; `app` claims at the edge, `deferred` when the handler asks.

`python -m tests.web.apps.wsgi_app PORT` serves `app` with wsgiref, one thread for each request.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from http import HTTPStatus
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer, make_server

from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.wsgi import IdempotencyMiddleware
from tests.web.apps import reference

safe = reference.make_safe()


def begin(start_response: Any, reply: reference.Reply) -> Iterable[bytes]:
    headers = list(reply.headers)
    if not reply.streamed and reply.status not in (204, 304):
        headers.append(("Content-Length", str(len(reply.body))))
    start_response(f"{reply.status} {HTTPStatus(reply.status).phrase}", headers)
    yield from reply.chunks


def handler(environ: Any, start_response: Any) -> Iterable[bytes]:
    if environ["PATH_INFO"] == "/health":
        return begin(start_response, reference.Reply.json(200, {"ok": True}))
    account = environ.get("account") or asked(environ)
    endless = environ.get("wsgi.input_terminated")
    body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or (-1 if endless else 0)))
    tag, query = environ.get("HTTP_X_TAG", "-"), environ.get("QUERY_STRING", "")
    reply = reference.handle(environ["REQUEST_METHOD"], environ["PATH_INFO"], query, tag, account, body)
    if environ["PATH_INFO"] == "/echo-bytes":  # the legacy `write` callable
        write = start_response("200 OK", [*reply.headers, ("Content-Length", str(len(body)))])
        write(body)
        return []
    return begin(start_response, reply)


def asked(environ: Any) -> str:
    account = reference.authenticate(environ.get("HTTP_AUTHORIZATION"))
    name = reference.endpoint(environ["REQUEST_METHOD"], environ["PATH_INFO"])
    environ[EXCHANGE].claim(account, reference.POLICIES.get(name, reference.DEFAULT), target=name)
    return account


def authenticated(inner: Any, *, here: bool) -> Any:
    def outer(environ: Any, start_response: Any) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/health":
            return inner(environ, start_response)  # type: ignore[no-any-return]  # any application
        try:
            if here:
                environ["account"] = reference.authenticate(environ.get("HTTP_AUTHORIZATION"))
            return inner(environ, start_response)  # type: ignore[no-any-return]
        except reference.Refused as refusal:
            return begin(start_response, reference.Reply.json(refusal.status, {"error": "refused"}))

    return outer


app = authenticated(
    IdempotencyMiddleware(
        handler,
        safe=safe,
        scope=lambda request: request.raw["account"],
        policy=reference.DEFAULT,
        routes=reference.POLICIES,
    ),
    here=True,
)
deferred = IdempotencyMiddleware(
    authenticated(handler, here=False),
    safe=safe,
    status_scope=reference.known_account,
)


class Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True


class Quiet(WSGIRequestHandler):
    protocol_version = "HTTP/1.0"

    def log_message(self, format: str, *args: Any) -> None:
        """Log only errors."""


if __name__ == "__main__":
    make_server("127.0.0.1", int(sys.argv[1]), app, Server, Quiet).serve_forever()
