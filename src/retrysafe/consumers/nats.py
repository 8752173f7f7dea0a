"""NATS JetStream, with nats-py.

    orders = await js.pull_subscribe("orders.created", durable="billing", stream="ORDERS")
    await nats.consume(js, orders, inbox, dead="dead.billing")

A message is acknowledged after the commit. A message for later is refused with a delay, which JetStream keeps. While a
handler runs, the consumer reports progress to the server; otherwise the server would deliver the message to another
consumer after `ack_wait`. `dead` is a subject that some stream stores: JetStream has no dead letters of its own. The id
is the header `Nats-Msg-Id`, by which JetStream itself drops what a producer sends twice within minutes. The inbox
stores the id for as long as its `retention` says.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from retrysafe.consumers.common import MAX_REASON_CHARS, gather_all, run_forever, warn_unacknowledged
from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.message import Message, normalize_headers
from retrysafe.consumers.verdicts import Dead, Done, Verdict
from retrysafe.errors import UsageError

ID_HEADER = "Nats-Msg-Id"
REASON_HEADER = "Retrysafe-Reason"
SUBJECT_HEADER = "Retrysafe-Subject"
DEAD_ID_HEADER = "Retrysafe-Message-Id"
ACK_WAIT_SECONDS = 30.0
"""JetStream's default, for a consumer without its own value."""

Subscription = JetStreamContext.PullSubscription


async def consume(
    js: JetStreamContext, subscription: Subscription, inbox: Inbox, *, dead: str, at_once: int = 16
) -> None:
    """Feed the inbox from a pull subscription until cancelled."""
    await Consumer(js, subscription, inbox, dead=dead, at_once=at_once).run()


class Consumer:
    """One pull subscription for one inbox."""

    def __init__(
        self, js: JetStreamContext, subscription: Subscription, inbox: Inbox, *, dead: str, at_once: int = 16
    ) -> None:
        self.inbox = inbox
        self._js = js
        self._subscription = subscription
        self._dead = dead
        self._at_once = at_once
        self._ack_wait = 0.0

    async def run(self) -> None:
        await run_forever(self.run_once)

    async def run_once(self, wait: float = 1.0) -> int:
        """Fetch messages, waiting at most `wait` seconds for them, and handle them. Returns the number of messages."""
        try:
            self._ack_wait = self._ack_wait or await self._check_subscription()
            messages = await self._subscription.fetch(self._at_once, timeout=wait)
        except TimeoutError:  # no message, or a slow server: nats-py's own error and Python's can mean either
            return 0
        await gather_all([self.handle(each) for each in messages])
        return len(messages)

    async def handle(self, msg: Msg) -> Verdict:
        """Handle one message, then acknowledge it. If the acknowledgement fails, the server delivers the message again
        after `ack_wait`."""
        message = read_message(msg)
        async with self._keep_in_progress(msg):
            verdict = await self.inbox.aprocess(message)
        try:
            await self._acknowledge(msg, message, verdict)
        except (NatsError, TimeoutError) as error:
            warn_unacknowledged("NATS", self.inbox, message, error)
        return verdict

    async def _acknowledge(self, msg: Msg, message: Message, verdict: Verdict) -> None:
        if isinstance(verdict, Done):
            await msg.ack()
        elif isinstance(verdict, Dead):
            await self._dead_letter(msg, message, verdict)
        else:
            await msg.nak(delay=verdict.seconds)

    async def _dead_letter(self, msg: Msg, message: Message, verdict: Dead) -> None:
        kept = {name: value for name, value in (msg.headers or {}).items() if name.lower() != ID_HEADER.lower()}
        # With the message's own id, the stream might drop the copy as a duplicate of the message.
        headers = {
            **kept,
            REASON_HEADER: to_header_value(verdict.why),
            SUBJECT_HEADER: msg.subject,
            DEAD_ID_HEADER: to_header_value(message.id),
        }
        await self._js.publish(self._dead, msg.data, headers=headers)
        await msg.term()

    @asynccontextmanager
    async def _keep_in_progress(self, msg: Msg) -> AsyncIterator[None]:
        reporting = asyncio.create_task(self._send_in_progress(msg))
        try:
            yield
        finally:
            reporting.cancel()

    async def _send_in_progress(self, msg: Msg) -> None:
        while True:
            await asyncio.sleep((self._ack_wait or ACK_WAIT_SECONDS) / 3)
            await msg.in_progress()

    async def _check_subscription(self) -> float:
        """The consumer's `ack_wait`. Raises UsageError if no stream stores the subject for dead letters."""
        info = await self._subscription.consumer_info()
        try:
            await self._js.find_stream_name_by_subject(self._dead)
        except NotFoundError:
            raise UsageError(
                f"dead={self._dead!r}: no stream keeps this subject, so dead letters would be lost; add one: "
                f"await js.add_stream(name='DEAD', subjects=[{self._dead!r}])"
            ) from None
        return float(info.config.ack_wait or ACK_WAIT_SECONDS)


def read_message(msg: Msg) -> Message:
    headers = normalize_headers(msg.headers)
    delivered = msg.metadata.num_delivered or 1
    return Message(
        body=msg.data,
        source=msg.subject,
        id=headers.get(ID_HEADER.lower(), ""),
        headers=headers,
        deliveries=delivered,
        failures=delivered - 1,
        raw=msg,
    )


def to_header_value(text: Any) -> str:
    """A text on one line, in ASCII, short enough for a header."""
    return " ".join(str(text).split())[:MAX_REASON_CHARS].encode("ascii", "backslashreplace").decode()
