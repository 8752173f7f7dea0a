"""Staged jobs: the outbox. A job is committed together with the work that wants it, published at least once with a
stable id, and deleted by exactly that id.
"""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.core.ops import Op
from retrysafe.core.value import value


class Job(NamedTuple):
    """What is to be told to somebody else."""

    id: str
    """Stable over every publication, so whoever receives it twice can tell; 32 hex digits, no colon."""
    topic: str
    payload: bytes
    order: str = ""
    """Jobs with the same order key are published one after the other; empty: in any order."""


class StagedJob(NamedTuple):
    """A job as it stands in the outbox."""

    job: Job
    sequence: int
    created: int
    attempts: int
    due: int
    dead: bool
    error: str
    unreadable: str = ""
    """Why its payload could not be opened; never stored."""


@value
class Stage(Op[int]):
    """Put jobs in; how many were new. The same job again is the same job."""

    jobs: tuple[Job, ...]
    now: int | None = None


@value
class TakeJobs(Op[tuple[StagedJob, ...]]):
    """Lease at most `limit` jobs that are due: nobody else takes them until the lease is over."""

    limit: int
    token: bytes
    lease: int
    now: int | None = None


@value
class FinishJobs(Op[int]):
    """Published: delete exactly these (I19), if we still hold them."""

    ids: tuple[str, ...]
    token: bytes
    now: int | None = None


@value
class FailJob(Op[bool]):
    """Not published: try again after `delay`, or with `dead` never, until a person says so."""

    id: str
    token: bytes
    error: str
    delay: int
    dead: bool
    now: int | None = None


@value
class ReviveJob(Op[bool]):
    """A person says: try that dead one again."""

    id: str
    now: int | None = None


@value
class ListJobs(Op[tuple[StagedJob, ...]]):
    """Jobs in their order, after `after`; only the dead ones if asked."""

    dead: bool = False
    after: int = 0
    limit: int = 100
    now: int | None = None
