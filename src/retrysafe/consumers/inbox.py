"""The inbox: one consumer, its handler, and the marks of what it has handled.

A handler that asks for `tx` has the mark committed with what it writes, in one transaction: after a crash at any
instruction either both are there or neither. Any other handler is guarded: the claim is committed before it runs and
the mark after it, so a crash in between leaves the question `abandoned` answers.

The broker is told last. A message that was committed and not acknowledged comes again, finds its mark, and is done.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args

from retrysafe.consumers.message import Message, Missing, ReadId, build_id_reader, content_of, hash_payload
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
from retrysafe.errors import RetrySafeError, UsageError
from retrysafe.policy import DAY, Abandoned, Policy
from retrysafe.web.error_text import describe_error
from retrysafe.webhooks.handlers import Handler, build_handler, function_name

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
    """It was begun too many times and never came to an end: whoever handles it dies of it."""


class Inbox:
    """What one consumer has handled. Two consumers with different names each handle a message once.

    `name` is whose marks these are. `id` says where a message's id is (a header, or a function of the message; by
    default where producers usually put it), `missing` what becomes of one without. `same="body"` refuses a message
    whose id was used by one that says something else; `"id"` takes any such message for the same one. `tx` is how to
    open your transactions, for handlers that ask for `tx` (else that of `safe`). `max_attempts` is how often a handler
    may fail before its message goes to the dead letters. `retention` is how long an id is remembered, in seconds:
    longer than anybody sends it again. `lease` and `abandoned` are about handlers without `tx` that died: how long
    their message waits, and whether it then runs again or goes to the dead letters as uncertain.
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
        lease: float = 60.0,
        abandoned: Abandoned = "rerun",
        pause: Callable[[int], float] = compute_backoff,
    ) -> None:
        for given, value, choices in (("missing", missing, get_args(Missing)), ("same", same, get_args(Same))):
            if value not in choices:
                raise UsageError(f"Inbox({given}={value!r}): choose one of {', '.join(map(repr, choices))}")
        if max_attempts < 1:
            raise UsageError(f"Inbox(max_attempts={max_attempts!r}): a message is tried at least once")
        self.safe = safe
        self.name = check_name(name)
        self.tx = tx if tx is not None else safe.tx
        self.policy = Policy(failures="success_only", abandoned=abandoned, retention=retention, lease=lease)
        self.max_attempts = max_attempts
        self._choose = build_id_reader(id)
        self._missing = missing
        self._same = same
        self._pause = pause
        self._handler: Handler | None = None

    def handler(self, function: F) -> F:
        """Decorate the one function that handles this consumer's messages: `def` or `async def`, of the message, and
        of `tx` if what it writes should commit with the mark."""
        if self._handler is not None:
            raise UsageError(
                f"the inbox {self.name!r} has {function_name(self._handler.function)} as its handler already; "
                "one handler per inbox: give another consumer an inbox of its own"
            )
        made = build_handler("*", function, "message")
        if made.wants_tx and self.tx is None:
            raise UsageError(
                f"{function_name(function)} asks for `tx`, but nobody said how to open one: "
                "Inbox(safe, …, tx=pool), or RetrySafe(url, tx=pool)"
            )
        self._handler = made
        return function

    # Processing -----------------------------------------------------------------------------

    def process(self, message: Message, handler: Handler | None = None) -> Verdict:
        """Handle the message once, and say what to tell the broker. Raises only where the program is wrong."""
        handling = self.prepare(message, handler)
        if isinstance(handling, Dead):
            return self._log_verdict(message, handling)
        try:
            return Done(self._run(handling).replayed)
        except Exception as error:
            return self._log_verdict(handling.message, self._decide_verdict(handling, error))

    async def aprocess(self, message: Message, handler: Handler | None = None) -> Verdict:
        """The same for event loops; a handler that is a plain `def` runs in a thread."""
        handling = self.prepare(message, handler)
        if isinstance(handling, Dead):
            return self._log_verdict(message, handling)
        try:
            return Done((await self._arun(handling)).replayed)
        except Exception as error:
            return self._log_verdict(handling.message, self._decide_verdict(handling, error))

    def prepare(self, message: Message, handler: Handler | None = None) -> MessageWork | Dead:
        """The message with its id, ready to be handled."""
        chosen = handler or self._handler
        if chosen is None:
            raise UsageError(f"the inbox {self.name!r} has no handler: decorate a function with @inbox.handler")
        try:
            found = self._id_of(message)
        except Exception as error:  # the user's function, on whatever a producer sent
            kind = type(error).__qualname__
            return Dead(f"its id cannot be read: {kind}: {error}", f"its id cannot be read: {kind}")
        if not found:
            return Dead(NO_ID, NO_ID)
        return MessageWork(replace(message, id=found), chosen, self.max_attempts)

    def _id_of(self, message: Message) -> str:
        """Empty where it has none."""
        found = self._choose(message)
        if not found and self._missing == "payload":
            found = hash_payload(message)
        return str(found) if found else ""

    def logged_as(self, message: Message) -> str:
        """A message as the log may have it: the beginning of its record's id, which `retrysafe keys show` takes."""
        try:
            return self._key(self._id_of(message)).id(self.safe.namespace).hex()[:SHOWN_DIGITS]
        except Exception:  # the user's function, or an id that cannot be a key
            return "(no id)"

    def _key(self, id: str) -> Key:
        return Key(id, self.name, "message")

    def build_task(self, message: Message) -> Task:
        key = self._key(message.id)
        content = content_of(message) if self._same == "body" else message.id.encode("utf-8", "surrogatepass")
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

            return await asyncio.to_thread(self._run, handling)  # a plain handler's transaction is a plain one
        handling.threaded = True
        task = self.build_task(handling.message)
        if handler.wants_tx:
            from retrysafe.transactions.run import aperform

            return await aperform(self.safe, task, self.tx, handling)
        return await self.safe.aguard(task, handling)

    # What it meant --------------------------------------------------------------------------

    def _decide_verdict(self, handling: MessageWork, error: Exception) -> Verdict:
        verdict = self._judge_error(handling, error)
        if isinstance(verdict, Done):
            return verdict
        words = str(error) if isinstance(error, TooManyAttempts) else describe_error(error, handling.message.id)
        return replace(verdict, logged=words)

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
        if isinstance(verdict, Dead):
            _log.error("message %s of %s for %s goes to the dead letters: %s", self.logged_as(message), message.source,
                       self.name, verdict.logged)  # fmt: skip
        elif isinstance(verdict, Later) and verdict.failed:
            _log.warning("message %s of %s for %s comes again: %s", self.logged_as(message), message.source, self.name,
                         verdict.logged)  # fmt: skip
        return verdict

    def __repr__(self) -> str:
        return f"Inbox({self.name!r}, {self.safe!r})"


