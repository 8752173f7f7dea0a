"""The Django middleware. It captures answers; the view claims the key (decorators.py, drf.py).

It is first in MIDDLEWARE, so it stores what is really sent, after GZip, sessions and all other middleware. It uses our
WSGI and ASGI middlewares, with the rest of Django as their application, so streaming, tombstones and waiting are
implemented once.

Django turns exceptions into answers before any middleware sees them, and sends `got_request_exception` for unhandled
ones. From that signal we know that a 500 is a failure and not an answer. Error reporters of the project get it, too.
"""

from __future__ import annotations

import asyncio
import io
import logging
import sys
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import partial
from typing import Any

from asgiref.sync import iscoroutinefunction, markcoroutinefunction, sync_to_async
from django.conf import settings as django_settings  # type: ignore[import-untyped]  # Django ships no types
from django.core.signals import got_request_exception  # type: ignore[import-untyped]
from django.urls import Resolver404, get_resolver, get_urlconf, resolve  # type: ignore[import-untyped]
from django.utils.log import log_response  # type: ignore[import-untyped]
from django.views.defaults import server_error  # type: ignore[import-untyped]

from retrysafe.web import asgi, wsgi
from retrysafe.web.django import bridge, conf, convert
from retrysafe.web.endpoint_entry import ENTERED, REDIRECTED, REFUSED, UNKNOWN, EndpointEntry
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.paths import normalize_path

_log = logging.getLogger("django.request")
_CALL_KEY = "retrysafe.django"
_ERROR = "retrysafe_error"


class DjangoCall:
    """One request on its way through our middleware, and Django's answer to it."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self._snapshot = dict(vars(request)), dict(request.META)
        self._reset()

    def _reset(self) -> None:
        self.response: Any = None
        self.gathered = False
        """True if a streaming answer was read here, so that it must be streamed again."""
        self.rest: Any = None
        """The rest of a streaming answer."""
        self.started: tuple[int, list[tuple[str, str]]] = (500, [])
        self.sent: list[bytes] = []

    def restore(self) -> None:
        """Restore the request as it came, for the next run after a rollback. It is changed in place, because Django and
        outer middleware hold the same object. Resources of the first run are closed, but without Django's signal
        `request_finished`: the request has not ended."""
        for closer in getattr(self.response, "_resource_closers", ()):
            with suppress(Exception):
                closer()
        self.request.close()
        attributes, meta = self._snapshot
        vars(self.request).clear()
        vars(self.request).update(attributes)
        self.request.META.clear()
        self.request.META.update(meta)
        self._reset()

    def start_response(self, line: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Callable[..., None]:
        self.started = int(line[:3]), headers
        return self.sent.append

    async def send(self, message: Any) -> None:
        if message["type"] == "http.response.start":
            headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message["headers"]]
            self.started = message["status"], headers
        elif message["type"] == "http.response.body":
            self.sent.append(message.get("body", b""))

    def is_replaced(self, exchange: bridge.AnyExchange | None) -> bool:
        """True if the answer is not Django's."""
        return self.response is None or (exchange is not None and exchange.response is not None)

    def build_replacement(self) -> convert.ExactResponse:
        answer = convert.ExactResponse(*self.started, b"".join(self.sent))
        # Resources of Django's answer are closed at the end of the request.
        answer._resource_closers.extend(getattr(self.response, "_resource_closers", ()))
        return answer


