"""The application's answer on its way to the client: held back until it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal

from retrysafe.web.capture import AnswerBuffer, HeaderPairs, Response, check_headers, is_stream
from retrysafe.web.response_ready import ResponseReady
from retrysafe.web.sync_async import AsyncExchange

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
RawHeaders = list[tuple[bytes, bytes]]

START = "http.response.start"
BODY = "http.response.body"


class AnswerSender:
    """The `send` that an application under capture gets.

    Held back until the claim is settled, then sent on. An answer that cannot be kept leaves its tombstone first and
    then passes by. Once the exchange has an answer of its own, what the application says is dropped.
    """

    def __init__(self, exchange: AsyncExchange, send: Send, over: asyncio.Event) -> None:
        self.finished = over
        """Set when nothing more will go out: from then on the application may learn that the client left."""
        self._exchange = exchange
        self._send = send
        self._start: Message | None = None
        self._headers: HeaderPairs = ()
        self._buffer: AnswerBuffer | None = None
        self._passes: Literal["", "settled", "not final"] = ""
        self._sent = False
        self._complete = False

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if exchange.response is not None or self._complete:
            return
        if message["type"] == START:
            await self._on_start(message)
        elif message["type"] == BODY:
            await self._on_body(message)
        elif self._start is None or self._sent:
            await self._send(message)  # an extension's: early hints, debug information

    async def end(self) -> None:
        """The application returned, or was cut short by a refusal."""
        exchange = self._exchange
        if exchange.response is not None:
            return await self._send_own(exchange.response)
        if exchange.claimed:
            await self.settle_failed(RuntimeError("the application returned without a whole answer"))
        return None

    async def settle_failed(self, error: Exception) -> None:
        """The application raised. If it had not answered, ours is the answer; the caller raises on."""
        exchange = self._exchange
        if exchange.claimed:
            exchange.response = await exchange.settle(exchange.settle_raised(error))
        if exchange.response is not None:
            # The server closes the connection on an error; the client should not send its next request into that.
            last = str(exchange.view.raw.get("http_version", "")).startswith("1")
            await self._send_own(exchange.response.with_headers(("connection", "close")) if last else exchange.response)

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
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
        self._headers = check_headers(headers)
        self._start = message
        self._buffer = AnswerBuffer(exchange.policy.max_answer)
        if is_stream(headers):
            await self._pass_through("stream")

    async def _on_body(self, message: Message) -> None:
        last = not message.get("more_body", False)
        if self._start is None or self._passes:
            if last and self._passes == "not final":
                await self._exchange.settle(self._exchange.release_flow())
            return await self._forward(message)
        assert self._buffer is not None, "made with the start"
        fits = self._buffer.add(message.get("body", b""))
        if not fits and not last:
            await self._pass_through("too_large")
            await self._flush(more=True)
        elif not fits:
            await self._pass_oversized()
        elif last:
            await self._settle_answer()
        return None

    async def _pass_oversized(self) -> None:
        """Too large, and already whole."""
        await self._pass_through("too_large")
        if self._exchange.claimed:
            await self._exchange.settle(self._exchange.release_flow())
        await self._flush(more=False)

    async def _settle_answer(self) -> None:
        exchange, start, buffer = self._exchange, self._start, self._buffer
        assert start is not None
        assert buffer is not None
        body = buffer.join()
        instead = await exchange.settle(exchange.settle_answered(start["status"], self._headers, body))
        if instead is not None:
            exchange.response = instead
            await self._send_own(instead)
            if exchange.transaction is not None:
                # What it wrote is not there, so what waits for the answer to be out (a background task) must not run.
                raise ResponseReady("the transaction did not commit")
            return None
        return await self._flush(more=False)

    async def _pass_through(self, gone: Literal["stream", "too_large"]) -> None:
        """It cannot be kept. First the fact that it happened, then the bytes."""
        exchange, start = self._exchange, self._start
        assert start is not None
        if not exchange.is_storable(start["status"]):
            self._passes = "not final"
        else:
            instead = await exchange.settle(exchange.settle_tombstone(start["status"], gone))
            if instead is not None:
                exchange.response = instead
                await self._send_own(instead)
                raise ResponseReady("the answer could not be stored")  # a stream would go on for ever
            self._passes = "settled"
        if gone == "stream":
            await self._forward(start)

    async def _flush(self, *, more: bool) -> None:
        start, buffer = self._start, self._buffer
        assert start is not None
        assert buffer is not None
        await self._forward(start)
        await self._forward({"type": BODY, "body": buffer.join(), "more_body": more})
        buffer.chunks.clear()

    async def _forward(self, message: Message) -> None:
        if message["type"] == START:
            self._exchange.started = self._sent = True
            extra = self._exchange.extra_headers()
            if extra:
                message = {**message, "headers": [*message.get("headers", ()), *encode_headers(extra)]}
        elif not message.get("more_body", False):
            self._complete = True
            try:
                await self._send(message)
            finally:
                self.finished.set()
            return
        await self._send(message)

    # Ours ---------------------------------------------------------------------------------------

    async def _send_own(self, response: Response) -> None:
        if self._exchange.rolled_back:
            return  # another run's answer will be the one
        if not self._sent:
            self._sent = self._complete = True
            extra = self._exchange.extra_headers()
            await self.transmit(self._send, response.with_headers(*extra) if extra else response)
        self.finished.set()

    @staticmethod
    async def transmit(send: Send, response: Response) -> None:
        await send({"type": START, "status": response.status, "headers": encode_headers(response.headers)})
        await send({"type": BODY, "body": response.body, "more_body": False})


def encode_headers(headers: HeaderPairs) -> RawHeaders:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
