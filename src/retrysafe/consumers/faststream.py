"""FastStream: an inbox as middleware, around every handler of a broker.

    broker = RabbitBroker(url, middlewares=[once(inbox)])

    @broker.subscriber("orders", ack_policy=AckPolicy.NACK_ON_ERROR)
    async def on_order(order: Order, tx: Any = Context("tx")) -> None: ...

The inbox commits its mark first, then FastStream acknowledges. A message that was handled before is acknowledged
without running the handler. A message for later is refused (`nack`), and a dead letter is rejected (`reject`). Your
broker decides where a rejected message goes, so give RabbitMQ queues a dead-letter exchange.

If the inbox has `tx`, the handler runs in its transaction and finds it in FastStream's context under the name `tx`.
FastStream publishes a handler's reply after the commit, and not again when the message is delivered again. Stage the
reply instead.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from faststream import BaseMiddleware
from faststream.exceptions import AckMessage, NackMessage, RejectMessage
from faststream.message import StreamMessage

from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.message import Message, normalize_headers
from retrysafe.consumers.verdicts import Dead, Done
from retrysafe.engine.handlers import Handler
from retrysafe.errors import UsageError


def once(inbox: Inbox) -> Callable[..., InboxMiddleware]:
    """The middleware for `Broker(…, middlewares=[once(inbox)])`."""

    def make(msg: Any, /, *, context: Any) -> InboxMiddleware:
        return InboxMiddleware(inbox, msg, context)

    return make


class InboxMiddleware(BaseMiddleware[Any, Any]):
    """One message on its way to its handler."""

    __slots__ = ("_inbox",)

    def __init__(self, inbox: Inbox, msg: Any, context: Any) -> None:
        super().__init__(msg, context=context)
        self._inbox = inbox

    async def consume_scope(self, call_next: Callable[[Any], Awaitable[Any]], msg: StreamMessage[Any]) -> Any:
        results: list[Any] = []

        async def handle(message: Message, tx: Any = None) -> None:
            with self.context.scope("tx", tx):
                results.append(await call_next(msg))

        wants_tx = self._inbox.tx is not None
        handler = Handler("*", handle, is_async=True, wants_tx=wants_tx, tx_first=False)
        verdict = await self._inbox.aprocess(read_message(msg), handler)
        if isinstance(verdict, Done):
            if verdict.replayed:
                raise AckMessage
            return results[-1]
        if isinstance(verdict, Dead):
            raise RejectMessage
        await asyncio.sleep(verdict.seconds)  # most brokers deliver a refused message again at once
        raise NackMessage


def read_message(msg: StreamMessage[Any]) -> Message:
    """A FastStream message as a `Message`. FastStream's own `message_id` is not used: if the producer sent no id,
    FastStream makes a new one for each delivery."""
    if not isinstance(msg.body, bytes):
        raise UsageError("a batch has many ids; use the middleware with subscribers that take one message at a time")
    raw = msg.raw_message
    deliveries = count_deliveries(raw)
    return Message(
        body=msg.body,
        source=str(getattr(raw, "routing_key", "") or getattr(raw, "subject", "") or getattr(raw, "topic", "")),
        id=str(getattr(raw, "message_id", None) or ""),
        headers=normalize_headers(msg.headers),
        deliveries=deliveries,
        failures=deliveries - 1,
        raw=msg,
    )


def count_deliveries(raw: Any) -> int:
    """How often the broker delivered this message, as far as the broker counts. Quorum queues and JetStream count;
    classic queues say only whether the message was delivered before."""
    headers = getattr(raw, "headers", None)
    counted = headers.get("x-delivery-count") if isinstance(headers, dict) else None
    if isinstance(counted, int):
        return counted + 1
    metadata = getattr(raw, "metadata", None)
    delivered = getattr(metadata, "num_delivered", None)
    return int(delivered) if delivered else 2 if getattr(raw, "redelivered", False) else 1