class MessageWork:
    """One message for one handler, as work for the guard or the transaction."""

    __slots__ = ("_limit", "failed", "handler", "message", "threaded")

    def __init__(self, message: Message, handler: Handler, limit: int) -> None:
        self.message = message
        self.handler = handler
        self.failed: Exception | None = None
        """What the handler raised: the message's fault, where anything else is the store's or the program's."""
        self.threaded = False
        """The handler is a plain function and must not hold up the loop it is called on."""
        self._limit = limit

    def call(self, given: Any) -> Any:
        """The guard gives its record, a transaction its handle."""
        if isinstance(given, Record):
            self._refuse_exhausted(given)
        if self.handler.is_async:
            return self._await_handler(given)
        if self.threaded:
            import asyncio

            return asyncio.to_thread(self._call_handler, given)
        return self._call_handler(given)

    def answer(self, result: Any) -> Answer:
        return DONE_ANSWER

    def failure(self, error: Exception) -> Answer:
        raise AssertionError("a failure is never final here: the message comes again, or a person sees it") from error

    def _refuse_exhausted(self, record: Record) -> None:
        """A message that kills its handler raises nothing; but its record counts. One sent anew by a person who has
        repaired the handler is delivered for the first time, and may."""
        if record.attempt > self._limit and self.message.deliveries > 1:
            raise TooManyAttempts(f"it was begun {record.attempt - 1} times, and its handler never came to an end")

    def _call_handler(self, given: Any) -> None:
        try:
            self.handler.call(self.message, given)
        except Exception as error:
            self.failed = error
            raise

    async def _await_handler(self, given: Any) -> None:
        try:
            await self.handler.call(self.message, given)
        except Exception as error:
            self.failed = error
            raise


def check_name(name: object) -> str:
    if not isinstance(name, str) or not 1 <= len(name) <= 200 or not name.isprintable():
        raise UsageError(f"Inbox(safe, {name!r}): name the consumer with 1 to 200 printable characters")
    return name