class IdempotencyMiddleware:
    """See the module; the options are in the setting RETRYSAFE (conf.py)."""

    sync_capable = True
    async_capable = True

    def __init__(self, get_response: Callable[[Any], Any]) -> None:
        self.get_response = get_response
        options = conf.options()
        self._wsgi = wsgi.IdempotencyMiddleware(self._wsgi_app, safe=conf.safe(), **options)
        self._asgi = asgi.IdempotencyMiddleware(self._asgi_app, safe=conf.safe(), **options)
        # Shared, so that sync and async requests are counted together.
        self.settings = self._asgi.settings = self._wsgi.settings
        self.is_async = iscoroutinefunction(get_response)
        if self.is_async:
            markcoroutinefunction(self)
        got_request_exception.connect(note_failure, dispatch_uid="retrysafe.web.django")

    def __call__(self, request: Any) -> Any:
        if self.is_async:
            return self._acall(request)
        if self._is_unprotected(request):
            return self.get_response(request)
        if bridge.find_captured(request) is not None:
            return self._call_captured_outside(request)
        call, environ = DjangoCall(request), convert.build_environ(request)
        environ = {**environ, _CALL_KEY: call}
        return self._finish_response(call, environ, self._wsgi(environ, call.start_response))

    def _is_unprotected(self, request: Any) -> bool:
        settings = self.settings
        return request.method not in settings.methods and not (settings.serves_status and request.method == "GET")

    # Sync -----------------------------------------------------------------------------------------

    def _wsgi_app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        call: DjangoCall = environ[_CALL_KEY]
        request = call.request
        exchange = environ.get(EXCHANGE)
        if exchange is not None and exchange.reruns:
            call.restore()
        setattr(request, bridge.EXCHANGE_ATTRIBUTE, exchange)
        if exchange is not None and not exchange.uncaptured:
            convert.hand_body(request, environ)
        call.response = response = self.get_response(request)
        attach_entry_probe(exchange, request, response)
        error = find_failure(request, exchange)
        if error is not None and exchange is not None:
            bridge.settle_failure(exchange, error)
        start_response(convert.format_status_line(response), convert.list_headers(response))
        if not response.streaming:
            return [response.content]
        call.gathered = exchange is not None and exchange.claimed
        if not call.gathered:
            return ()  # it passes through unbuffered
        return map(bytes, response)  # not the response itself: closing it would end the request

    def _finish_response(self, call: DjangoCall, environ: dict[str, Any], chunks: Iterable[bytes]) -> Any:
        exchange, response = environ.get(EXCHANGE), call.response
        if call.is_replaced(exchange):
            try:
                for chunk in chunks:
                    call.sent.append(chunk)
            except Exception as error:  # a stream failed: we answer, and Django reports the error
                report_late_failure(call.request, call.build_replacement(), error)
            return call.build_replacement()
        if call.gathered:
            response.streaming_content = chunks
        else:
            convert.exhaust(chunks)
        return add_extra_headers(response, exchange)

    def _call_captured_outside(self, request: Any) -> Any:
        exchange = bridge.find_captured(request)
        setattr(request, bridge.EXCHANGE_ATTRIBUTE, exchange)
        response = self.get_response(request)
        attach_entry_probe(exchange, request, response)
        error = find_failure(request, exchange)
        if error is not None and exchange is not None:
            bridge.settle_failure(exchange, error)
        return response

    # Async ----------------------------------------------------------------------------------------

    async def _acall(self, request: Any) -> Any:
        if self._is_unprotected(request):
            return await self.get_response(request)
        exchange = bridge.find_captured(request)
        if exchange is not None:
            setattr(request, bridge.EXCHANGE_ATTRIBUTE, exchange)
            response = await self.get_response(request)
            attach_entry_probe(exchange, request, response)
            error = find_failure(request, exchange)
            if error is not None:
                await bridge.asettle_failure(exchange, error)
            return response
        call = DjangoCall(request)
        return await self._arun_asgi(call, {**convert.build_scope(request), _CALL_KEY: call})

    async def _arun_asgi(self, call: DjangoCall, scope: dict[str, Any]) -> Any:
        request, limit = call.request, self.settings.max_body
        body: bytes | None = None

        async def receive() -> Any:
            nonlocal body
            if body is not None:
                await asyncio.Event().wait()  # Django itself watches for a disconnect
            body = convert.read_remembered_body(request, limit)
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            await self._asgi(scope, receive, call.send)
        except Exception as error:
            exchange = getattr(request, bridge.EXCHANGE_ATTRIBUTE, None)
            if exchange is None or exchange.response is None:
                raise
            report_late_failure(request, call.build_replacement(), error)
        exchange = getattr(request, bridge.EXCHANGE_ATTRIBUTE, None)
        if call.is_replaced(exchange):
            return call.build_replacement()
        if call.rest is not None:
            call.response.streaming_content = call.rest
        return add_extra_headers(call.response, exchange)

    async def _asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        call: DjangoCall = scope[_CALL_KEY]
        request = call.request
        exchange = scope.get(EXCHANGE)
        rerun = exchange is not None and exchange.reruns > 0
        if rerun:
            call.restore()
        setattr(request, bridge.EXCHANGE_ATTRIBUTE, exchange)
        if exchange is not None and not exchange.uncaptured:
            body = await receive()  # now, because the view may read it before it claims
            if rerun and not hasattr(request, "_body"):
                request._stream = io.BytesIO(body["body"])
        call.response = response = await self.get_response(request)
        attach_entry_probe(exchange, request, response)
        error = find_failure(request, exchange)
        if error is not None and exchange is not None:
            await bridge.asettle_failure(exchange, error)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in convert.list_headers(response)]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        if not response.streaming:
            await send({"type": "http.response.body", "body": response.content})
        elif exchange is not None and exchange.claimed:
            await self._gather_stream(call, exchange, send)

    async def _gather_stream(self, call: DjangoCall, exchange: Any, send: Any) -> None:
        """Buffer a streaming answer until it or its tombstone is stored."""
        response = call.response
        pieces = aiter(response) if response.is_async else to_async(await sync_to_async(lambda: list(response))())
        async for chunk in pieces:
            await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
            if call.sent:  # from here on it passes through
                if exchange.claimed:
                    await exchange.settle(exchange.release_flow())
                call.rest = chain_chunks(list(call.sent), pieces)
                return
        await send({"type": "http.response.body", "body": b""})
        call.rest = to_async(call.sent)


