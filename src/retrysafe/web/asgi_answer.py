"""The application's answer on ASGI: buffered, stored, then sent."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from functools import lru_cache
from typing import Any, Literal, Protocol

from retrysafe.web.capture import (
    MAX_REMEMBERED_ANSWERS,
    MAX_REMEMBERED_NAMES,
    AnswerBuffer,
    HeaderPairs,
    Response,
    read_raw_headers,
)
from retrysafe.web.exchange_context import ResponseReady
from retrysafe.web.sync_async import AsyncExchange

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

RESPONSE_START = "http.response.start"
RESPONSE_BODY = "http.response.body"


class RequestEnd(Protocol):
    """Is told when nothing more will be sent. From then on the application may see the client's disconnect."""

    def note_answered(self) -> None: ...


class AnswerSender:
    """The `send` that a captured application gets.

    The answer is buffered until the claim is settled, then sent. For an answer that cannot be kept (too large, a
    stream) a tombstone is stored, and the answer then passes through unbuffered. Once the exchange has an answer of its
    own, the application's messages are dropped.
    """

    def __init__(self, exchange: AsyncExchange, send: Send, request: RequestEnd) -> None:
        self._request = request
        self._exchange = exchange
        self._send = send
        self._start: Message | None = None
        self._headers: HeaderPairs = ()
        self._buffer: AnswerBuffer | None = None
        self._passthrough: Literal["", "settled", "not final"] = ""
        self._sent = False
        self.complete = False
        """True once the last part of an answer was sent, or is being sent."""

    def send(self, message: Message) -> Coroutine[Any, Any, None]:
        if self._exchange.response is not None or self.complete:
            return _drop_message()
        if message["type"] == RESPONSE_START:
            return self._on_start(message)
        if message["type"] == RESPONSE_BODY:
            return self._on_body(message)
        # Others are of a server extension: early hints, debug information.
        return self._pass_on(message) if self._start is None or self._sent else _drop_message()

    async def end(self) -> None:
        """The application returned, or ResponseReady ended it."""
        exchange = self._exchange
        if exchange.response is not None:
            return await self._send_own(exchange.response)
        if exchange.claimed:
            await self.settle_failed(RuntimeError("the application returned without a whole answer"))
        return None

    async def settle_failed(self, error: Exception) -> None:
        """The application raised. If it had not answered, send our own answer. The caller raises the error again."""
        exchange = self._exchange
        if exchange.claimed:
            exchange.response = await exchange.settle(exchange.settle_raised(error))
        if exchange.response is not None:
            # The server closes the connection after an error. The client must not send its next request on it.
            is_http1 = str(exchange.view.raw.get("http_version", "")).startswith("1")
            await self._send_own(
                exchange.response.with_headers(("connection", "close")) if is_http1 else exchange.response
            )

    async def settle_stopped(self, error: BaseException) -> None:
        if self._exchange.claimed:
            await self._exchange.settle(self._exchange.settle_stopped(error))

    # The application's answer -------------------------------------------------------------------

    async def _on_start(self, message: Message) -> None:
        exchange = self._exchange
        if not exchange.claimed:
            if not exchange.refuse_if_unprotected(message["status"]):
                await self._forward(message)
            return
        self._headers, stream = read_raw_headers(message.get("headers", ()))
        self._start = message
        if stream:
            await self._pass_through("stream")

    def _on_body(self, message: Message) -> Coroutine[Any, Any, None]:
        if self._start is None or self._passthrough:
            return self._pass_body(message)
        if self._buffer is None and not message.get("more_body", False):
            body = message.get("body", b"")
            if type(body) is bytes and len(body) <= self._exchange.policy.max_answer:
                return self._settle_answer(body)  # whole in one part, as nearly all are
        return self._add_body(message)

    async def _pass_body(self, message: Message) -> None:
        if self._passthrough == "not final" and not message.get("more_body", False):
            await self._exchange.settle(self._exchange.release_flow())
        await self._forward(message)

    async def _add_body(self, message: Message) -> None:
        last = not message.get("more_body", False)
        if self._buffer is None:
            self._buffer = AnswerBuffer(self._exchange.policy.max_answer)
        fits = self._buffer.add(message.get("body", b""))
        if not fits and not last:
            await self._pass_through("too_large")
            await self._flush(more=True)
        elif not fits:
            await self._pass_oversized()
        elif last:
            body = self._buffer.join()
            self._buffer = None
            await self._settle_answer(body)

    async def _pass_oversized(self) -> None:
        """The answer became too large with its last part."""
        await self._pass_through("too_large")
        if self._exchange.claimed:
            await self._exchange.settle(self._exchange.release_flow())
        await self._flush(more=False)

    async def _settle_answer(self, body: bytes) -> None:
        exchange, start = self._exchange, self._start
        assert start is not None
        instead = await exchange.settle_answer(start["status"], self._headers, body)
        if instead is not None:
            exchange.response = instead
            await self._send_own(instead)
            if exchange.transaction is not None:
                # The work was rolled back, so what runs after the answer (a background task) must not run.
                raise ResponseReady("the transaction did not commit")
            return
        await self._send(self._begin(start))
        await self._finish({"type": RESPONSE_BODY, "body": body, "more_body": False})

    async def _pass_through(self, gone: Literal["stream", "too_large"]) -> None:
        """The answer cannot be kept. Store the tombstone before the first byte is sent."""
        exchange, start = self._exchange, self._start
        assert start is not None
        if not exchange.is_storable(start["status"]):
            self._passthrough = "not final"
        else:
            instead = await exchange.settle(exchange.settle_tombstone(start["status"], gone))
            if instead is not None:
                exchange.response = instead
                await self._send_own(instead)
                raise ResponseReady("the answer could not be stored")  # ends the application: a stream might be endless
            self._passthrough = "settled"
        if gone == "stream":
            await self._forward(start)

    async def _flush(self, *, more: bool) -> None:
        """Send what is buffered."""
        start, buffer = self._start, self._buffer
        assert start is not None
        assert buffer is not None
        await self._send(self._begin(start))
        message = {"type": RESPONSE_BODY, "body": buffer.join(), "more_body": more}
        buffer.chunks.clear()
        await (self._send(message) if more else self._finish(message))

    async def _forward(self, message: Message) -> None:
        if message["type"] == RESPONSE_START:
            message = self._begin(message)
        elif not message.get("more_body", False):
            return await self._finish(message)
        await self._send(message)
        return None

    def _begin(self, start: Message) -> Message:
        """The answer begins now. Returns its first message, with our own headers if there are any."""
        self._exchange.started = self._sent = True
        extra = self._exchange.extra_headers() if self._exchange.generated_key else ()
        return {**start, "headers": [*start.get("headers", ()), *encode_headers(extra)]} if extra else start

    async def _finish(self, last: Message) -> None:
        self.complete = True
        try:
            await self._send(last)
        finally:
            self._request.note_answered()

    async def _pass_on(self, message: Message) -> None:
        await self._send(message)

    # Our own answer ---------------------------------------------------------------------------------------

    async def _send_own(self, response: Response) -> None:
        if self._exchange.rolled_back:
            return  # the rerun will answer
        if not self._sent:
            self._sent = self.complete = True
            extra = self._exchange.extra_headers()
            await self.transmit(self._send, response.with_headers(*extra) if extra else response)
        self._request.note_answered()

    @staticmethod
    async def transmit(send: Send, response: Response) -> None:
        headers = encode_own_headers(tuple(response.headers))
        await send({"type": RESPONSE_START, "status": response.status, "headers": [*headers]})
        await send({"type": RESPONSE_BODY, "body": response.body, "more_body": False})


async def _drop_message() -> None:
    """The application goes on after its answer was replaced or complete."""


@lru_cache(MAX_REMEMBERED_NAMES)
def encode_name(name: str) -> bytes:
    """A header's name in bytes. Cached: an application sets the same few headers in every answer."""
    return name.encode("latin-1")


@lru_cache(MAX_REMEMBERED_ANSWERS)
def encode_own_headers(headers: tuple[tuple[str, str], ...]) -> tuple[tuple[bytes, bytes], ...]:
    """The headers of a replay or a problem in bytes. Cached: they are the same in most answers of a route."""
    return tuple(encode_headers(headers))


def encode_headers(headers: HeaderPairs) -> RawHeaders:
    return [(encode_name(name), value.encode("latin-1")) for name, value in headers]
