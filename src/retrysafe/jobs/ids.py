"""The ids and keys of jobs: the id of a key, the job that runs here, and the keys of jobs that are steps of a saga.

A key names one job of an application, whatever its task: `charge-order-7`. A key that every queue accepts is the job's
id unchanged, so that the job can be found in the queue's own tools by that key.

A saga may have its steps done by jobs:

    @order.foreign(timeout=60)
    def charge(o: Order, *, key: str) -> str:
        return jobs.perform(charge_card, (o.id, o.cents), key=saga_step("charge"), wait=50)

If the worker or the saga's process dies and is started again, it is still the same job.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from retrysafe.core.keys import derive, frame
from retrysafe.errors import UsageError
from retrysafe.operations.run import current

MAX_ID_CHARS = 120
SHOWN_KEY_CHARS = 60
DIGEST_CHARS = 24

# RQ accepts letters, digits, `_` and `-` only; BullMQ accepts neither a colon nor a bare number.
_PLAIN = re.compile(r"(?=.*[A-Za-z_-])[A-Za-z0-9_-]+")
_OTHER = re.compile(r"[^A-Za-z0-9_-]+")

RUN_CHARS = 20
"""Hex digits of the saga's run in its id: enough that two sagas never share an id."""


def job_id(key: str) -> str:
    """The id of the one job that this key names: the key itself, if every queue accepts it.

    Any other key becomes its readable characters and a digest of the whole key: `receipt:7` is `receipt-7-` and 24
    digits. `job_id` of such an id is that id, so the worker, which knows only the id, finds the same record.
    """
    if not isinstance(key, str) or not key:
        raise UsageError(f"key={key!r}: a job's key is text, for example 'charge-order-7'")
    if len(key) <= MAX_ID_CHARS and _PLAIN.fullmatch(key):
        return key
    shown = _OTHER.sub("-", key)[:SHOWN_KEY_CHARS].strip("-") or "job"
    return f"{shown}-{hashlib.sha256(frame('job', key)).hexdigest()[:DIGEST_CHARS]}"


# The running job ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class RunningJob:
    """The job that is running here."""

    id: str
    task: str
    attempt: int
    """Grows with every claim of the job. Enqueueing the job is the first claim."""
    _run: bytes

    def key(self, service: str, *, part: str = "", undo: bool = False) -> str:
        """An idempotency key for another system's API: the same in every attempt of this job, and different for every
        other job.

        `part` distinguishes several calls to one service; `undo` marks the call that compensates.
        """
        if not self._run:
            raise UsageError(
                f"job {self.id!r} runs in a transaction, which may run again after a rollback: do not call "
                f"{service!r} from it. Stage a job for that, or use a task without tx="
            )
        return derive(self._run, service, "job", part=part, undo=undo)


_current_job: ContextVar[RunningJob | None] = ContextVar("retrysafe_job", default=None)


def current_job() -> RunningJob:
    """The job that is running here. Raises UsageError outside a job."""
    job = _current_job.get()
    if job is None:
        raise UsageError("current_job() was called outside a fenced job: call it in the task's function")
    return job


@contextmanager
def set_current_job(job: RunningJob) -> Iterator[None]:
    token = _current_job.set(job)
    try:
        yield
    finally:
        _current_job.reset(token)


# Steps of a saga ------------------------------------------------------------------------------------


def step_key(saga: str, step: str) -> str:
    """`{saga}-{step}`: the key of the job that does one step of one saga."""
    if not saga or not step:
        raise UsageError(f"step_key({saga!r}, {step!r}): name the saga and the step")
    return f"{saga}-{step}"


def saga_id() -> str:
    """The id of the running saga: its operation's name and its run. The run is unique, so two tenants' sagas with the
    same key have different ids, and so does a saga that begins again after its key expired."""
    run = current.get()
    if run is None:
        raise UsageError(
            "saga_id() was called outside an operation: call it in a step. An undo has a key of its own already, so "
            "give its job that"
        )
    return f"{run.name.partition('@')[0]}-{run.record.run.hex()[:RUN_CHARS]}"


def saga_step(step: str) -> str:
    """`{saga}-{step}`: the key of the job that does this step. The job of an undo uses the undo's own `key`."""
    return job_id(step_key(saga_id(), step))