def attach_entry_probe(exchange: bridge.AnyExchange | None, request: Any, response: Any) -> None:
    """Let the exchange ask the URL resolver whether a view was entered. Only needed for a claimed request."""
    if exchange is not None and exchange.claimed:
        exchange.entry_probe = partial(find_entry, request, response)


def add_extra_headers(response: Any, exchange: bridge.AnyExchange | None) -> Any:
    for name, value in exchange.extra_headers() if exchange is not None else ():
        response[name] = value
    return response


async def to_async(chunks: Iterable[bytes]) -> Any:
    for chunk in chunks:
        yield chunk


async def chain_chunks(head: list[bytes], rest: Any) -> Any:
    for chunk in head:
        yield chunk
    async for chunk in rest:
        yield chunk


# Endpoint entry -----------------------------------------------------------------------------------


def find_entry(request: Any, response: Any, code: int) -> EndpointEntry:
    """Whether a view was entered. The resolver refused the request if it has no view for the path and the answer is its
    own; a middleware that answered instead may have done anything. DRF validates a request inside its view, so it
    counts as entered."""
    if request.resolver_match is not None:
        return ENTERED
    try:
        resolve(request.path_info, getattr(request, "urlconf", None) or get_urlconf())
    except Resolver404:
        return _entry_from_answer(request, response, code)
    return UNKNOWN


def _entry_from_answer(request: Any, response: Any, code: int) -> EndpointEntry:
    if code == 404:
        return REFUSED
    with_slash = django_settings.APPEND_SLASH and response.get("Location") == request.get_full_path(
        force_append_slash=True
    )
    return REDIRECTED if with_slash and 300 <= code < 400 else UNKNOWN


# Failures -------------------------------------------------------------------------------------------


def note_failure(*, request: Any = None, **_: Any) -> None:
    """Django got an unhandled exception: keep it for the middleware."""
    if request is not None and getattr(request, bridge.EXCHANGE_ATTRIBUTE, None) is not None and not has_own_page():
        setattr(request, _ERROR, sys.exc_info()[1])


def has_own_page() -> bool:
    """True if the project has its own handler for 500. Its page is then the answer and is stored."""
    with suppress(Exception):
        handler: object = get_resolver(get_urlconf()).resolve_error_handler(500)
        return handler is not server_error
    return False


def find_failure(request: Any, exchange: bridge.AnyExchange | None) -> BaseException | None:
    """The exception to settle the claim with, if there is one and the claim is not settled."""
    error: BaseException | None = getattr(request, _ERROR, None)
    return error if exchange is not None and exchange.claimed else None


def report_late_failure(request: Any, response: Any, error: Exception) -> None:
    """Report an answer that failed after its view returned. Without us the server would report it."""
    got_request_exception.send(sender=IdempotencyMiddleware, request=request)
    log_response(
        "%s: %s",
        response.reason_phrase,
        normalize_path(request.path),
        response=response,
        request=request,
        logger=_log,
        exception=error,
    )
