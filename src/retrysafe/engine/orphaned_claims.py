"""Orphaned claims: claims whose caller gave up before the store replied.

A store that hangs may grant a claim after its caller has stopped waiting. The key would then have no living owner and
lapse to `uncertain`, although nothing ran. So a claim that is given up is handed over to this module. The claim is sent
again in the background until the store answers. A grant is withdrawn, and with that its token has ended: a copy of the
claim that arrives later is refused (I32). That holds also if the sweeper has marked the record meanwhile: the process
may have been stopped for minutes. Of a first attempt nothing is left that binds the key to this request (I37). Then the
record is looked up a few more times, because a copy of the claim may still be under way.

A caller that was refused, and one that owned the key and could not go on, leave in the same way (`LeaveClaim`).
"""

from __future__ import annotations

import heapq
import os
import queue
import threading
import time
from collections.abc import Callable, Generator
from contextlib import suppress
from typing import Any

from retrysafe.core.ops import Advance, Claim, ClaimReply, Lookup, LookupReply, Op, Withdraw
from retrysafe.core.records import Record
from retrysafe.core.states import OPEN
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

MAX_PAUSE_SECONDS = 0.5
"""The thread looks so often for new claims while it waits."""

OrphanFlow = Generator["Op[Any] | float", Any, None]
"""Yields operations, and seconds to wait. An operation that fails is thrown in as StoreError."""


def release_orphaned(claim: Claim) -> OrphanFlow:
    """Follow up one claim until no copy of it can be granted any more. A record keeps the tokens of its last eight
    attempts (rule 13): after an outage as many callers of one key may have left within seconds, and a copy that was
    under way is granted once more. So a grant that was released is looked for as well."""
    reply = yield from send_until_answered(claim)
    if not isinstance(reply, ClaimReply):
        return
    if reply.granted or is_granted_to(reply.record, claim.token):
        yield from release_record(reply.record)
    yield from release_late_grant(claim.id, claim.token, ORPHAN_LOOKUP_SECONDS)


def release_late_grant(record_id: bytes, token: bytes, pauses: tuple[float, ...] = ()) -> OrphanFlow:
    """Look a few times whether a claim is granted whose caller has left, and release it. The claim is not sent again:
    by default the first look is at once."""
    for pause in pauses or (0.0, *ORPHAN_LOOKUP_SECONDS):
        yield pause
        seen = yield from send_until_answered(Lookup(record_id))
        if isinstance(seen, LookupReply) and is_granted_to(seen.record, token):
            yield from release_record(seen.record)
            return


def is_granted_to(record: Record | None, token: bytes) -> bool:
    """Whether this token owns the record. Its caller has left and nothing ran, also if the record is uncertain."""
    return record is not None and record.state in OPEN and record.token == token


def release_record(record: Record | None) -> OrphanFlow:
    """Let go of a grant: nothing ran under it. An operation that was accepted or begun before it goes back to the
    worker: the worker looks only for what rests at a recovery point, and an earlier attempt may have sent its first
    step."""
    if record is None:
        return
    if record.on_lapse == "resume" and record.attempt > 1 and not record.point:
        yield from send_until_answered(Advance(record.id, record.fence, 1, "started", record.progress, "resume", 0))
    yield from send_until_answered(Withdraw(record.id, record.fence, ORPHANED_NOTE))


def send_until_answered(op: Op[Any]) -> Generator[Op[Any] | float, Any, Any]:
    """Send an operation until the store replies. Returns the reply, or None after too many sendings."""
    for sent in range(MAX_ORPHAN_SENDS):
        try:
            return (yield op)
        except StoreError:
            yield ORPHAN_RESEND_SECONDS[min(sent, len(ORPHAN_RESEND_SECONDS) - 1)]
    return None


def run_to_pause(flow: OrphanFlow, execute: Callable[[Op[Any]], Any]) -> float | None:
    """Go on with a flow until it wants to wait. How many seconds; None: it has ended."""
    try:
        step = next(flow)
        while not isinstance(step, float):
            try:
                reply = execute(step)
            except Exception as error:
                step = flow.throw(error)
            else:
                step = flow.send(reply)
    except StopIteration:
        return None
    return step


class OrphanedClaims:
    """Follows up claims in a thread of its own, which ends when there is nothing left to do. Claims that wait for their
    next look do not hold up the others."""

    def __init__(self, execute: Callable[[Op[Any]], Any]) -> None:
        self._execute = execute
        self._reset()

    def _reset(self) -> None:
        self._pid = os.getpid()
        self._new: queue.SimpleQueue[OrphanFlow] = queue.SimpleQueue()
        self._waiting: list[tuple[float, int, OrphanFlow]] = []
        """When each flow goes on, on the monotonic clock. Only the thread uses it."""
        self._count = 0
        self._lock = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None

    def add(self, claim: Claim) -> None:
        """Follow up a claim that was sent, and whose reply nobody has."""
        self._start(release_orphaned(claim))

    def leave(self, record_id: bytes, token: bytes) -> None:
        """Release what this token is granted, now or by a late copy."""
        self._start(release_late_grant(record_id, token))

    def _start(self, flow: OrphanFlow) -> None:
        if self._pid != os.getpid():
            self._reset()  # after a fork the thread exists only in the parent, and so do its claims
        if self._new.qsize() + len(self._waiting) >= MAX_ORPHANED_CLAIMS:
            return
        self._new.put(flow)
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
                flow = self._take_next()
                if flow is None and not self._waiting:
                    self._thread = None
                    return
            if flow is None:
                self._stop.wait(min(self._waiting[0][0] - time.monotonic(), MAX_PAUSE_SECONDS))
                continue
            with suppress(Exception):  # a claim that cannot be released must not hinder the others
                pause = run_to_pause(flow, self._execute_unless_stopped)
                if pause is not None:
                    self._count += 1
                    heapq.heappush(self._waiting, (time.monotonic() + pause, self._count, flow))

    def _take_next(self) -> OrphanFlow | None:
        """A new flow, or one whose pause is over."""
        with suppress(queue.Empty):
            return self._new.get_nowait()
        if self._waiting and self._waiting[0][0] <= time.monotonic():
            return heapq.heappop(self._waiting)[2]
        return None

    def _execute_unless_stopped(self, op: Op[Any]) -> Any:
        if self._stop.is_set():
            raise _Stopped
        return self._execute(op)


class _Stopped(Exception):
    """Thrown into a flow when the store is being closed: it ends there."""
