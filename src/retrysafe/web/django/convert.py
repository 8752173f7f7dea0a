"""Converts Django's requests and answers to those of our middlewares, and back."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote, unquote

from django.core.handlers.wsgi import LimitedStream  # type: ignore[import-untyped]  # Django ships no types
from django.http import HttpResponse  # type: ignore[import-untyped]

from retrysafe.errors import UsageError
from retrysafe.web.capture import HeaderPairs, Response
from retrysafe.web.django.bridge import require_exchange
from retrysafe.web.paths import RAW_PATH, build_target
from retrysafe.web.wsgi_body import ChainedStream


class ExactResponse(HttpResponse):  # type: ignore[misc]  # untyped base
    """One of our answers as a Django response. It may have several header lines of one name."""

    def __init__(self, status: int, headers: HeaderPairs, body: bytes) -> None:
        super().__init__(body, status=status)
        del self["Content-Type"]
        self._more: list[tuple[str, str]] = []
        for name, value in headers:
            if name in self:
                self._more.append((name, value))
            else:
                self[name] = value

    def items(self) -> list[tuple[str, str]]:
        return [*super().items(), *self._more]


def to_django_response(response: Response) -> ExactResponse:
    return ExactResponse(response.status, response.headers, response.body)


def build_own_response(request: Any) -> ExactResponse:
    """The answer of the exchange, which replaces the view's. The middleware sends it in any case."""
    exchange = require_exchange(request)
    assert exchange is not None, "only a claim is refused"
    assert exchange.response is not None, "a refusal leaves its answer"
    return to_django_response(exchange.response)


def list_headers(response: Any) -> list[tuple[str, str]]:
    """The header lines that Django's handlers will send, cookies included."""
    cookies = [("Set-Cookie", morsel.OutputString()) for morsel in response.cookies.values()]
    return [*((str(name), str(value)) for name, value in response.items()), *cookies]


def format_status_line(response: Any) -> str:
    return f"{response.status_code} {response.reason_phrase}"


# The request body -----------------------------------------------------------------------------------


def build_environ(request: Any) -> dict[str, Any]:
    """The environ for the WSGI middleware. It may also get an ASGI request: Django mixes sync and async middleware."""
    if "wsgi.input" in request.META:
        environ: dict[str, Any] = request.META
    else:
        environ = {**request.META, "wsgi.input_terminated": True, "wsgi.input": request._stream}
        # META has the path as decoded text here, not as PEP 3333 says. Characters beyond latin-1 would be lost.
        raw: bytes = request.scope.get("raw_path") or b""
        environ[RAW_PATH] = raw if unquote(raw) == request.path else quote(request.path).encode()
    if hasattr(request, "_body"):
        environ = {**environ, "wsgi.input": io.BytesIO(request.body), "wsgi.input_terminated": True}
    return environ


def build_scope(request: Any) -> dict[str, Any]:
    """The scope for the ASGI middleware. Django's test client writes the query as text."""
    query = request.scope.get("query_string", b"")
    return {**request.scope, "query_string": query.encode("latin-1") if isinstance(query, str) else query}


def hand_body(request: Any, environ: dict[str, Any]) -> None:
    """Let the view read the remembered body instead of the server's stream."""
    if hasattr(request, "_body"):
        return  # already read, and Django has kept it
    if getattr(request, "_read_started", False):
        raise _read_too_early_error(request)
    declared = str(environ.get("CONTENT_LENGTH") or "")
    endless = sys.maxsize if environ.get("wsgi.input_terminated") and not declared else 0
    length = int(declared) if declared.isdecimal() else endless
    request._stream = LimitedStream(environ["wsgi.input"], length)


def read_remembered_body(request: Any, limit: int) -> bytes:
    """The whole body of an ASGI request; Django receives it before any middleware runs. At most `limit + 1` bytes are
    read: that is enough to refuse a larger body."""
    if hasattr(request, "_body"):
        body: bytes = request.body
        return body
    if request._read_started:
        raise _read_too_early_error(request)
    stream = request._stream
    head: bytes = stream.read(limit + 1)
    request._stream = (
        io.BytesIO(head) if len(head) <= limit else LimitedStream(ChainedStream(head, stream), sys.maxsize)
    )
    return head


def _read_too_early_error(request: Any) -> UsageError:
    target = build_target(request.method, request.path)
    return UsageError(
        f"{target}: a middleware before ours has read the request's body as a stream; "
        "put 'retrysafe.web.django.IdempotencyMiddleware' first in MIDDLEWARE"
    )


def exhaust(chunks: Iterable[bytes]) -> None:
    """Iterate an answer to its end and close it, so that our WSGI middleware finishes its work."""
    try:
        for _ in chunks:
            pass
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
