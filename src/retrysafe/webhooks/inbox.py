"""The inbox of a receiver: the event is committed, the sender gets its 2xx at once, and the worker runs the handler.

The inbox is an operation that starts in the worker; there is one for plain and one for async handlers. A failed handler
is retried with growing pauses. If it keeps failing, the event becomes a dead letter, which `retrysafe operations`
shows. A handler that asks for `tx` is a local step: its writes commit with the mark that the step is done.

Only an event that has a handler is accepted, so every stored event must be handled. A worker whose code has no handler
for an event leaves it waiting for a worker that has one, or for a release that brings the handler back.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Fingerprint
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.effects import Flow
from retrysafe.engine.guard import Ended
from retrysafe.engine.handlers import Handler, Handlers, function_name
from retrysafe.errors import OperationChanged, UsageError
from retrysafe.operations import perform
from retrysafe.operations.operation import Operation
from retrysafe.operations.submission import Accepted, accept
from retrysafe.policy import Policy
from retrysafe.webhooks.event import Event, answer_from_result

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

MAX_ATTEMPTS = 20
"""About an hour with the worker's pauses. More than for other operations, because the sender will not send the event
again."""


class WebhookInbox:
    """The stored events of one provider."""

    def __init__(self, safe: RetrySafe, provider: str, handlers: Handlers, policy: Policy, attempts: int) -> None:
        self._safe = safe
        self._handlers = handlers
        name = f"webhook-{provider}"
        chosen = policy.replace(failures="release", start="worker")
        self._plain = declare_operation(safe.operation(name, policy=chosen, max_attempts=attempts), handlers)
        self._async = adeclare_operation(
            safe.operation(f"{name}-async", policy=chosen, max_attempts=attempts), handlers
        )

    def put(self, event: Event, key: Key, fingerprint: Fingerprint, handler: Handler) -> Ended | Accepted:
        """Commit the event, or find that it was committed before."""
        return perform.run_sync(self._safe, self._accept_flow(event, key, fingerprint, handler))

    async def aput(self, event: Event, key: Key, fingerprint: Fingerprint, handler: Handler) -> Ended | Accepted:
        return await perform.run_async(self._safe, self._accept_flow(event, key, fingerprint, handler))

    def has_accepted(self, found: Ended | Accepted) -> bool:
        """Whether the event is done or the worker will handle it. A record that was begun before the receiver had an
        inbox is neither: with a 2xx for it the event would be lost."""
        return isinstance(found, Ended) or found.record.target in (self._plain.target, self._async.target)

    def _accept_flow(
        self, event: Event, key: Key, fingerprint: Fingerprint, handler: Handler
    ) -> Flow[Ended | Accepted]:
        operation = self._async if handler.is_async else self._plain
        task, claim = operation.prepare((event,), {}, key)
        # The fingerprint of the key, not of the arguments: a retry has another time, and some senders change counters.
        by_key = replace(task, fingerprint=fingerprint), replace(claim, fingerprint=fingerprint)
        return (yield from accept(*by_key, self._safe.events))


def explain_missing_handler(handlers: Handlers, event: Event) -> str:
    """Why an event of the inbox cannot be handled here; empty if it can."""
    if handlers.find(event.type) is not None:
        return ""
    return f"there is no handler for {event.type!r} here, although there was one when event {event.id!r} was accepted"


def require_handler(operation: Operation, handlers: Handlers, event: Event) -> Handler:
    """The event's handler. Raises OperationChanged if this code has none."""
    handler = handlers.find(event.type)
    if handler is None:
        raise OperationChanged(operation.target, explain_missing_handler(handlers, event))
    return handler


def declare_operation(operation: Operation, handlers: Handlers) -> Operation:
    """The operation for plain handlers."""
    operation.unable = lambda event: explain_missing_handler(handlers, event)

    @operation.local
    def handle(tx: Any, event: Event) -> Answer:
        return answer_from_result(require_step_handler(handlers, event, is_async=False).call(event, tx))

    @operation.body
    def process(event: Event) -> Answer:
        handler = require_handler(operation, handlers, event)
        if handler.wants_tx:
            return handle(event)
        result = handler.call(event)
        return answer_from_result(wait_for(result) if handler.is_async else result)

    return operation


def adeclare_operation(operation: Operation, handlers: Handlers) -> Operation:
    """The operation for async handlers."""
    operation.unable = lambda event: explain_missing_handler(handlers, event)

    @operation.local
    async def handle(tx: Any, event: Event) -> Answer:
        return answer_from_result(await require_step_handler(handlers, event, is_async=True).call(event, tx))

    @operation.body
    async def process(event: Event) -> Answer:
        handler = require_handler(operation, handlers, event)
        if handler.wants_tx:
            return await handle(event)
        if handler.is_async:
            return answer_from_result(await handler.call(event))
        import asyncio

        return answer_from_result(await asyncio.to_thread(handler.call, event))

    return operation


def require_step_handler(handlers: Handlers, event: Event, *, is_async: bool) -> Handler:
    """The handler of a local step. Its transaction is open already, so a handler that changed between sync and async
    cannot run."""
    handler = handlers.find(event.type)
    assert handler is not None, "looked up just before"
    if handler.is_async != is_async:
        was, now = ("async def", "def") if is_async else ("def", "async def")
        raise UsageError(
            f"event {event.id!r} was accepted for a handler that was `{was}`, and {function_name(handler.function)} is "
            f"`{now}`; keep the old one until the inbox is empty"
        )
    return handler
