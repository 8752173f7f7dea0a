"""The inbox: one consumer, its handler, and the marks of the messages that it has handled.

If a handler asks for `tx`, the mark commits with the handler's writes in one transaction: after a crash at any
instruction either both are stored or neither. Any other handler is guarded: the claim is committed before it runs and
the mark after it. After a crash in between, `abandoned` says what happens.

The broker gets its acknowledgement last. A message that was committed and not acknowledged is delivered again, and then
the inbox finds its mark and does not run the handler.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from retrysafe.consumers.message import Message, Missing, ReadId, build_id_reader, get_content, hash_payload
from retrysafe.consumers.verdicts import (
    Dead,
    Done,
    Later,
    Verdict,
    compute_backoff,
    verdict_for_error,
    verdict_for_failure,
)
from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.guard import Ended, Task
from retrysafe.engine.handlers import Handler, HandlerWork, build_handler, function_name
from retrysafe.errors import RetrySafeError, UsageError
from retrysafe.policy import DAY, DEFAULT_LEASE_SECONDS, Abandoned, Policy
from retrysafe.web.problems import describe_error

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

F = TypeVar("F", bound=Callable[..., Any])
Same = Literal["body", "id"]

DONE_ANSWER = Answer(200)
MAX_ATTEMPTS = 5
RETENTION_SECONDS = 7 * DAY
SHOWN_DIGITS = 16
NO_ID = (
    "it has no id, so nobody could tell it from a second one. Have the producer send one, name its header "
    "with Inbox(id=…), or let its content be its id with Inbox(missing='payload')"
)

_log = logging.getLogger("retrysafe.consumers")


class TooManyAttempts(Exception):
    """The handler was begun too many times and never ended: the message kills its worker."""


class Inbox:
    """The messages that one consumer has handled. Two consumers with different names each handle a message once.

    `name` is the consumer's name and the scope of its marks. `id` says where a message's id is: the name of a header,
    or a function of the message; by default the usual places. `missing` says what happens to a message without an id.
    `same="body"` refuses a message whose id was used by a message with another body; `"id"` takes every message with
    that id for the same one. `tx` is how to open your transactions, for handlers that ask for `tx`; the default is that
    of `safe`. `max_attempts` is how often a handler may fail before its message becomes a dead letter. `retention` is
    how long an id is stored, in seconds; it must be longer than producers and brokers send a message again. `lease` and
    `abandoned` are for handlers without `tx` that died: how long their message waits, and whether it then runs again or
    becomes a dead letter as uncertain.
    """

    def __init__(
        self,
        safe: RetrySafe,
        name: str,
        *,
        id: str | ReadId | None = None,
        missing: Missing = "dead",
        same: Same = "body",
        tx: Any = None,
        max_attempts: int = MAX_ATTEMPTS,
        retention: float = RETENTION_SECONDS,
        lease: float = DEFAULT_LEASE_SECONDS,
        abandoned: Abandoned = "rerun",
        pause: Callable[[int], float] = compute_backoff,
    ) -> None:
        for given, value, choices in (("missing", missing, get_args(Missing)), ("same", same, get_args(Same))):
            if value not in choices:
                raise UsageError(f"Inbox({given}={value!r}): choose one of {', '.join(map(repr, choices))}")
        if max_attempts < 1:
            raise UsageError(f"Inbox(max_attempts={max_attempts!r}): a message is tried at least once")
        self.safe = safe
        self.name = check_inbox_name(name)
        self.tx = tx if tx is not None else safe.tx
        self.policy = Policy(failures="success_only", abandoned=abandoned, retention=retention, lease=lease)
        self.max_attempts = max_attempts
        self._choose_id = build_id_reader(id)
        self._missing = missing
        self._same = same
        self._pause = pause
        self._handler: Handler | None = None

    def handler(self, function: F) -> F:
        """Decorate the one function that handles this consumer's messages: `def` or `async def`, with the message as
        its argument, and `tx` if its writes should commit with the mark."""
        if self._handler is not None:
            raise UsageError(
                f"the inbox {self.name!r} has {function_name(self._handler.function)} as its handler already; "
                "one handler per inbox: give another consumer an inbox of its own"
            )
        handler = build_handler("*", function, "message")
        if handler.wants_tx and self.tx is None:
            raise UsageError(
                f"{function_name(function)} asks for `tx`, but there is no way to open a transaction: "
                "Inbox(safe, …, tx=pool), or RetrySafe(url, tx=pool)"
            )
        self._handler = handler
        return function

    # Processing -----------------------------------------------------------------------------

    def process(self, message: Message, handler: Handler | None = None) -> Verdict:
        """Handle the message once. The verdict says what to do at the broker. Raises only if the program is wrong."""
        handling = self.prepare(message, handler)
        if isinstance(handling, Dead):
            return self._log_verdict(message, handling)
        try:
            return Done(self._run(handling).replayed)
        except Exception as error:
            return self._log_verdict(handling.message, self._decide_verdict(handling, error))

    async def aprocess(self, message: Message, handler: Handler | None = None) -> Verdict:
        """`process` for event loops; a handler that is a plain `def` runs in a thread."""
        handling = self.prepare(message, handler)
        if isinstance(handling, Dead):
            return self._log_verdict(message, handling)
        try:
            return Done((await self._arun(handling)).replayed)
        except Exception as error:
            return self._log_verdict(handling.message, self._decide_verdict(handling, error))

    def prepare(self, message: Message, handler: Handler | None = None) -> MessageWork | Dead:
        """The message with its id, as work for its handler; or the verdict that it is a dead letter."""
        chosen = handler or self._handler
        if chosen is None:
            raise UsageError(f"the inbox {self.name!r} has no handler: decorate a function with @inbox.handler")
        try:
            message_id = self._read_id(message)
        except Exception as error:  # the user's function may raise anything for what a producer sent
            kind = type(error).__qualname__
            return Dead(f"its id cannot be read: {kind}: {error}", f"its id cannot be read: {kind}")
        if not message_id:
            return Dead(NO_ID, NO_ID)
        return MessageWork(chosen, replace(message, id=message_id), self.max_attempts)

    def _read_id(self, message: Message) -> str:
        """The message's id; empty if it has none."""
        message_id = self._choose_id(message)
        if not message_id and self._missing == "payload":
            message_id = hash_payload(message)
        return str(message_id) if message_id else ""

    def shown_id(self, message: Message) -> str:
        """How the log names a message: the first digits of its record's id, which `retrysafe keys show` takes."""
        try:
            return self._build_key(self._read_id(message)).id(self.safe.namespace).hex()[:SHOWN_DIGITS]
        except Exception:  # the user's function raised, or the id cannot be a key
            return "(no id)"

    def _build_key(self, id: str) -> Key:
        return Key(id, self.name, "message")

    def build_task(self, message: Message) -> Task:
        key = self._build_key(message.id)
        content = get_content(message) if self._same == "body" else message.id.encode("utf-8", "surrogatepass")
        fingerprint = Fingerprint("message1", hashlib.sha256(content).digest(), len(content))
        return self.safe.build_task(key, f"message {self.name}", fingerprint, self.policy)

    def _run(self, handling: MessageWork) -> Ended:
        if handling.handler.is_async:
            return wait_for(self._arun(handling))
        task = self.build_task(handling.message)
        if handling.handler.wants_tx:
            from retrysafe.transactions.run import perform

            return perform(self.safe, task, self.tx, handling)
        return self.safe.guard(task, handling)

    async def _arun(self, handling: MessageWork) -> Ended:
        handler = handling.handler
        if not handler.is_async and handler.wants_tx:
            import asyncio

            return await asyncio.to_thread(self._run, handling)  # a plain handler needs a sync transaction
        handling.threaded = True
        task = self.build_task(handling.message)
        if handler.wants_tx:
            from retrysafe.transactions.run import aperform

            return await aperform(self.safe, task, self.tx, handling)
        return await self.safe.aguard(task, handling)

    # Verdicts -------------------------------------------------------------------------------

    def _decide_verdict(self, handling: MessageWork, error: Exception) -> Verdict:
        verdict = self._judge_error(handling, error)
        if isinstance(verdict, Done):
            return verdict
        logged = str(error) if isinstance(error, TooManyAttempts) else describe_error(error, handling.message.id)
        return replace(verdict, logged=logged)

    def _judge_error(self, handling: MessageWork, error: Exception) -> Verdict:
        if isinstance(error, TooManyAttempts):
            return Dead(str(error))
        if error is handling.failed:
            failures = handling.message.failures + 1
            return verdict_for_failure(error, failures, self.max_attempts, self._pause(failures))
        verdict = verdict_for_error(error) if isinstance(error, RetrySafeError) else None
        if verdict is None:
            raise error
        return verdict

    def _log_verdict(self, message: Message, verdict: Verdict) -> Verdict:
        shown = self.shown_id(message)
        if isinstance(verdict, Dead):
            text = "message %s of %s for %s goes to the dead letters: %s"
            _log.error(text, shown, message.source, self.name, verdict.logged)
        elif isinstance(verdict, Later) and verdict.failed:
            text = "message %s of %s for %s will be delivered again: %s"
            _log.warning(text, shown, message.source, self.name, verdict.logged)
        return verdict

    def __repr__(self) -> str:
        return f"Inbox({self.name!r}, {self.safe!r})"


