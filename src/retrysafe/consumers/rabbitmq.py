"""RabbitMQ, with aio-pika.

    await rabbitmq.consume(channel, "orders", inbox)

A message is acknowledged after the commit. RabbitMQ delivers a refused message again at once and does not count it. So
a message whose handler failed is published again at the end of its queue, with a count in a header, and then
acknowledged. A crash between the two leaves two copies, which have one id and are one message for the inbox. Dead
letters go to the queue `<queue>.dead`, or to the queue's own dead-letter exchange with `dead="exchange"`.

The id is the property `message_id`. aio-pika makes up an id for each message that is published without one. That id is
new for each retry of a producer, so producers should set their own.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, Literal

from aio_pika import Message as Outgoing
from aio_pika.abc import AbstractChannel, AbstractIncomingMessage, AbstractRobustChannel
from aio_pika.exceptions import CONNECTION_EXCEPTIONS

from retrysafe.consumers.common import shorten_reason, warn_unacknowledged
from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.message import Message, normalize_headers
from retrysafe.consumers.verdicts import Dead, Done, Verdict
from retrysafe.errors import UsageError

FAILURES_HEADER = "x-retrysafe-failures"
"""How often the handler of this message has failed so far."""
NO_ID_HEADER = "x-retrysafe-no-id"
"""Marks a copy of a message without an id: the id that aio-pika makes up for the copy is ignored."""
REASON_HEADER = "x-retrysafe-reason"
"""Why the message is a dead letter."""
USER_ID_HEADER = "x-retrysafe-user-id"
"""The sender's `user_id`, on a copy of a message with that property."""


async def consume(
    channel: AbstractChannel,
    queue: str,
    inbox: Inbox,
    *,
    at_once: int = 16,
    dead: Literal["queue", "exchange"] = "queue",
) -> None:
    """Feed the inbox from a queue until cancelled. `at_once` is how many messages are handled at the same time."""
    await Consumer(channel, queue, inbox, at_once=at_once, dead=dead).run()


