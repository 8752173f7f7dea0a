"""The same call within some seconds, for work that has no key of its own. Retention cannot say it: an answer is kept
for an hour at least, so that nobody who is about to ask comes too late.

Time is cut into windows as long as "within" is, and the window is part of the key. Two calls that are closer than that
are in one window or in two that touch. So each call holds two keys, that of the window before its own and then its own:
calls of two windows that touch meet at the one they share, and the store decides between them as it always does. A call
that is found there and began longer ago than "within" is another one; then only the own window counts.

The first key is only held. What is in doubt after a crash is told under the second one, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from retrysafe.core.ops import LookupReply
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.guard import GuardedWork, Task


def window_number(now: int, width: int) -> int:
    """Which window a moment is in; both in microseconds."""
    return now // width


def is_other_call(seen: LookupReply, width: int) -> bool:
    """Whether what was found in the window before is another call: it began longer ago than `width`.

    What was released left nothing behind, and its key is free to be held.
    """
    record = seen.record
    if record is None or record.expired(seen.now) or record.state is State.RELEASED:
        return False
    return seen.now - record.started >= width


def build_holding_task(task: Task) -> Task:
    """A task whose key is only held while another one does the work: whoever dies with it leaves it free, and no
    failure stays in it."""
    return replace(task, policy=task.policy.replace(abandoned="rerun", failures="release"))


class HoldingWork:
    """The work of whoever holds the first key: to do it under the second one. What it returns is stored under both."""

    __slots__ = ("_inner", "_run")

    def __init__(self, inner: GuardedWork, run: Callable[[], Any]) -> None:
        self._inner = inner
        self._run = run

    def call(self, record: Record) -> Any:
        return self._run()

    def answer(self, result: Any) -> Answer:
        return self._inner.answer(result)

    def failure(self, error: Exception) -> Answer:
        return self._inner.failure(error)
