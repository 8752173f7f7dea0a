"""httpx transports that wrap another transport and retry, sync and async.

    httpx.Client(transport=RetryTransport())
    httpx.AsyncClient(transport=AsyncRetryTransport())

The caller gets what httpx always returns: a response, or httpx's own exception with a note that names the key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx

from retrysafe.client.budget import Budget
from retrysafe.client.decide import AnsweredAttempt, AttemptResult, FailedAttempt, Reach
from retrysafe.client.errors import UnrepeatableBody, is_untrusted_certificate
from retrysafe.client.flow import (
    CallResult,
    ClientCall,
    ClientState,
    RequestInfo,
    adrive,
    annotate,
    build_client_state,
    call_flow,
    drive,
)
from retrysafe.client.journal import Journal
from retrysafe.client.settings import Clock, Retries
from retrysafe.client.unanswered import UnansweredByStream

LIVE_MEDIA_TYPES = ("text/event-stream", "application/x-ndjson", "application/jsonl", "multipart/x-mixed-replace")
"""Streaming answers. They are passed on at once: waiting for their end would defeat their purpose."""


class RetryTransport(httpx.BaseTransport):
    """Retries requests that are safe to retry, with one key per logical operation.

    `transport` sends the requests (TLS, proxies, limits and HTTP/2 are configured there). `journal` keeps keys over a
    restart. `budget` may be shared between clients.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        retries: Retries | None = None,
        journal: Journal | str | Path | None = None,
        budget: Budget | None = None,
        ambient: Clock | None = None,
    ) -> None:
        self.inner = transport or httpx.HTTPTransport()
        self.state = build_client_state(retries, journal, budget, ambient)
        self._unanswered = UnansweredByStream()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if can_buffer(request, self.state.retries):
            request.read()
        call = ClientCall(describe_request(request, self.state), self.state, self._unanswered.find(request.stream))
        try:
            result = drive(
                call_flow(call), HttpxAttemptTransport(self, copy_request(request)), self.state.ambient.sleep
            )
        finally:
            self._unanswered.remember(request.stream, call.get_unanswered())
        return return_or_raise(result, call.request)

    def close(self) -> None:
        self.inner.close()
        self.state.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """`RetryTransport` for `httpx.AsyncClient`."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        retries: Retries | None = None,
        journal: Journal | str | Path | None = None,
        budget: Budget | None = None,
        ambient: Clock | None = None,
    ) -> None:
        self.inner = transport or httpx.AsyncHTTPTransport()
        self.state = build_client_state(retries, journal, budget, ambient)
        self._unanswered = UnansweredByStream()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if can_buffer(request, self.state.retries):
            await request.aread()
        call = ClientCall(describe_request(request, self.state), self.state, self._unanswered.find(request.stream))
        try:
            result = await adrive(call_flow(call), AsyncHttpxAttemptTransport(self, copy_request(request)))
        finally:
            self._unanswered.remember(request.stream, call.get_unanswered())
        return return_or_raise(result, call.request)

    async def aclose(self) -> None:
        await self.inner.aclose()
        self.state.close()


# Requests ---------------------------------------------------------------------------------------


def can_buffer(request: httpx.Request, retries: Retries) -> bool:
    """True if a stream is to be read into memory, so that it can be sent again: its length is known and within the
    limit."""
    if content_or_none(request) is not None or not retries.is_keyed(request.method):
        return False
    length = request.headers.get("content-length", "")
    return length.isdigit() and int(length) <= retries.max_body


def content_or_none(request: httpx.Request) -> bytes | None:
    try:
        return request.content
    except httpx.RequestNotRead:
        return None


def describe_request(request: httpx.Request, state: ClientState) -> RequestInfo:
    body, retries = content_or_none(request), state.retries
    method, url = request.method.upper(), request.url
    path = url.raw_path.partition(b"?")[0].decode("latin-1")  # as it is sent: `/a%2Fb` is not `/a/b`
    if body is None and retries.is_keyed(method) and retries.streams == "refuse":
        raise UnrepeatableBody(method, f"{url.host}{path}", retries.max_body)
    given = request.headers.get(retries.header) if retries.is_keyed(method) else None
    kind = request.headers.get("content-type", "")
    query = url.query.decode("latin-1")
    return RequestInfo(method, url.host, path, query, kind, body, given, url.scheme, url.port)


def copy_request(request: httpx.Request) -> httpx.Request:
    """A copy to send with the key. The caller's own request is not changed and may be sent again."""
    copy = httpx.Request(
        request.method, request.url, headers=request.headers, stream=request.stream, extensions=request.extensions
    )
    if content_or_none(request) is not None:
        copy.read()
    return copy


def return_or_raise(result: CallResult, request: RequestInfo) -> httpx.Response:
    """Return the response of the last attempt, or raise its error."""
    if isinstance(result.attempt, FailedAttempt):
        annotate(result.attempt.error, request, result.log)
        raise result.attempt.error
    response: httpx.Response = result.attempt.raw
    response.extensions["retrysafe"] = result.log
    return response


def classify_error(error: httpx.TransportError) -> Reach:
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or is_untrusted_certificate(error):
        return "hopeless"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return "unsent"
    return "unclear"


