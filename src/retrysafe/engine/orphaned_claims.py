"""Orphaned claims: claims whose caller gave up before the store replied.

A store that hangs may grant a claim after its caller has stopped waiting. The key would then have no living owner and
lapse to `uncertain`, although nothing ran. So a claim that is given up is handed over to this module. The claim is sent
again in the background until the store answers. A grant is released, and with that its token has ended: a copy of the
claim that arrives later is refused (I32). If another caller owns the key, the record is looked up a few more times,
because a copy of the claim may still be under way.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from retrysafe.core.ops import Advance, Claim, ClaimReply, Lookup, LookupReply, Op, Release
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.drive import run
from retrysafe.errors import StoreError

ORPHANED_NOTE = "it was granted when its caller had left"
MAX_ORPHANED_CLAIMS = 1_000
"""Claims that are followed up at once. More of them would mean that the store is away for good."""
ORPHAN_RESEND_SECONDS = (0.25, 0.5, 1.0, 2.0, 5.0)
"""Delay between two sendings; the last value is used for all that follow."""
MAX_ORPHAN_SENDS = 120
"""About ten minutes. A store that is away for longer no longer has what it was sent."""
ORPHAN_LOOKUP_SECONDS = (1.0, 5.0, 15.0)
"""Delays before a key of another owner is looked up again."""

OrphanFlow = Generator["Op[Any] | float", Any, None]
"""Yields operations, and seconds to wait. An operation that fails is thrown in as StoreError."""


def release_orphaned(claim: Claim) -> OrphanFlow:
    """Follow up one claim until no copy of it can be granted any more."""
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
    """Let go of a grant. An operation that was accepted or begun before it goes back to the worker: the worker looks
    only for what rests at a recovery point, and an earlier attempt may have sent its first step."""
    if record is None:
        return
    if record.on_lapse == "resume" and record.attempt > 1 and not record.point:
        yield from send_until_answered(Advance(record.id, record.fence, 1, "started", record.progress, "resume", 0))
    yield from send_until_answered(Release(record.id, record.fence, ORPHANED_NOTE))


def send_until_answered(op: Op[Any]) -> Generator[Op[Any] | float, Any, Any]:
    """Send an operation until the store replies. Returns the reply, or None after too many sendings."""
    for sent in range(MAX_ORPHAN_SENDS):
        try:
            return (yield op)
        except StoreError:
            yield ORPHAN_RESEND_SECONDS[min(sent, len(ORPHAN_RESEND_SECONDS) - 1)]
    return None


class OrphanedClaims:
    """Follows up claims in a thread of its own, which ends when there is nothing left to do."""

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
            self._reset()  # after a fork the thread exists only in the parent, and so do its claims
        if self._waiting.qsize() >= MAX_ORPHANED_CLAIMS:
            return
        self._waiting.put(claim)
        with self._lock:
            if self._thread is None and not self._stop.is_set():
                thread = threading.Thread(target=self._run, name="retrysafe-orphaned-claims", daemon=True)
                with suppress(RuntimeError):  # no thread can be started: the next claim tries again
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
            with suppress(Exception):  # a claim that cannot be released must not hinder the others
                run(release_orphaned(claim), self._perform)

    def _perform(self, step: Op[Any] | float) -> Any:
        """What the flow yields: an operation, or seconds to wait."""
        if isinstance(step, float):
            self._stop.wait(step)
        if self._stop.is_set():
            raise _Stopped
        return None if isinstance(step, float) else self._execute(step)


class _Stopped(Exception):
    """Thrown into a flow when the store is being closed: it ends there."""
