"""The Django middleware. It captures; the view claims (decorators.py, drf.py).

It stands first in MIDDLEWARE, so what it stores is what goes out: after GZip, sessions and everything else. Inside it
are our own two middlewares, `web.wsgi` and `web.asgi`, around the rest of Django as their application: streaming,
tombstones, waiting, all of it is there once.

Django turns exceptions into answers before any middleware sees them, and tells `got_request_exception` of those nobody
expected. That is where we learn that a 500 is a failure and not an answer. The project's reporters hear it too.
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
from django.core.signals import got_request_exception  # type: ignore[import-untyped]  # Django ships no types
from django.urls import get_resolver, get_urlconf  # type: ignore[import-untyped]
from django.utils.log import log_response  # type: ignore[import-untyped]
from django.views.defaults import server_error  # type: ignore[import-untyped]

from retrysafe.web import asgi, wsgi
from retrysafe.web.django import bridge, conf, convert
from retrysafe.web.django.endpoint_entry import entry_of
from retrysafe.web.exchange import EXCHANGE
from retrysafe.web.paths import normalize_path

_log = logging.getLogger("django.request")
_CALL_KEY = "retrysafe.django"
_ERROR = "retrysafe_error"


class DjangoCall:
    """One request on its way through our middleware, and Django's answer to it."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self._pristine = dict(vars(request)), dict(request.META)
        self._reset()

    def _reset(self) -> None:
        self.response: Any = None
        self.gathered = False
        """Whether a streaming answer was read here, so that somebody has to stream it again."""
        self.rest: Any = None
        """What is left of it."""
        self.started: tuple[int, list[tuple[str, str]]] = (500, [])
        self.sent: list[bytes] = []

    def restore(self) -> None:
        """The request as it came to us, for a run that takes the place of one that was undone. In place: Django, and
        middleware before ours, hold this very object. What the first run has opened is closed, but the request is not
        over, so nobody is told that."""
        for closer in getattr(self.response, "_resource_closers", ()):
            with suppress(Exception):
                closer()
        self.request.close()
        attributes, meta = self._pristine
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
        """Whether somebody else than Django gives the answer."""
        return self.response is None or (exchange is not None and exchange.response is not None)

    def build_replacement(self) -> convert.ExactResponse:
        answer = convert.ExactResponse(*self.started, b"".join(self.sent))
        # What Django's answer holds open is closed at the end of the request, as ever.
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
        # One count, whichever colour a request has.
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
        carried, environ = DjangoCall(request), convert.environ_of(request)
        environ = {**environ, _CALL_KEY: carried}
        return self._finish_response(carried, environ, self._wsgi(environ, carried.start_response))

    def _is_unprotected(self, request: Any) -> bool:
        settings = self.settings
        return request.method not in settings.methods and not (settings.serves_status and request.method == "GET")

    # Plain ----------------------------------------------------------------------------------------

    def _wsgi_app(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        carried: DjangoCall = environ[_CALL_KEY]
        request = carried.request
        exchange = environ.get(EXCHANGE)
        if exchange is not None and exchange.reruns:
            carried.restore()
        setattr(request, bridge.EXCHANGE_ATTRIBUTE, exchange)
        if exchange is not None and not exchange.untouched:
            convert.hand_body(request, environ)
        carried.response = response = self.get_response(request)
        attach_entry_probe(exchange, request, response)
        error = failure_of(request, exchange)
        if error is not None and exchange is not None:
            bridge.settle_failure(exchange, error)
        start_response(convert.status_line(response), convert.header_pairs(response))
        if not response.streaming:
            return [response.content]
        carried.gathered = exchange is not None and exchange.claimed
        if not carried.gathered:
            return ()  # it passes by as it is
        return map(bytes, response)  # not the answer itself: closing that ends the request

    def _finish_response(self, carried: DjangoCall, environ: dict[str, Any], chunks: Iterable[bytes]) -> Any:
        exchange, response = environ.get(EXCHANGE), carried.response
        if carried.is_replaced(exchange):
            try:
                for chunk in chunks:
                    carried.sent.append(chunk)
            except Exception as error:  # a stream broke: the answer is ours, the error is Django's to report
                report_late_failure(carried.request, carried.build_replacement(), error)
            return carried.build_replacement()
        if carried.gathered:
            response.streaming_content = chunks
        else:
            convert.exhaust(chunks)
        return add_extra_headers(response, exchange)

    def _call_captured_outside(self, request: Any) -> Any:
        exchange = bridge.find_captured(request)
        setattr(request, bridge.EXCHANGE_ATTRIBUTE, exchange)
        response = self.get_response(request)
        attach_entry_probe(exchange, request, response)
        error = failure_of(request, exchange)
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
            error = failure_of(request, exchange)
            if error is not None:
                await bridge.asettle_failure(exchange, error)
            return response
        carried = DjangoCall(request)
        return await self._arun_asgi(carried, {**convert.scope_of(request), _CALL_KEY: carried})

    async def _arun_asgi(self, carried: DjangoCall, scope: dict[str, Any]) -> Any:
        request, limit = carried.request, self.settings.max_body
        body: bytes | None = None

        async def receive() -> Any:
            nonlocal body
            if body is not None:
                await asyncio.Event().wait()  # Django itself watches for the client
            body = convert.read_remembered_body(request, limit)
            return {"type": "http.request", "body": body, "more_body": False}

        try:
            await self._asgi(scope, receive, carried.send)
        except Exception as error:
            exchange = getattr(request, bridge.EXCHANGE_ATTRIBUTE, None)
            if exchange is None or exchange.response is None:
                raise
            report_late_failure(request, carried.build_replacement(), error)
        exchange = getattr(request, bridge.EXCHANGE_ATTRIBUTE, None)
        if carried.is_replaced(exchange):
            return carried.build_replacement()
        if carried.rest is not None:
            carried.response.streaming_content = carried.rest
        return add_extra_headers(carried.response, exchange)

    async def _asgi_app(self, scope: Any, receive: Any, send: Any) -> None:
        carried: DjangoCall = scope[_CALL_KEY]
        request = carried.request
        exchange = scope.get(EXCHANGE)
        rerun = exchange is not None and exchange.reruns > 0
        if rerun:
            carried.restore()
        setattr(request, bridge.EXCHANGE_ATTRIBUTE, exchange)
        if exchange is not None and not exchange.untouched:
            body = await receive()  # now: the view may read it before it claims
            if rerun and not hasattr(request, "_body"):
                request._stream = io.BytesIO(body["body"])
        carried.response = response = await self.get_response(request)
        attach_entry_probe(exchange, request, response)
        error = failure_of(request, exchange)
        if error is not None and exchange is not None:
            await bridge.asettle_failure(exchange, error)
        headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in convert.header_pairs(response)]
        await send({"type": "http.response.start", "status": response.status_code, "headers": headers})
        if not response.streaming:
            await send({"type": "http.response.body", "body": response.content})
        elif exchange is not None and exchange.claimed:
            await self._gather_stream(carried, exchange, send)

    async def _gather_stream(self, carried: DjangoCall, exchange: Any, send: Any) -> None:
        """Hold a streaming answer back until it is stored, or has left its tombstone."""
        response = carried.response
        pieces = aiter(response) if response.is_async else to_async(await sync_to_async(lambda: list(response))())
        async for chunk in pieces:
            await send({"type": "http.response.body", "body": bytes(chunk), "more_body": True})
            if carried.sent:  # it passes by from here on
                if exchange.claimed:
                    await exchange.settle(exchange.release_flow())
                carried.rest = chain_chunks(list(carried.sent), pieces)
                return
        await send({"type": "http.response.body", "body": b""})
        carried.rest = to_async(carried.sent)