# Answers ----------------------------------------------------------------------------------------


def should_read(response: httpx.Response, request: httpx.Request, retries: Retries) -> bool:
    """True if the answer is read here, so that a connection that breaks in the middle of the body is retried too."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_stream_consumed:  # the wrapped transport has read it already
        return False
    return retries.is_keyed(request.method) and retries.max_answer > 0 and kind not in LIVE_MEDIA_TYPES


def rebuild_response(response: httpx.Response, stream: httpx.SyncByteStream | httpx.AsyncByteStream) -> httpx.Response:
    return httpx.Response(
        response.status_code, headers=response.headers, stream=stream, extensions=dict(response.extensions)
    )


def build_answered(response: httpx.Response, body: bytes | None) -> AnsweredAttempt:
    """`body` is the raw body. Only the body of an error is decoded: the decision may need it."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    decoded = response.content if response.is_stream_consumed else b""
    if body and response.status_code >= 400:
        try:
            decoded = httpx.Response(200, headers=response.headers, content=body).content
        except httpx.DecodingError:
            decoded = b""  # the caller gets the error when it reads the body
    return AnsweredAttempt(response.status_code, headers, decoded, response)


class PrefetchedStream(httpx.SyncByteStream):
    """A large answer: the parts that were read already, then the rest of the stream."""

    def __init__(self, parts: list[bytes], rest: Iterator[bytes], whole: httpx.SyncByteStream) -> None:
        self._parts, self._rest, self._whole = parts, rest, whole

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        yield from self._rest

    def close(self) -> None:
        self._whole.close()


class AsyncPrefetchedStream(httpx.AsyncByteStream):
    """`PrefetchedStream` for async answers."""

    def __init__(self, parts: list[bytes], rest: AsyncIterator[bytes], whole: httpx.AsyncByteStream) -> None:
        self._parts, self._rest, self._whole = parts, rest, whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        async for part in self._rest:
            yield part

    async def aclose(self) -> None:
        await self._whole.aclose()


# Attempts ---------------------------------------------------------------------------------------


class HttpxAttemptTransport:
    """Sends the attempts of one request."""

    def __init__(self, owner: RetryTransport, request: httpx.Request) -> None:
        self._inner, self._retries, self._request = owner.inner, owner.state.retries, request

    def send(self, key: str | None) -> AttemptResult:
        if key is not None:
            self._request.headers[self._retries.header] = key
        try:
            response = self._inner.handle_request(self._request)
            if not should_read(response, self._request, self._retries):
                return build_answered(response, None)
            return self._read(response)
        except httpx.TransportError as error:
            return FailedAttempt(error, classify_error(error))

    def _read(self, response: httpx.Response) -> AnsweredAttempt:
        whole = response.stream
        assert isinstance(whole, httpx.SyncByteStream)
        parts, size, wire = [], 0, iter(whole)
        try:
            for part in wire:
                parts.append(part)
                size += len(part)
                if size > self._retries.max_answer:
                    return build_answered(rebuild_response(response, PrefetchedStream(parts, wire, whole)), None)
        except BaseException:
            whole.close()
            raise
        whole.close()
        body = b"".join(parts)
        return build_answered(rebuild_response(response, httpx.ByteStream(body)), body)

    def discard(self, attempt: AnsweredAttempt) -> None:
        attempt.raw.close()


class AsyncHttpxAttemptTransport:
    """`HttpxAttemptTransport` for `httpx.AsyncClient`."""

    def __init__(self, owner: AsyncRetryTransport, request: httpx.Request) -> None:
        self._inner, self._retries, self._request = owner.inner, owner.state.retries, request
        self._async_sleep = owner.state.ambient.asleep or anyio.sleep

    async def send(self, key: str | None) -> AttemptResult:
        if key is not None:
            self._request.headers[self._retries.header] = key
        try:
            response = await self._inner.handle_async_request(self._request)
            if not should_read(response, self._request, self._retries):
                return build_answered(response, None)
            return await self._read(response)
        except httpx.TransportError as error:
            return FailedAttempt(error, classify_error(error))

    async def _read(self, response: httpx.Response) -> AnsweredAttempt:
        whole = response.stream
        assert isinstance(whole, httpx.AsyncByteStream)
        parts, size, wire = [], 0, whole.__aiter__()
        try:
            async for part in wire:
                parts.append(part)
                size += len(part)
                if size > self._retries.max_answer:
                    return build_answered(rebuild_response(response, AsyncPrefetchedStream(parts, wire, whole)), None)
        except BaseException:
            await whole.aclose()
            raise
        await whole.aclose()
        body = b"".join(parts)
        return build_answered(rebuild_response(response, httpx.ByteStream(body)), body)

    async def discard(self, attempt: AnsweredAttempt) -> None:
        await attempt.raw.aclose()

    async def sleep(self, seconds: float) -> None:
        await self._async_sleep(seconds)

    async def run_blocking(self, function: Callable[[], Any]) -> Any:
        # In a thread: a commit waits for the disk and would block the event loop.
        return await anyio.to_thread.run_sync(function)
