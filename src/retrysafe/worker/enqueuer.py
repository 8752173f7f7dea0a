"""The enqueuer: publishes staged jobs, at least once, with a stable id, and deletes exactly what it published.

Between publishing and deleting the process may die; then the job is published again, with the same id, once its
lease is over. Whoever receives it can tell (I20).
"""

from __future__ import annotations

import inspect
import secrets
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from retrysafe.core.jobs import FailJob, FinishJobs, Job, StagedJob, TakeJobs
from retrysafe.core.times import micros
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe

BATCH = 100
LEASE = 60.0
MAX_ATTEMPTS = 20
BACKOFF_LIMIT = 600.0

Publisher = Callable[[Job], Any]
"""Delivers a job, or raises. May be async."""


class NoPublisher(LookupError):
    """Nobody here knows the topic: another worker may, so the job waits and never becomes a dead letter for this."""


class Unreadable(ValueError):
    """Its payload cannot be opened with the keys at hand: it waits for the key, and never becomes a dead letter for
    this."""


class Published(NamedTuple):
    published: int
    failed: int
    dead: int


class Enqueuer:
    """`publishers` by topic; `"*"` takes what no other does. A topic without a publisher waits."""

    def __init__(
        self,
        safe: RetrySafe,
        publishers: Mapping[str, Publisher],
        *,
        batch: int = BATCH,
        lease: float = LEASE,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self._safe = safe
        self._publishers = dict(publishers)
        self._batch = batch
        self._lease = lease
        self._max_attempts = max_attempts

    def run_once(self, stopping: Callable[[], bool] = lambda: False) -> Published:
        """Everything that is due now. `stopping` is asked between two batches."""
        total = Published(0, 0, 0)
        while not stopping():
            token = secrets.token_bytes(16)
            taken = self._safe.execute(TakeJobs(self._batch, token, micros(self._lease)))
            if not taken:
                break
            done = self._publish(taken, token)
            total = Published(*(a + b for a, b in zip(total, done, strict=True)))
        return total

    def _publish(self, taken: tuple[StagedJob, ...], token: bytes) -> Published:
        """Deliver, and delete what was delivered. Slow deliveries stop half way through the lease: the others are
        due again when it is over, rather than being delivered by two workers at once."""
        published: list[str] = []
        failed = dead = 0
        until = time.monotonic() + self._lease / 2
        for staged in taken:
            if time.monotonic() > until:
                break
            try:
                self._deliver(staged)
            except Exception as error:
                gone = staged.attempts >= self._max_attempts and not isinstance(error, NoPublisher | Unreadable)
                failed, dead = failed + (not gone), dead + gone
                self._fail(staged, token, error, dead=gone)
            else:
                published.append(staged.job.id)
        self._safe.execute(FinishJobs(tuple(published), token))
        return Published(len(published), failed, dead)

    def _deliver(self, staged: StagedJob) -> None:
        job = staged.job
        if staged.unreadable:
            raise Unreadable(staged.unreadable)
        publisher = self._publishers.get(job.topic) or self._publishers.get("*")
        if publisher is None:
            raise NoPublisher(f"no publisher for topic {job.topic!r}; register one with safe.publish({job.topic!r})")
        result = publisher(job)
        if inspect.isawaitable(result):
            wait_for(result)

    def _fail(self, staged: StagedJob, token: bytes, error: Exception, *, dead: bool) -> None:
        delay = min(2.0 ** min(staged.attempts, 20), BACKOFF_LIMIT)
        kind = type(error).__name__
        # Under a key ring the error's words stay out: they may repeat what was sealed.
        hidden = self._safe.sealed and not isinstance(error, Unreadable)
        text = kind if hidden else f"{kind}: {error}"[:500]
        self._safe.execute(FailJob(staged.job.id, token, text, micros(delay), dead))
        if dead:
            self._safe.events.emit("job_dead", bytes.fromhex(staged.job.id), staged.job.topic)
