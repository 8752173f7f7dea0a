"""Staged jobs: the outbox. A job is committed together with the work that stages it, published at least once with a
stable id, and deleted by exactly that id.

A job belongs to the namespace of the application that staged it, and so does its order key. A job that was staged
before the outbox had namespaces has an empty one.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from retrysafe.core.ops import Op, value_class
from retrysafe.errors import UsageError


class Job(NamedTuple):
    """One outbox message: an id, a topic and a payload."""

    id: str
    """The same in every publication, so that a receiver can detect duplicates; 32 hex digits, no colon."""
    topic: str
    payload: bytes
    """The bytes to publish: staged bytes unchanged, any other value as JSON."""
    order: str = ""
    """The order key. Jobs with the same one are published one after the other; empty: in any order."""

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
    """A job in the outbox, with the state of its delivery."""

    job: Job
    sequence: int
    created: int
    attempts: int
    """How many deliveries were begun. A job that was listed, or taken and returned, was not delivered."""
    due: int
    dead: bool
    error: str
    """Why its last delivery failed."""
    namespace: str = ""
    unreadable: str = ""
    """Why the payload could not be decrypted; never stored."""


class NamespacesReply(NamedTuple):
    unnamed: int
    """How many jobs have no namespace: they were staged by a release that did not write one."""
    names: tuple[str, ...]
    """The namespaces of records and jobs, sorted. Left out if every job has one, unless `every` was set."""


@value_class
class Stage(Op[int]):
    """Add jobs to the outbox; the reply is how many were new. A job with a known id is not added again."""

    jobs: tuple[Job, ...]
    now: int | None = None
    namespace: str = ""


@value_class
class TakeJobs(Op[tuple[StagedJob, ...]]):
    """Lease at most `limit` jobs that are due, in their order. No other worker gets them until the lease is over.

    Each job is counted as a delivery when it is taken: if the delivery kills the process, nothing could count it
    afterwards. Of the jobs that share an order key, one worker at a time has some, from the first one on.

    `topics` are the only topics, or with `others` the topics to leave out. `left` takes the jobs whose last lease ran
    out, instead of those that are not leased: they are to be taken alone, because one of them may have killed its
    process. `unnamed` also takes jobs without a namespace.
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
    """The jobs were published: delete exactly these (I19), if this worker still leases them."""

    ids: tuple[str, ...]
    token: bytes
    now: int | None = None


@value_class
class FailJob(Op[bool]):
    """A delivery failed: try again after `delay`, or, with `dead`, make it a dead letter until a person revives it."""

    id: str
    token: bytes
    error: str
    delay: int
    dead: bool
    now: int | None = None


@value_class
class ReturnJob(Op[bool]):
    """Return a job that was taken and not tried: this is not counted as a delivery. It is due again after `delay`."""

    id: str
    token: bytes
    error: str
    delay: int = 0
    now: int | None = None


@value_class
class ReviveJob(Op[bool]):
    """A person revives a dead letter: deliver it again. With `dead=False` a job that waits and that no worker has taken
    becomes due now; its deliveries still count. False if it is in another state now."""

    id: str
    now: int | None = None
    namespace: str = ""
    dead: bool = True


@value_class
class DropJob(Op[bool]):
    """A person deletes a job that is not to be delivered: a dead letter, or with `dead=False` a job that waits and that
    no worker has taken. False if it is in another state now."""

    id: str
    now: int | None = None
    namespace: str = ""
    dead: bool = True


@value_class
class AssignJobs(Op[int]):
    """A person gives the jobs without a namespace to this application."""

    namespace: str
    now: int | None = None


@value_class
class Namespaces(Op[NamespacesReply]):
    """Ask whether there are jobs without a namespace, and which namespaces there are."""

    every: bool = False
    """List the namespaces in any case. They are read from the records, which may take long."""
    now: int | None = None


@value_class
class ListJobs(Op[tuple[StagedJob, ...]]):
    """List jobs in their order, after the sequence number `after`; with `dead`, only dead letters. None as namespace:
    of all."""

    dead: bool = False
    after: int = 0
    limit: int = 100
    now: int | None = None
    namespace: str | None = None
