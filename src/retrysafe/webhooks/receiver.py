"""The receiver: one sender, its scheme and its handlers. It verifies, deduplicates, handles and answers 2xx, in this
order.

Nothing is looked up or stored before the signature is verified, so a forged delivery cannot take an event's place. The
claim is committed before the handler runs: the same event arriving meanwhile is answered 409 and does not run. A
handler that fails releases the event and answers 5xx, and the sender's retry runs. A handler that dies keeps the event
until its lease lapses.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from retrysafe.core.keys import Key
from retrysafe.core.records import Fingerprint
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.guard import Ended, Task
from retrysafe.engine.handlers import Handler, Handlers, function_name
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.operations.submission import Accepted
from retrysafe.policy import DEFAULT_LEASE_SECONDS, Policy
from retrysafe.web.capture import Response
from retrysafe.webhooks import replies
from retrysafe.webhooks.event import Event, EventWork
from retrysafe.webhooks.inbox import MAX_ATTEMPTS, WebhookInbox
from retrysafe.webhooks.schemes.base import Scheme
from retrysafe.webhooks.schemes.headers import HeaderPairs, Headers

if TYPE_CHECKING:
    import asyncio

F = TypeVar("F", bound=Callable[..., Any])

HIDDEN_HEADERS = frozenset({"authorization", "proxy-authorization", "cookie"})
"""Headers that are neither shown to handlers nor stored."""


class MatchedEvent(NamedTuple):
    """A verified event with its handler."""

    event: Event
    handler: Handler


class Receiver:
    """Takes the deliveries of one sender.

    `provider` names the sender and is the scope of its events' keys. Give one if you receive from two accounts of a
    sender: there is one receiver per provider.

    `tx` is how to open your transactions, for handlers that ask for `tx`; the default is that of `safe`. `inbox=True`
    stores the event, answers 2xx at once and lets the worker run the handler: for senders that wait only some seconds.
    `retention` is how long an event is stored, in seconds; by default longer than the sender's retry schedule. `lease`
    is how long a handler that died keeps its event, and `max_attempts` how often the worker tries one.
    """

    def __init__(
        self,
        safe: RetrySafe,
        scheme: Scheme,
        *,
        provider: str = "",
        tx: Any = None,
        inbox: bool = False,
        retention: float | None = None,
        lease: float = DEFAULT_LEASE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if not isinstance(scheme, Scheme):
            raise UsageError(f"Receiver(safe, {scheme!r}): give a scheme, like webhooks.Stripe('whsec_…')")
        if inbox and tx is not None and tx is not safe.tx:
            raise UsageError("Receiver(inbox=True, tx=…): the worker opens transactions; give tx= to RetrySafe instead")
        self.safe = safe
        self.scheme = scheme
        self.provider = check_provider(provider or scheme.name)
        self._refuse_duplicate()
        self.policy = Policy(
            # Only 2xx is final: after any other answer the sender sends the event again, and then it must run.
            failures="success_only",
            abandoned="rerun",
            retention=scheme.schedule.retention if retention is None else retention,
            lease=lease,
            max_body=scheme.max_body,
        )
        self.handlers = Handlers()
        self.inbox = WebhookInbox(safe, self.provider, self.handlers, self.policy, max_attempts) if inbox else None
        self._tx = tx if tx is not None else safe.tx
        self._clock = clock
        self._running: set[asyncio.Task[Response]] = set()

    def _refuse_duplicate(self) -> None:
        """Two receivers of one provider would share the ids of its events: an event that one handles, the other would
        never see."""
        if self.provider in self.safe.providers:
            raise UsageError(
                f"there is a receiver for {self.provider!r} already, and an event would run only where it comes first: "
                f"put all handlers on that one, or name this one: Receiver(…, provider='{self.provider}-2')"
            )
        self.safe.providers.add(self.provider)

    def on(self, *types: str) -> Callable[[F], F]:
        """`@receiver.on("invoice.paid", "invoice.voided")`, `@receiver.on("invoice.*")`, `@receiver.on()`: all others.

        A handler is `def` or `async def`, with the event as its argument, and `tx` if it wants a transaction. If it
        raises, the sender sends the event again. It returns nothing, or an Answer if the sender should get another one
        than an empty 200.
        """

        def register(function: F) -> F:
            for pattern in types or ("*",):
                handler = self.handlers.add(pattern, function)
                if handler.wants_tx and self._tx is None:
                    raise UsageError(
                        f"{function_name(function)} asks for `tx`, but there is no way to open a transaction: "
                        "Receiver(safe, …, tx=pool), or RetrySafe(url, tx=pool)"
                    )
            return function

        return register

    # Receiving ------------------------------------------------------------------------------

    def verify(self, headers: HeaderPairs, body: bytes) -> Event:
        """The event of a delivery, without handling it. Raises only VerificationError."""
        return self._verify(headers, body)[0]

    def receive(self, headers: HeaderPairs, body: bytes) -> Response:
        """Handle a delivery. Returns the status, headers and body of the answer. `body` is the request's body exactly
        as it arrived."""
        try:
            matched = self._match_handler(headers, body)
            return matched if isinstance(matched, Response) else self._handle(*matched)
        except Exception as error:
            return replies.error_response(error, self.provider)

    async def areceive(self, headers: HeaderPairs, body: bytes) -> Response:
        """`receive` for event loops. If the sender disconnects, the handler still runs to its end."""
        import asyncio

        work = asyncio.create_task(self._areceive(headers, body))
        self._running.add(work)  # a task without a reference may be garbage-collected
        work.add_done_callback(self._running.discard)
        return await asyncio.shield(work)

    async def _areceive(self, headers: HeaderPairs, body: bytes) -> Response:
        try:
            matched = self._match_handler(headers, body)
            return matched if isinstance(matched, Response) else await self._ahandle(*matched)
        except Exception as error:
            return replies.error_response(error, self.provider)

    def _verify(self, headers: HeaderPairs, body: bytes) -> tuple[Event, bytes | None]:
        parsed_headers = Headers(headers, self.scheme.name)
        verified = self.scheme.verify(parsed_headers, body, now=self._clock())
        shown = tuple(parsed_headers.iter_except(HIDDEN_HEADERS | self.scheme.signature_headers))
        event = Event(self.provider, verified.id, verified.key, verified.type, body, verified.timestamp, shown)
        return event, verified.challenge

    def _match_handler(self, headers: HeaderPairs, body: bytes) -> MatchedEvent | Response:
        event, challenge = self._verify(headers, body)
        if challenge is not None:
            return replies.challenge_response(challenge)
        handler = self.handlers.find(event.type)
        # An event without a handler gets 2xx without effect. Otherwise the sender would retry it for days, and then
        # disable the endpoint.
        return replies.accepted_response() if handler is None else MatchedEvent(event, handler)

    # Handling -------------------------------------------------------------------------------

    def build_task(self, event: Event, handler: Handler) -> Task:
        """What is claimed for an event. The target is the handler's pattern, not the event's type, because the sender
        controls the type."""
        key = self._build_key(event)
        target = f"webhook {self.provider} {handler.pattern}"
        return self.safe.build_task(key, target, event_fingerprint(key), self.policy)

    def _build_key(self, event: Event) -> Key:
        return Key(event.key, self.provider, "webhook")

    def _handle(self, event: Event, handler: Handler) -> Response:
        if self.inbox is not None:
            key = self._build_key(event)
            found = self.inbox.put(event, key, event_fingerprint(key), handler)
            if self.inbox.has_accepted(found):
                return inbox_response(found)
        if handler.is_async:
            return wait_for(self._ahandle(event, handler))
        return replies.ended_response(self._run(event, handler))

    async def _ahandle(self, event: Event, handler: Handler) -> Response:
        if self.inbox is not None:
            key = self._build_key(event)
            found = await self.inbox.aput(event, key, event_fingerprint(key), handler)
            if self.inbox.has_accepted(found):
                return inbox_response(found)
        if handler.wants_tx and not handler.is_async:
            import asyncio

            return replies.ended_response(await asyncio.to_thread(self._run, event, handler))
        return replies.ended_response(await self._arun(event, handler))

    def _run(self, event: Event, handler: Handler) -> Ended:
        task, work = self.build_task(event, handler), EventWork(handler, event)
        if handler.wants_tx:
            from retrysafe.transactions.run import perform

            return perform(self.safe, task, self._tx, work)
        return self.safe.guard(task, work)

    async def _arun(self, event: Event, handler: Handler) -> Ended:
        task, work = self.build_task(event, handler), EventWork(handler, event, threaded=True)
        if handler.wants_tx:
            from retrysafe.transactions.run import aperform

            return await aperform(self.safe, task, self._tx, work)
        return await self.safe.aguard(task, work)

    def __repr__(self) -> str:
        return f"Receiver({self.provider!r}, {self.scheme!r}, {len(self.handlers)} handlers)"


def inbox_response(found: Ended | Accepted) -> Response:
    """The answer for an event that is in the inbox, or was done before: either way the sender need not send it
    again."""
    return replies.ended_response(found) if isinstance(found, Ended) else replies.accepted_response()


def event_fingerprint(key: Key) -> Fingerprint:
    """Two deliveries with one key are one event, whatever else differs: a retry has another time, and Stripe counts
    down `pending_webhooks` inside the body. If a scheme does not sign the id, the key contains the body's digest."""
    return Fingerprint("event1", hashlib.sha256(key.value.encode()).digest(), len(key.value))


def check_provider(name: object) -> str:
    if (
        not isinstance(name, str)
        or not 1 <= len(name) <= 100
        or "@" in name
        or not (name.isascii() and name.isprintable())
    ):
        raise UsageError(f"provider={name!r}: give a name of 1 to 100 printable ASCII characters without '@'")
    return name