def attach_entry_probe(exchange: bridge.AnyExchange | None, request: Any, response: Any) -> None:
    """Let the resolver tell whether a view was entered, if anybody has to know."""
    if exchange is not None and exchange.claimed:
        exchange.entry_probe = partial(entry_of, request, response)


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


# Failures -------------------------------------------------------------------------------------------


def note_failure(*, request: Any = None, **_: Any) -> None:
    """Django met an exception nobody expected: keep it for the middleware."""
    if request is not None and getattr(request, bridge.EXCHANGE_ATTRIBUTE, None) is not None and not has_own_page():
        setattr(request, _ERROR, sys.exc_info()[1])


def has_own_page() -> bool:
    """Whether the project answers a 500 by a handler of its own: then that is the answer, and is stored as it is."""
    with suppress(Exception):
        handler: object = get_resolver(get_urlconf()).resolve_error_handler(500)
        return handler is not server_error
    return False


def failure_of(request: Any, exchange: bridge.AnyExchange | None) -> BaseException | None:
    """What is to be settled as a failure, if anything is left to settle."""
    error: BaseException | None = getattr(request, _ERROR, None)
    return error if exchange is not None and exchange.claimed else None


def report_late_failure(request: Any, response: Any, error: Exception) -> None:
    """An answer broke after its view had returned. Django would have left that to the server."""
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
