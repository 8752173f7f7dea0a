"""Staged jobs: the outbox. A job is committed together with the work that wants it, published at least once with a
stable id, and deleted by exactly that id.

Namespaces are walls: a job belongs to the application that staged it, and so does its order key. A job that was staged
before there were namespaces in the outbox has none (an empty one).
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from retrysafe.core.ops import Op
from retrysafe.core.value import value_class
from retrysafe.errors import UsageError


class Job(NamedTuple):
    """What is to be told to somebody else."""

    id: str
    """Stable over every publication, so whoever receives it twice can tell; 32 hex digits, no colon."""
    topic: str
    payload: bytes
    """What goes over the wire: staged bytes as they were, anything else as JSON."""
    order: str = ""
    """Jobs with the same order key are published one after the other; empty: in any order."""

    def json(self) -> Any:
        """The payload, decoded."""
        try:
            return json.loads(self.payload)
        except ValueError as error:
            raise UsageError(
                f"the payload of job {self.id} ({self.topic!r}) is not JSON ({error}): it was staged as bytes, so read "
                "job.payload"
            ) from None


class StagedJob(NamedTuple):
    """A job as it stands in the outbox."""

    job: Job
    sequence: int
    created: int
    attempts: int
    """Deliveries that were begun. Being looked at, or taken and given back, is none."""
    due: int
    dead: bool
    error: str
    """Why its last delivery failed."""
    namespace: str = ""
    unreadable: str = ""
    """Why its payload could not be opened; never stored."""


class NamespacesReply(NamedTuple):
    unnamed: int
    """Jobs that belong to no application: staged by a release that did not write whose they are."""
    names: tuple[str, ...]
    """Whose records and jobs there are, in order. Left out where no job is unnamed, unless all were asked for."""


@value_class
class Stage(Op[int]):
    """Put jobs in; how many were new. The same job again is the same job."""

    jobs: tuple[Job, ...]
    now: int | None = None
    namespace: str = ""


@value_class
class TakeJobs(Op[tuple[StagedJob, ...]]):
    """Lease at most `limit` jobs that are due, in their order: nobody else takes them until the lease is over.

    Each is counted as a delivery: whoever takes it is about to deliver it, and if that ends the process nobody is left
    to count. Of jobs that share an order key a run from the first one on may be out, with one taker.

    `topics` are the only ones, or with `others` the ones to leave out. `left` takes those whose last taker let its
    lease run out, instead of those nobody has: they are to be taken alone, for one of them may have ended its process.
    `unnamed`: those of no namespace too.
    """

    limit: int
    token: bytes
    lease: int
    now: int | None = None
    namespace: str = ""
    topics: tuple[str, ...] = ()
    others: bool = True
    left: bool = False
    unnamed: bool = False


@value_class
class FinishJobs(Op[int]):
    """Published: delete exactly these (I19), if we still hold them."""

    ids: tuple[str, ...]
    token: bytes
    now: int | None = None


@value_class
class FailJob(Op[bool]):
    """Not published: try again after `delay`, or with `dead` never, until a person says so."""

    id: str
    token: bytes
    error: str
    delay: int
    dead: bool
    now: int | None = None


@value_class
class ReturnJob(Op[bool]):
    """Taken and not tried: it is not counted, and due again after `delay`."""

    id: str
    token: bytes
    error: str
    delay: int = 0
    now: int | None = None


@value_class
class ReviveJob(Op[bool]):
    """A person says: try that dead one again."""

    id: str
    now: int | None = None
    namespace: str = ""


@value_class
class AssignJobs(Op[int]):
    """A person says: the jobs of no namespace are this application's."""

    namespace: str
    now: int | None = None


@value_class
class Namespaces(Op[NamespacesReply]):
    """Whether there are jobs of no namespace, and whose they could be."""

    every: bool = False
    """Tell the names in any case. They are read from the records, which may take long."""
    now: int | None = None


@value_class
class ListJobs(Op[tuple[StagedJob, ...]]):
    """Jobs in their order, after `after`; only the dead ones if asked. Of one namespace, unless that is None."""

    dead: bool = False
    after: int = 0
    limit: int = 100
    now: int | None = None
    namespace: str | None = None
