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

ORPHANED_NOTE = "it was granted when its caller had left"
MAX_ORPHANED_CLAIMS = 1_000
"""Claims that are looked after at once; more would be a store that is away for good."""
ORPHAN_RESEND_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Seconds between two sendings; the last one for all that follow."""
MAX_ORPHAN_SENDS = 120
"""About ten minutes: a store that is away for longer has forgotten what it was sent."""
ORPHAN_LOOKUP_SECONDS = (1.0, 5.0, 15.0)
"""Seconds until a key that somebody else has is looked at again."""

OrphanFlow = Generator["Op[Any] | float", Any, None]
"""Yields operations, and seconds to wait. An operation that fails is thrown in as StoreError."""


def release_orphaned(claim: Claim) -> OrphanFlow:
    """Until nobody can be granted this claim any more."""
    reply = yield from send_until_answered(claim)
    if not isinstance(reply, ClaimReply):
        return
    if reply.granted:
        yield from release_record(reply.record)
        return
    for pause in ORPHAN_LOOKUP_SECONDS:
        yield pause
        seen = yield from send_until_answered(Lookup(claim.id))
        if isinstance(seen, LookupReply) and is_granted_to(seen.record, claim):
            yield from release_record(seen.record)
            return


def is_granted_to(record: Record | None, claim: Claim) -> bool:
    return record is not None and record.state is State.CLAIMED and record.token == claim.token


def release_record(record: Record | None) -> OrphanFlow:
    if record is not None:
        yield from send_until_answered(Release(record.id, record.fence, ORPHANED_NOTE))


def send_until_answered(op: Op[Any]) -> Generator[Op[Any] | float, Any, Any]:
    """The reply, or None if there was none for too long."""
    for sent in range(MAX_ORPHAN_SENDS):
        try:
            return (yield op)
        except StoreError:
            yield ORPHAN_RESEND_SECONDS[min(sent, len(ORPHAN_RESEND_SECONDS) - 1)]
    return None


class OrphanedClaims:
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
        if self._waiting.qsize() >= MAX_ORPHANED_CLAIMS:
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
                self._follow(release_orphaned(claim))

    def _follow(self, story: OrphanFlow) -> None:
        asked = next(story)
        while not self._stop.is_set():
            try:
                if isinstance(asked, float):
                    self._stop.wait(asked)
                    asked = story.send(None)
                else:
                    asked = self._send(story, asked)
            except StopIteration:
                return

    def _send(self, story: OrphanFlow, op: Op[Any]) -> Op[Any] | float:
        try:
            reply = self._execute(op)
        except StoreError as error:
            return story.throw(error)
        return story.send(reply)
