"""A deduplication window: calls with the same arguments within some seconds are one call. For work that has no key of
its own. Retention cannot express it: an answer is kept for an hour at least, for a client that is about to retry.

Time is cut into windows of the length `within`, and the number of the window is part of the key. Two calls that are
closer than `within` are in the same window or in neighbouring ones. So each call claims two keys: that of the window
before its own, and then that of its own. Calls of neighbouring windows meet at the key they share, and the store
decides between them as for any key. If the call found there began longer ago than `within`, it is another call, and
only the own window counts.

The first key is only held while the second one does the work. After a crash, only the second one is uncertain.
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
    """The number of the window that a moment is in; both in microseconds."""
    return now // width


def is_other_call(seen: LookupReply, width: int) -> bool:
    """Whether the record of the window before belongs to another call: it began longer ago than `width`.

    A released record left nothing behind, and its key may be claimed.
    """
    record = seen.record
    if record is None or record.expired(seen.now) or record.state is State.RELEASED:
        return False
    return seen.now - record.started >= width


def build_holding_task(task: Task) -> Task:
    """A task whose key is only held while another one does the work. If its owner dies, the key is free again, and no
    failure is stored under it."""
    return replace(task, policy=task.policy.replace(abandoned="rerun", failures="release"))


class HoldingWork:
    """The work under the first key: do the real work under the second one. The result is stored under both."""

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
