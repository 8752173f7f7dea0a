"""The application's answer on its way to the client: held back until it is stored."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Literal

from retrysafe.web.capture import Buffer, Pairs, Response, checked, is_stream
from retrysafe.web.colours import AsyncExchange
from retrysafe.web.shortcut import Shortcut

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
        self.over = over
        """Set when nothing more will go out: from then on the application may learn that the client left."""
        self._exchange = exchange
        self._send = send
        self._start: Message | None = None
        self._headers: Pairs = ()
        self._buffer: Buffer | None = None
        self._passes: Literal["", "settled", "not final"] = ""
        self._sent = False
        self._complete = False

    async def send(self, message: Message) -> None:
        exchange = self._exchange
        if exchange.response is not None or self._complete:
            return
        if message["type"] == START:
            await self._started(message)
        elif message["type"] == BODY:
            await self._went_on(message)
        elif self._start is None or self._sent:
            await self._send(message)  # an extension's: early hints, debug information

    async def end(self) -> None:
        """The application returned, or was cut short by a refusal."""
        exchange = self._exchange
        if exchange.response is not None:
            return await self._send_own(exchange.response)
        if exchange.claimed:
            await self.failed(RuntimeError("the application returned without a whole answer"))
        return None

    async def failed(self, error: Exception) -> None:
        """The application raised. If it had not answered, ours is the answer; the caller raises on."""
        exchange = self._exchange
        if exchange.claimed:
            exchange.response = await exchange.settle(exchange.raised(error))
        if exchange.response is not None:
            # The server closes the connection on an error; the client should not send its next request into that.
            last = str(exchange.view.raw.get("http_version", "")).startswith("1")
            await self._send_own(exchange.response.plus(("connection", "close")) if last else exchange.response)

    async def stopped(self, error: BaseException) -> None:
        if self._exchange.claimed:
            await self._exchange.settle(self._exchange.stopped(error))

    # The application's answer -------------------------------------------------------------------

    async def _started(self, message: Message) -> None:
        exchange = self._exchange
        if not exchange.claimed:
            if not exchange.unprotected(message["status"]):
                await self._pass_on(message)
            return
        headers = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in message.get("headers", ())]
        self._headers = checked(headers)
        self._start = message
        self._buffer = Buffer(exchange.policy.max_answer)
        if is_stream(headers):
            await self._let_pass("stream")

    async def _went_on(self, message: Message) -> None:
        last = not message.get("more_body", False)
        if self._start is None or self._passes:
            if last and self._passes == "not final":
                await self._exchange.settle(self._exchange.let_go())
            return await self._pass_on(message)
        assert self._buffer is not None, "made with the start"
        fits = self._buffer.add(message.get("body", b""))
        if not fits and not last:
            await self._let_pass("too_large")
            await self._flush(more=True)
        elif not fits:
            await self._too_large_at_once()
        elif last:
            await self._whole()
        return None

    async def _too_large_at_once(self) -> None:
        """Too large, and already whole."""
        await self._let_pass("too_large")
        if self._exchange.claimed:
            await self._exchange.settle(self._exchange.let_go())
        await self._flush(more=False)

    async def _whole(self) -> None:
        exchange, start, buffer = self._exchange, self._start, self._buffer
        assert start is not None
        assert buffer is not None
        body = buffer.joined()
        instead = await exchange.settle(exchange.answered(start["status"], self._headers, body))
        if instead is not None:
            exchange.response = instead
            await self._send_own(instead)
            if exchange.joint is not None:
                # What it wrote is not there, so what waits for the answer to be out (a background task) must not run.
                raise Shortcut("the transaction did not commit")
            return None
        return await self._flush(more=False)

    async def _let_pass(self, gone: Literal["stream", "too_large"]) -> None:
        """It cannot be kept. First the fact that it happened, then the bytes."""
        exchange, start = self._exchange, self._start
        assert start is not None
        if not exchange.storable(start["status"]):
            self._passes = "not final"
        else:
            instead = await exchange.settle(exchange.tombstone(start["status"], gone))
            if instead is not None:
                exchange.response = instead
                await self._send_own(instead)
                raise Shortcut("the answer could not be stored")  # a stream would go on for ever
            self._passes = "settled"
        if gone == "stream":
            await self._pass_on(start)

    async def _flush(self, *, more: bool) -> None:
        start, buffer = self._start, self._buffer
        assert start is not None
        assert buffer is not None
        await self._pass_on(start)
        await self._pass_on({"type": BODY, "body": buffer.joined(), "more_body": more})
        buffer.chunks.clear()

    async def _pass_on(self, message: Message) -> None:
        if message["type"] == START:
            self._exchange.started = self._sent = True
            extra = self._exchange.extra_headers()
            if extra:
                message = {**message, "headers": [*message.get("headers", ()), *raw(extra)]}
        elif not message.get("more_body", False):
            self._complete = True
            try:
                await self._send(message)
            finally:
                self.over.set()
            return
        await self._send(message)

    # Ours ---------------------------------------------------------------------------------------

    async def _send_own(self, response: Response) -> None:
        if self._exchange.undone:
            return  # another run's answer will be the one
        if not self._sent:
            self._sent = self._complete = True
            extra = self._exchange.extra_headers()
            await self.transmit(self._send, response.plus(*extra) if extra else response)
        self.over.set()

    @staticmethod
    async def transmit(send: Send, response: Response) -> None:
        await send({"type": START, "status": response.status, "headers": raw(response.headers)})
        await send({"type": BODY, "body": response.body, "more_body": False})


def raw(headers: Pairs) -> RawHeaders:
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers]
