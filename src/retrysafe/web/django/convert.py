"""Django's requests and answers, carried to our middlewares and back."""

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
from retrysafe.web.django.bridge import exchange_of
from retrysafe.web.paths import RAW_PATH, target_of


class ExactResponse(HttpResponse):  # type: ignore[misc]  # untyped base
    """An answer of ours as Django's. Its headers are a list: a replay may have two lines of one name."""

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
    """What the exchange has to say instead of the view. The middleware sends it in any case."""
    exchange = exchange_of(request)
    assert exchange is not None, "only a claim is refused"
    assert exchange.response is not None, "a refusal leaves its answer"
    return to_django_response(exchange.response)


def header_pairs(response: Any) -> list[tuple[str, str]]:
    """The header lines Django's handlers will send, cookies included."""
    cookies = [("Set-Cookie", morsel.OutputString()) for morsel in response.cookies.values()]
    return [*((str(name), str(value)) for name, value in response.items()), *cookies]


def status_line(response: Any) -> str:
    return f"{response.status_code} {response.reason_phrase}"


# The request body -----------------------------------------------------------------------------------


def environ_of(request: Any) -> dict[str, Any]:
    """What the WSGI middleware reads. A plain middleware may also meet ASGI's requests: Django mixes the colours."""
    if "wsgi.input" in request.META:
        environ: dict[str, Any] = request.META
    else:
        environ = {**request.META, "wsgi.input_terminated": True, "wsgi.input": request._stream}
        # Django's META has the path as text here and not as PEP 3333 wants it; of that, text beyond latin-1 is lost.
        raw: bytes = request.scope.get("raw_path") or b""
        environ[RAW_PATH] = raw if unquote(raw) == request.path else quote(request.path).encode()
    if hasattr(request, "_body"):
        environ = {**environ, "wsgi.input": io.BytesIO(request.body), "wsgi.input_terminated": True}
    return environ


def scope_of(request: Any) -> dict[str, Any]:
    """What the ASGI middleware reads. Django's test client writes the query as text."""
    query = request.scope.get("query_string", b"")
    return {**request.scope, "query_string": query.encode("latin-1") if isinstance(query, str) else query}


def hand_body(request: Any, environ: dict[str, Any]) -> None:
    """Let the view read what is remembered, instead of what is behind it."""
    if hasattr(request, "_body"):
        return  # it was read before us, and Django remembers it
    if getattr(request, "_read_started", False):
        raise _read_too_early_error(request)
    declared = str(environ.get("CONTENT_LENGTH") or "")
    endless = sys.maxsize if environ.get("wsgi.input_terminated") and not declared else 0
    length = int(declared) if declared.isdecimal() else endless
    request._stream = LimitedStream(environ["wsgi.input"], length)


def read_remembered_body(request: Any, limit: int) -> bytes:
    """The whole body of an ASGI request, which Django has received before any middleware. More than `limit` bytes are
    not held here: one more than that is enough to refuse it."""
    if hasattr(request, "_body"):
        body: bytes = request.body
        return body
    if request._read_started:
        raise _read_too_early_error(request)
    behind = request._stream
    head: bytes = behind.read(limit + 1)
    request._stream = (
        io.BytesIO(head) if len(head) <= limit else LimitedStream(ChainedStream(head, behind), sys.maxsize)
    )
    return head


class ChainedStream:
    """What was read already, then the rest as it comes."""

    def __init__(self, head: bytes, rest: Any) -> None:
        self._head = io.BytesIO(head)
        self._rest = rest

    def read(self, size: int = -1) -> bytes:
        data = self._head.read(size)
        wanted = size - len(data) if size >= 0 else -1
        return data + bytes(self._rest.read(wanted)) if wanted else data

    def readline(self, size: int = -1) -> bytes:
        line = self._head.readline(size)
        if line.endswith(b"\n") or 0 <= size <= len(line):
            return line
        return line + bytes(self._rest.readline())


def _read_too_early_error(request: Any) -> UsageError:
    return UsageError(
        f"{target_of(request.method, request.path)}: a middleware before ours has read the request's body as a stream; "
        "put 'retrysafe.web.django.IdempotencyMiddleware' first in MIDDLEWARE"
    )


def exhaust(chunks: Iterable[bytes]) -> None:
    """Run an answer to its end; what is between us and the server does its last things there."""
    try:
        for _ in chunks:
            pass
    finally:
        close = getattr(chunks, "close", None)
        if close is not None:
            close()