class Consumer:
    """One queue for one inbox."""

    def __init__(
        self,
        channel: AbstractChannel,
        queue: str,
        inbox: Inbox,
        *,
        at_once: int = 16,
        dead: Literal["queue", "exchange"] = "queue",
    ) -> None:
        if dead not in ("queue", "exchange"):
            raise UsageError(f"Consumer(dead={dead!r}): choose 'queue' or 'exchange'")
        if not channel.publisher_confirms:
            raise UsageError(
                "this channel does not confirm what is published, so a message that is put back could be lost; "
                "open it with connection.channel(publisher_confirms=True)"
            )
        self.inbox = inbox
        self.dead_queue = f"{queue}.dead" if dead == "queue" else ""
        self._channel = channel
        self._queue = queue
        self._at_once = at_once
        self._running: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()

    async def run(self) -> None:
        """Run until cancelled. Then the messages that are being handled are handled to their end, and no new one is
        begun."""
        await self._channel.set_qos(prefetch_count=self._at_once)
        if self.dead_queue:
            await self._channel.declare_queue(self.dead_queue, durable=True)
        queue = await self._channel.get_queue(self._queue)
        program_error: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        async def take(incoming: AbstractIncomingMessage) -> None:
            task = asyncio.create_task(self._process(incoming, program_error))
            self._running.add(task)
            task.add_done_callback(self._running.discard)

        tag = await queue.consume(take)
        try:
            await self._wait_for_end(program_error)
        finally:
            self._stopping.set()
            with suppress(*CONNECTION_EXCEPTIONS):  # without a connection nothing more is delivered
                await queue.cancel(tag)
            if self._running:
                await asyncio.wait(self._running)

    async def _wait_for_end(self, program_error: asyncio.Future[None]) -> None:
        """Wait until the program fails or the channel closes. A robust channel reopens by itself; any other channel
        stays closed."""
        if isinstance(self._channel, AbstractRobustChannel):
            return await program_error
        either: set[asyncio.Future[Any]] = {program_error, asyncio.ensure_future(self._channel.closed())}
        await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
        if program_error.done():
            return program_error.result()
        raise ConnectionError(
            f"the channel on which {self._queue!r} was consumed is closed; consume it again on a new one, or connect "
            "with aio_pika.connect_robust"
        )

    async def _process(self, incoming: AbstractIncomingMessage, program_error: asyncio.Future[None]) -> None:
        message = read_message(incoming, self._queue)
        try:
            verdict = await self.inbox.aprocess(message)
        except Exception as error:  # the program is wrong, not the message: RabbitMQ delivers it again
            if not program_error.done():
                program_error.set_exception(error)
            return
        try:
            await self._acknowledge(incoming, verdict)
        except CONNECTION_EXCEPTIONS as error:
            warn_unacknowledged("RabbitMQ", self.inbox, message, error)

    async def handle(self, incoming: AbstractIncomingMessage) -> Verdict:
        """Handle one message, then acknowledge it. For consumers with a loop of their own."""
        verdict = await self.inbox.aprocess(read_message(incoming, self._queue))
        await self._acknowledge(incoming, verdict)
        return verdict

    async def _acknowledge(self, incoming: AbstractIncomingMessage, verdict: Verdict) -> None:
        if isinstance(verdict, Done):
            await incoming.ack()
        elif isinstance(verdict, Dead):
            await self._dead_letter(incoming, verdict)
        else:
            await self._pause(verdict.seconds)
            if verdict.failed:
                await self._publish_copy(incoming, self._queue, {FAILURES_HEADER: read_failures(incoming) + 1})
                await incoming.ack()
            else:
                await incoming.nack(requeue=True)

    async def _pause(self, seconds: float) -> None:
        """Wait before the message goes back: the broker would deliver it again at once. `run` ends this wait when it
        stops."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()

    async def _dead_letter(self, incoming: AbstractIncomingMessage, verdict: Dead) -> None:
        if not self.dead_queue:
            await incoming.reject(requeue=False)
            return
        await self._publish_copy(incoming, self.dead_queue, {REASON_HEADER: shorten_reason(verdict)})
        await incoming.ack()

    async def _publish_copy(self, incoming: AbstractIncomingMessage, queue: str, more: dict[str, Any]) -> None:
        """Publish a copy to a queue, confirmed by the broker."""
        copy = copy_message(incoming, more, expires=queue != self.dead_queue)
        confirmed = await self._channel.default_exchange.publish(copy, routing_key=queue)
        if type(confirmed).__name__ != "Ack":
            raise ConnectionError(f"RabbitMQ did not take the message for queue {queue!r}; is the queue there?")


DELIVERY_HEADERS = frozenset({FAILURES_HEADER, REASON_HEADER, "x-delivery-count", "x-death"})
"""Headers that belong to one delivery. A copy does not carry them."""


def copy_message(incoming: AbstractIncomingMessage, more: dict[str, Any], *, expires: bool) -> Outgoing:
    """A copy of the message with all its properties, except two. The broker accepts `user_id` only from a connection of
    that user, so the copy carries it in a header. A dead letter does not expire, because it waits for a person.
    `expiration` is the time in one queue, and begins anew with each copy."""
    kept = {name: value for name, value in incoming.headers.items() if name not in DELIVERY_HEADERS}
    no_id = {} if incoming.message_id and NO_ID_HEADER not in kept else {NO_ID_HEADER: True}
    sender = {USER_ID_HEADER: incoming.user_id} if incoming.user_id else {}
    return Outgoing(
        incoming.body,
        headers={**kept, **no_id, **sender, **more},
        content_type=incoming.content_type,
        content_encoding=incoming.content_encoding,
        delivery_mode=incoming.delivery_mode,
        priority=incoming.priority,
        correlation_id=incoming.correlation_id,
        reply_to=incoming.reply_to,
        expiration=incoming.expiration if expires else None,
        message_id=incoming.message_id,
        timestamp=incoming.timestamp,
        type=incoming.type,
        app_id=incoming.app_id,
    )


def read_message(incoming: AbstractIncomingMessage, queue: str) -> Message:
    failures = read_failures(incoming)
    counted = parse_count(incoming.headers.get("x-delivery-count")) + 1  # quorum queues count, classic ones do not
    return Message(
        body=incoming.body,
        source=queue,
        id="" if NO_ID_HEADER in incoming.headers else incoming.message_id or "",
        headers=normalize_headers(incoming.headers),
        deliveries=max(counted, failures + 1, 2 if incoming.redelivered else 1),
        failures=failures,
        raw=incoming,
    )


def read_failures(incoming: AbstractIncomingMessage) -> int:
    return parse_count(incoming.headers.get(FAILURES_HEADER))


def parse_count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0