class MessageWork(HandlerWork):
    """One message for one handler."""

    __slots__ = ("_limit", "failed")

    def __init__(self, handler: Handler, message: Message, limit: int) -> None:
        super().__init__(handler, message)
        self.failed: Exception | None = None
        """What the handler raised. Any other error is the store's or the program's."""
        self._limit = limit

    def call(self, given: Any) -> Any:
        if isinstance(given, Record):
            self._refuse_exhausted(given)
        return super().call(given)

    def answer(self, result: Any) -> Answer:
        return DONE_ANSWER

    def _refuse_exhausted(self, record: Record) -> None:
        """A message that kills its worker raises nothing, but its record counts the attempts. A person who repaired the
        handler may send the message anew: that is its first delivery, and it is not refused."""
        if record.attempt > self._limit and self.message.deliveries > 1:
            raise TooManyAttempts(f"it was begun {record.attempt - 1} times, and its handler never came to an end")

    def call_handler(self, given: Any) -> None:
        try:
            super().call_handler(given)
        except Exception as error:
            self.failed = error
            raise

    async def acall_handler(self, given: Any) -> None:
        try:
            await super().acall_handler(given)
        except Exception as error:
            self.failed = error
            raise


def check_inbox_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise UsageError(f"Inbox(safe, {name!r}): name the consumer with 1 to 200 printable characters")
    return name
