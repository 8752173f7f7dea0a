"""`stage(tx, topic, payload)`: put a job into the outbox if, and only if, this transaction commits. It works in a local
step, a `safe.transaction` block, a `@safe.transactional` function and a route with `strength="transaction"`.

`stage` does no I/O: the job is written just before the commit, with an id that is the same for every attempt. So it can
be called with or without `await`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from retrysafe.core.jobs import Job, Stage
from retrysafe.core.keys import frame
from retrysafe.errors import UsageError

JOB_ID_HEX_DIGITS = 32


class Staging:
    """The jobs of one open transaction. `refused` is the reason why it cannot carry any; empty if it can."""

    def __init__(self, run: bytes, step: str, refused: str = "", *, local: bool = True) -> None:
        self.local = local
        """Whether the transaction is a local step of an operation."""
        self._run = run
        self._step = step
        self._refused = refused
        self.handle: object = None
        self.block: object = None
        """The `with` block of the transaction. `stage` accepts it in the place of the handle."""
        self.jobs: list[Job] = []
        self.closed = False
        """Whether the jobs are written already: the transaction commits without those that come later."""

    def add(self, handle: object, topic: str, payload: Any, order: str) -> None:
        if handle is not self.handle and (self.block is None or handle is not self.block):
            raise UsageError(f"stage({handle!r}, …): pass the `tx` you were given here, so that both commit together")
        if self.closed:
            raise UsageError(
                f"stage(tx, {topic!r}): the transaction has ended, and the job would be lost; stage it in the handler "
                "or body itself, not in a background task"
            )
        if self._refused:
            raise UsageError(f"stage(tx, {topic!r}): {self._refused}, so the job could not commit with your writes")
        if not isinstance(topic, str) or not topic or len(topic) > 255:
            raise UsageError(f"stage(tx, {topic!r}): a topic is text of 1 to 255 characters")
        if not isinstance(order, str) or len(order) > 255:
            raise UsageError(f"stage(tx, {topic!r}, order={order!r}): an order key is text of at most 255 characters")
        try:
            data = payload if isinstance(payload, bytes) else json.dumps(payload, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise UsageError(f"stage(tx, {topic!r}, …): the payload is neither bytes nor JSON: {error}") from None
        name = frame(self._run, self._step, str(len(self.jobs)), topic)
        self.jobs.append(Job(hashlib.sha256(name).hexdigest()[:JOB_ID_HEX_DIGITS], topic, data, order))

    def build_op(self, namespace: str) -> Stage:
        """The operation that writes the jobs into the outbox of this application."""
        return Stage(tuple(self.jobs), namespace=namespace)

    @contextmanager
    def collect_on(self, handle: object) -> Iterator[None]:
        """Collect the jobs that are staged while the user's code runs on this handle."""
        self.handle = handle
        token = current_staging.set(self)
        _open_on[id(handle)] = self
        try:
            yield
        finally:
            _open_on.pop(id(handle), None)
            try:
                current_staging.reset(token)
            except ValueError:  # a framework ends a dependency in another context than it began in
                current_staging.set(None)


current_staging: ContextVar[Staging | None] = ContextVar("retrysafe_staging", default=None)


_open_on: dict[int, Staging] = {}
"""The stagings of open transactions by the `id` of their handle, for a handler that a framework calls in another
context than the one in which its transaction was opened."""


class Staged:
    """The reply of `stage`. There is nothing to wait for; it accepts `await`, so that async steps read naturally."""

    def __await__(self) -> Generator[None, None, None]:
        return
        yield


def stage(tx: Any, topic: str, payload: Any, *, order: str = "") -> Staged:
    """Publish this job if the transaction commits: at least once, with a stable id, and in the order of the jobs with
    the same `order` key."""
    staging = current_staging.get() or _open_on.get(id(tx))
    if staging is None:
        raise UsageError(
            f"stage(tx, {topic!r}, …) was called where no transaction of ours is open: call it in a local step, a "
            "safe.transaction block, a @safe.transactional function or a route with strength='transaction', whose "
            "commit carries it"
        )
    staging.add(tx, topic, payload, order)
    return Staged()
