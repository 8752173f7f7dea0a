"""httpx: a transport around the real one, sync and async.

    httpx.Client(transport=RetryTransport())
    httpx.AsyncClient(transport=AsyncRetryTransport())

What the caller sees is httpx as always: a response, or httpx's own exception with a note that names the key.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import httpx

from retrysafe.client.budget import Budget
from retrysafe.client.decide import Answered, Failed, Reach, Seen
from retrysafe.client.errors import UnrepeatableBody
from retrysafe.client.failures import untrusted
from retrysafe.client.journal import Journal
from retrysafe.client.pending import ByStream
from retrysafe.client.settings import Ambient, Retries
from retrysafe.client.story import Call, Ending, Kit, Request, adrive, annotate, drive, kit, tell

LIVE = ("text/event-stream", "application/x-ndjson", "application/jsonl", "multipart/x-mixed-replace")
"""Answers that are read while they are written: waiting for their end would defeat them."""


class RetryTransport(httpx.BaseTransport):
    """Retries what may be retried, with one key per logical operation.

    `transport` does the sending (TLS, proxies, limits and HTTP/2 are its business); `journal` keeps keys over a
    restart; `budget` may be shared between clients.
    """

    def __init__(
        self,
        transport: httpx.BaseTransport | None = None,
        *,
        retries: Retries | None = None,
        journal: Journal | str | Path | None = None,
        budget: Budget | None = None,
        ambient: Ambient | None = None,
    ) -> None:
        self.inner = transport or httpx.HTTPTransport()
        self.kit = kit(retries, journal, budget, ambient)
        self._unanswered = ByStream()

    def handle_request(self, request: httpx.Request) -> httpx.Response:
        if in_memory(request, self.kit.retries):
            request.read()
        call = Call(viewed(request, self.kit), self.kit, self._unanswered.find(request.stream))
        try:
            ending = drive(tell(call), Sync(self, copied(request)), self.kit.ambient.sleep)
        finally:
            self._unanswered.keep(request.stream, call.pending())
        return told(ending, call.request)

    def close(self) -> None:
        self.inner.close()
        self.kit.close()


class AsyncRetryTransport(httpx.AsyncBaseTransport):
    """`RetryTransport` for `httpx.AsyncClient`."""

    def __init__(
        self,
        transport: httpx.AsyncBaseTransport | None = None,
        *,
        retries: Retries | None = None,
        journal: Journal | str | Path | None = None,
        budget: Budget | None = None,
        ambient: Ambient | None = None,
    ) -> None:
        self.inner = transport or httpx.AsyncHTTPTransport()
        self.kit = kit(retries, journal, budget, ambient)
        self._unanswered = ByStream()

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        if in_memory(request, self.kit.retries):
            await request.aread()
        call = Call(viewed(request, self.kit), self.kit, self._unanswered.find(request.stream))
        try:
            ending = await adrive(tell(call), Async(self, copied(request)))
        finally:
            self._unanswered.keep(request.stream, call.pending())
        return told(ending, call.request)

    async def aclose(self) -> None:
        await self.inner.aclose()
        self.kit.close()


# Requests ---------------------------------------------------------------------------------------


def in_memory(request: httpx.Request, retries: Retries) -> bool:
    """Whether a stream is to be read, so that it can be sent again: its length is known, and not too much."""
    if content(request) is not None or not retries.keyed(request.method):
        return False
    length = request.headers.get("content-length", "")
    return length.isdigit() and int(length) <= retries.max_body


def content(request: httpx.Request) -> bytes | None:
    try:
        return request.content
    except httpx.RequestNotRead:
        return None


def viewed(request: httpx.Request, kit: Kit) -> Request:
    body, retries = content(request), kit.retries
    method, url = request.method.upper(), request.url
    path = url.raw_path.partition(b"?")[0].decode("latin-1")  # as it is sent: `/a%2Fb` is not `/a/b`
    if body is None and retries.keyed(method) and retries.streams == "refuse":
        raise UnrepeatableBody(method, f"{url.host}{path}", retries.max_body)
    given = request.headers.get(retries.header) if retries.keyed(method) else None
    kind = request.headers.get("content-type", "")
    query = url.query.decode("latin-1")
    return Request(method, url.host, path, query, kind, body, given, url.scheme, url.port)


def copied(request: httpx.Request) -> httpx.Request:
    """What goes over the wire with our key. The caller's own request stays as it is, and may be sent again."""
    ours = httpx.Request(
        request.method, request.url, headers=request.headers, stream=request.stream, extensions=request.extensions
    )
    if content(request) is not None:
        ours.read()
    return ours


def told(ending: Ending, view: Request) -> httpx.Response:
    if isinstance(ending.seen, Failed):
        annotate(ending.seen.error, view, ending.trail)
        raise ending.seen.error
    response: httpx.Response = ending.seen.raw
    response.extensions["retrysafe"] = ending.trail
    return response


