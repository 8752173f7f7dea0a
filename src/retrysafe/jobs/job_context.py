"""Inside a job: which one it is, and keys for the systems it calls."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from retrysafe.core.keys import derive
from retrysafe.errors import UsageError


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The job that is running here."""

    id: str
    task: str
    attempt: int
    """Grows with every claim of the job; enqueueing it is the first."""
    _run: bytes

    def key(self, service: str, *, part: str = "", undo: bool = False) -> str:
        """A key for somebody else's API: the same for every attempt of this job, another one for every other job.

        `part` tells several calls to one service apart; `undo` marks the call that takes back.
        """
        if not self._run:
            raise UsageError(
                f"job {self.id!r} runs in a transaction, which may run again after a rollback: do not call "
                f"{service!r} from it. Stage a job for that, or use a task without tx="
            )
        return derive(self._run, service, "job", part=part, undo=undo)


_current: ContextVar[RunningJob | None] = ContextVar("retrysafe_job", default=None)


def current_job() -> RunningJob:
    """The job that is running here. Raises UsageError outside one."""
    found = _current.get()
    if found is None:
        raise UsageError("current_job() was called outside a fenced job: call it in the task's function")
    return found


@contextmanager
def set_current_job(job: RunningJob) -> Iterator[None]:
    token = _current.set(job)
    try:
        yield
    finally:
        _current.reset(token)
