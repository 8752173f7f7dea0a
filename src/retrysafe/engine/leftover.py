"""Claims that were given up unheard, and what becomes of them.

A store that hangs may carry out a claim after its caller has stopped waiting. The key would then be held by nobody and
lapse to `uncertain`, although nothing ran. So whoever gives a claim up leaves it here. It is sent again in the
background until the store answers. What it is granted then is given back, and its token has ended: a copy of it that
arrives later is refused (I32). Where somebody else has the key it is looked at a few times more, for a copy may still
be under way.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from retrysafe.core.ops import Claim, ClaimReply, Lookup, LookupReply, Op, Release
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import StoreError

NOTE = "it was granted when its caller had left"
MOST = 1_000
"""Claims that are looked after at once; more would be a store that is away for good."""
PAUSES = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two sendings; the last one for all that follow."""
TRIES = 120
"""About ten minutes: a store that is away for longer has forgotten what it was sent."""
LOOKS = (1.0, 5.0, 15.0)
"""Seconds until a key that somebody else has is looked at again."""

Story = Generator["Op[Any] | float", Any, None]
"""Yields operations, and seconds to wait. An operation that fails is thrown in as StoreError."""


def give_back(claim: Claim) -> Story:
    """Until nobody can be granted this claim any more."""
    reply = yield from answered(claim)
    if not isinstance(reply, ClaimReply):
        return
    if reply.granted:
        yield from released(reply.record)
        return
    for pause in LOOKS:
        yield pause
        seen = yield from answered(Lookup(claim.id))
        if isinstance(seen, LookupReply) and ours(seen.record, claim):
            yield from released(seen.record)
            return


def ours(record: Record | None, claim: Claim) -> bool:
    return record is not None and record.state is State.CLAIMED and record.token == claim.token


def released(record: Record | None) -> Story:
    if record is not None:
        yield from answered(Release(record.id, record.fence, NOTE))


def answered(op: Op[Any]) -> Generator[Op[Any] | float, Any, Any]:
    """The reply, or None if there was none for too long."""
    for sent in range(TRIES):
        try:
            return (yield op)
        except StoreError:
            yield PAUSES[min(sent, len(PAUSES) - 1)]
    return None


class Leftovers:
    """Looks after them in a thread of its own, which ends when there is nothing left to do."""

    def __init__(self, execute: Callable[[Op[Any]], Any]) -> None:
        self._execute = execute
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._waiting: queue.SimpleQueue[Claim] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, claim: Claim) -> None:
        if self._pid != os.getpid():
            self._reset()  # the thread did not come along through the fork, and what it looks after is its process's
        if self._waiting.qsize() >= MOST:
            return
        self._waiting.put(claim)
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(target=self._run, name="retrysafe-leftovers", daemon=True)
                with suppress(RuntimeError):  # no thread to be had: the next one starts it
                    thread.start()
                    self._thread = thread

    def close(self) -> None:
        if self._pid == os.getpid():
            self._stop.set()

    def _run(self) -> None:
        while not self._stop.is_set():
            with self._lock:
                try:
                    claim = self._waiting.get_nowait()
                except queue.Empty:
                    self._thread = None
                    return
            with suppress(Exception):  # one that cannot be given back must not keep the others from it
                self._follow(give_back(claim))

    def _follow(self, story: Story) -> None:
        asked = next(story)
        while not self._stop.is_set():
            try:
                if isinstance(asked, float):
                    self._stop.wait(asked)
                    asked = story.send(None)
                else:
                    asked = self._sent(story, asked)
            except StopIteration:
                return

    def _sent(self, story: Story, op: Op[Any]) -> Op[Any] | float:
        try:
            reply = self._execute(op)
        except StoreError as error:
            return story.throw(error)
        return story.send(reply)
