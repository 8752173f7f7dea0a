"""NATS JetStream, with nats-py.

    orders = await js.pull_subscribe("orders.created", durable="billing", stream="ORDERS")
    await nats.consume(js, orders, inbox, dead="dead.billing")

Acknowledged after the commit; what comes later is refused with a delay, which JetStream keeps. While a handler works
the server is told so, or it would deliver the message to somebody else after `ack_wait`. `dead` is a subject that some
stream keeps: JetStream has no dead letters of its own. The id is the header `Nats-Msg-Id`, by which JetStream itself
drops what a producer sends twice within minutes; the inbox remembers it for as long as you say.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.errors import NotFoundError

from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.loops import gather_all, run_forever
from retrysafe.consumers.message import Message, normalize_headers
from retrysafe.consumers.verdicts import Dead, Done, Verdict
from retrysafe.errors import UsageError

ID_HEADER = "Nats-Msg-Id"
REASON_HEADER = "Retrysafe-Reason"
SUBJECT_HEADER = "Retrysafe-Subject"
DEAD_ID_HEADER = "Retrysafe-Message-Id"
ACK_WAIT_SECONDS = 30.0
"""JetStream's own default, where the consumer does not say."""
MAX_REASON_CHARS = 1000

_log = logging.getLogger("retrysafe.consumers")

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
        """Fetch what is there, or wait a moment for it; how many messages it were."""
        try:
            self._ack_wait = self._ack_wait or await self._check_subscription()
            messages = await self._subscription.fetch(self._at_once, timeout=wait)
        except TimeoutError:  # nothing came, or the server is slow: nats-py raises its own and Python's for either
            return 0
        await gather_all([self.handle(each) for each in messages])
        return len(messages)

    async def handle(self, msg: Msg) -> Verdict:
        """One message: handle it, then tell the server. If that fails, the server brings it again after `ack_wait`."""
        message = read_message(msg)
        async with self._keep_in_progress(msg):
            verdict = await self.inbox.aprocess(message)
        try:
            await self._acknowledge(msg, message, verdict)
        except (NatsError, TimeoutError) as error:
            shown, kind = self.inbox.logged_as(message), type(error).__qualname__
            _log.warning("NATS was not told of message %s, and brings it again: %s", shown, kind)
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
        # Under its own id the stream might take a copy for the message itself, and drop it.
        headers = {
            **kept,
            REASON_HEADER: one_line(verdict.why),
            SUBJECT_HEADER: msg.subject,
            DEAD_ID_HEADER: one_line(message.id),
        }
        await self._js.publish(self._dead, msg.data, headers=headers)
        await msg.term()

    @asynccontextmanager
    async def _keep_in_progress(self, msg: Msg) -> AsyncIterator[None]:
        beating = asyncio.create_task(self._send_in_progress(msg))
        try:
            yield
        finally:
            beating.cancel()

    async def _send_in_progress(self, msg: Msg) -> None:
        while True:
            await asyncio.sleep((self._ack_wait or ACK_WAIT_SECONDS) / 3)
            await msg.in_progress()

    async def _check_subscription(self) -> float:
        """The consumer's ack_wait; and a place for dead letters, before there are any."""
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


def one_line(text: Any) -> str:
    """Fit for a header."""
    return " ".join(str(text).split())[:MAX_REASON_CHARS].encode("ascii", "backslashreplace").decode()
