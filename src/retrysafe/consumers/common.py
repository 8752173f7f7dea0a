"""What the consumers of all brokers share: the loop until cancelled, the reason of a dead letter, and one warning."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from retrysafe.consumers.inbox import Inbox
    from retrysafe.consumers.message import Message
    from retrysafe.consumers.verdicts import Dead

MAX_REASON_CHARS = 1000

_log = logging.getLogger("retrysafe.consumers")


async def run_forever(run_once: Callable[[], Awaitable[Any]]) -> NoReturn:
    """Call `run_once` again and again, until the task is cancelled.

    A driver may swallow a cancellation (before Python 3.12 `asyncio.wait_for` does, if what it waits for has just
    ended). The task still counts that cancellation, so it is checked after every round.
    """
    task = asyncio.current_task()
    assert task is not None
    cancellations = task.cancelling()
    while True:
        await run_once()
        if task.cancelling() > cancellations:
            raise asyncio.CancelledError


async def gather_all(works: list[Awaitable[Any]]) -> None:
    """Wait until all of them have ended, then raise the first error. An error does not stop the others halfway."""
    for result in await asyncio.gather(*works, return_exceptions=True):
        if isinstance(result, BaseException):
            raise result


async def wait_for_any(tasks: Iterable[asyncio.Task[Any]], seconds: float) -> None:
    """Wait until one of the tasks has ended, at most `seconds`."""
    pending = set(tasks)
    if pending:
        await asyncio.wait(pending, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    else:
        await asyncio.sleep(seconds)


def shorten_reason(verdict: Dead) -> str:
    """Why a message is a dead letter, short enough for a header."""
    return verdict.why[:MAX_REASON_CHARS]


def warn_unacknowledged(broker: str, inbox: Inbox, message: Message, error: Exception) -> None:
    """Log that the broker did not get the acknowledgement. Only the error's type is logged: its text may quote the
    message."""
    shown, kind = inbox.shown_id(message), type(error).__qualname__
    _log.warning("%s did not get the acknowledgement of message %s and will deliver it again: %s", broker, shown, kind)