def reach(error: httpx.TransportError) -> Reach:
    if isinstance(error, httpx.UnsupportedProtocol | httpx.LocalProtocolError) or untrusted(error):
        return "hopeless"
    if isinstance(error, httpx.ConnectError | httpx.ConnectTimeout | httpx.PoolTimeout):
        return "unsent"
    return "unclear"


# Answers ----------------------------------------------------------------------------------------


def worth_reading(response: httpx.Response, request: httpx.Request, retries: Retries) -> bool:
    """Whether an answer is read here, so that a connection that breaks in the middle of it is retried too."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
    if response.is_stream_consumed:  # a transport inside of ours has read it: its wire has nothing more to give
        return False
    return retries.keyed(request.method) and retries.max_answer > 0 and kind not in LIVE


def rebuilt(response: httpx.Response, stream: httpx.SyncByteStream | httpx.AsyncByteStream) -> httpx.Response:
    return httpx.Response(
        response.status_code, headers=response.headers, stream=stream, extensions=dict(response.extensions)
    )


def answered(response: httpx.Response, body: bytes | None) -> Answered:
    """`body` as it came over the wire; only what is an error may have to be looked into."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    inside = response.content if response.is_stream_consumed else b""
    if body and response.status_code >= 400:
        try:
            inside = httpx.Response(200, headers=response.headers, content=body).content
        except httpx.DecodingError:
            inside = b""  # the caller finds out when it reads it
    return Answered(response.status_code, headers, inside, response)


class Rest(httpx.SyncByteStream):
    """An answer that turned out to be large: what was read of it, then the rest of the wire."""

    def __init__(self, parts: list[bytes], rest: Iterator[bytes], whole: httpx.SyncByteStream) -> None:
        self._parts, self._rest, self._whole = parts, rest, whole

    def __iter__(self) -> Iterator[bytes]:
        yield from self._parts
        yield from self._rest

    def close(self) -> None:
        self._whole.close()


class AsyncRest(httpx.AsyncByteStream):
    def __init__(self, parts: list[bytes], rest: AsyncIterator[bytes], whole: httpx.AsyncByteStream) -> None:
        self._parts, self._rest, self._whole = parts, rest, whole

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for part in self._parts:
            yield part
        async for part in self._rest:
            yield part

    async def aclose(self) -> None:
        await self._whole.aclose()


# The hands --------------------------------------------------------------------------------------


class Sync:
    def __init__(self, owner: RetryTransport, request: httpx.Request) -> None:
        self._inner, self._retries, self._request = owner.inner, owner.kit.retries, request

    def send(self, key: str | None) -> Seen:
        if key is not None:
            self._request.headers[self._retries.header] = key
        try:
            response = self._inner.handle_request(self._request)
            if not worth_reading(response, self._request, self._retries):
                return answered(response, None)
            return self._read(response)
        except httpx.TransportError as error:
            return Failed(error, reach(error))

    def _read(self, response: httpx.Response) -> Answered:
        whole = response.stream
        assert isinstance(whole, httpx.SyncByteStream)
        parts, size, wire = [], 0, iter(whole)
        try:
            for part in wire:
                parts.append(part)
                size += len(part)
                if size > self._retries.max_answer:
                    return answered(rebuilt(response, Rest(parts, wire, whole)), None)
        except BaseException:
            whole.close()
            raise
        whole.close()
        body = b"".join(parts)
        return answered(rebuilt(response, httpx.ByteStream(body)), body)

    def discard(self, seen: Answered) -> None:
        seen.raw.close()


class Async:
    def __init__(self, owner: AsyncRetryTransport, request: httpx.Request) -> None:
        self._inner, self._retries, self._request = owner.inner, owner.kit.retries, request
        self._asleep = owner.kit.ambient.asleep or anyio.sleep

    async def send(self, key: str | None) -> Seen:
        if key is not None:
            self._request.headers[self._retries.header] = key
        try:
            response = await self._inner.handle_async_request(self._request)
            if not worth_reading(response, self._request, self._retries):
                return answered(response, None)
            return await self._read(response)
        except httpx.TransportError as error:
            return Failed(error, reach(error))

    async def _read(self, response: httpx.Response) -> Answered:
        whole = response.stream
        assert isinstance(whole, httpx.AsyncByteStream)
        parts, size, wire = [], 0, whole.__aiter__()
        try:
            async for part in wire:
                parts.append(part)
                size += len(part)
                if size > self._retries.max_answer:
                    return answered(rebuilt(response, AsyncRest(parts, wire, whole)), None)
        except BaseException:
            await whole.aclose()
            raise
        await whole.aclose()
        body = b"".join(parts)
        return answered(rebuilt(response, httpx.ByteStream(body)), body)

    async def discard(self, seen: Answered) -> None:
        await seen.raw.aclose()

    async def wait(self, seconds: float) -> None:
        await self._asleep(seconds)

    async def keep(self, do: Callable[[], Any]) -> Any:
        # A commit waits for the disk, and the event loop must not.
        return await anyio.to_thread.run_sync(do)
