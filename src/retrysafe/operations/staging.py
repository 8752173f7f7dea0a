"""`stage(tx, topic, payload)`: a job that is published if, and only if, this step's transaction commits.

It does no I/O of its own: the job is written by the step's commit, with an id that is the same for every attempt.
So it can be called with or without `await`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator
from contextvars import ContextVar
from typing import Any

from retrysafe.core.jobs import Job
from retrysafe.core.keys import frame
from retrysafe.errors import UsageError

JOB_ID = 32


class Staging:
    """The jobs of one local step that is running."""

    def __init__(self, run: bytes, step: str, handle: object, allowed: bool) -> None:
        self._run = run
        self._step = step
        self._handle = handle
        self._allowed = allowed
        self.jobs: list[Job] = []

    def add(self, handle: object, topic: str, payload: Any, order: str) -> None:
        if handle is not self._handle:
            raise UsageError(f"stage({handle!r}, …): pass the `tx` this step was given, so that both commit together")
        if not self._allowed:
            raise UsageError(f"stage({topic!r}) needs the outbox in the database of `tx`; this store has none there")
        if not topic or len(topic) > 255:
            raise UsageError(f"stage(tx, {topic!r}): a topic has 1 to 255 characters")
        data = payload if isinstance(payload, bytes) else json.dumps(payload, separators=(",", ":")).encode()
        name = frame(self._run, self._step, str(len(self.jobs)), topic)
        self.jobs.append(Job(hashlib.sha256(name).hexdigest()[:JOB_ID], topic, data, order))


current: ContextVar[Staging | None] = ContextVar("retrysafe_staging", default=None)


class Staged:
    """Nothing to wait for; `await` is accepted so that async steps read naturally."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def stage(tx: Any, topic: str, payload: Any, *, order: str = "") -> Staged:
    """Publish this if the step commits: at least once, with a stable id; in turn with others of the same `order`."""
    staging = current.get()
    if staging is None:
        raise UsageError(f"stage(tx, {topic!r}, …) was called outside a local step; only a step's commit can carry it")
    staging.add(tx, topic, payload, order)
    return Staged()
