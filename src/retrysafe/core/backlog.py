"""What operators ask of a store: how much work is open, and how old the oldest of it is.

The cost of both operations grows with what is open, not with what is finished, in a store that declares
`Capabilities.backlog = "index"`. Both stop at a limit and say so. A background service may send them; `Stats` (ops.py)
counts everything, and is for people.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from retrysafe.core.jobs import StagedJob
from retrysafe.core.moves import is_outcome_unknown
from retrysafe.core.ops import Op, value_class
from retrysafe.core.records import Record
from retrysafe.core.states import OPEN, State

DEFAULT_LIMIT_ROWS = 10_000
"""How many rows a store reads for each part of a reply. Beyond that, the counts are lower bounds."""


class OpenGroup(NamedTuple):
    """The open records of one kind and target."""

    kind: str
    target: str
    in_progress: int
    """Claimed, and not uncertain."""
    lapsed: int
    """How many of those in progress have a lapsed lease: the next claim, or the completer, takes them over."""
    uncertain: int
    """Marked as uncertain, and guards whose lease has lapsed: the sweeper will mark them."""
    unmarked: int
    """How many of the uncertain ones are not marked yet."""
    oldest_in_progress: int
    """When the oldest attempt in progress was started; 0 if there is none."""
    oldest_uncertain: int
    """When the oldest uncertain attempt was started; 0 if there is none."""


class BacklogReply(NamedTuple):
    groups: tuple[OpenGroup, ...]
    """Sorted by kind and target."""
    reapable: int
    """How many settled records the reaper may delete."""
    oldest_reapable: int
    """When the oldest of them expired; 0 if there is none."""
    truncated: bool
    """True if the limit was reached, or `examine`: there is at least this much."""
    now: int

    @property
    def in_progress(self) -> int:
        return sum(group.in_progress for group in self.groups)

    @property
    def lapsed(self) -> int:
        return sum(group.lapsed for group in self.groups)

    @property
    def uncertain(self) -> int:
        return sum(group.uncertain for group in self.groups)

    @property
    def oldest_in_progress(self) -> int:
        return oldest_of(group.oldest_in_progress for group in self.groups)

    @property
    def oldest_uncertain(self) -> int:
        return oldest_of(group.oldest_uncertain for group in self.groups)


@value_class
class Backlog(Op[BacklogReply]):
    """Count the open records by kind and target, with the age of the oldest; and what is due for reaping."""

    namespace: str | None = None
    limit: int = DEFAULT_LIMIT_ROWS
    now: int | None = None
    examine: int = 0
    """With a namespace: end after about so many records of all applications, for people who wait for a page. 0: read on
    until the limit is reached. A store may read on in any case; one that ends before says `truncated`."""


class TopicGroup(NamedTuple):
    """The staged jobs of one topic."""

    topic: str
    waiting: int
    oldest_waiting: int
    """When the oldest waiting job was staged; 0 if there is none."""
    dead: int
    oldest_dead: int


class JobBacklogReply(NamedTuple):
    groups: tuple[TopicGroup, ...]
    """Sorted by topic."""
    truncated: bool
    now: int

    @property
    def waiting(self) -> int:
        return sum(group.waiting for group in self.groups)

    @property
    def dead(self) -> int:
        return sum(group.dead for group in self.groups)

    @property
    def oldest_waiting(self) -> int:
        return oldest_of(group.oldest_waiting for group in self.groups)

    @property
    def oldest_dead(self) -> int:
        return oldest_of(group.oldest_dead for group in self.groups)


@value_class
class JobBacklog(Op[JobBacklogReply]):
    """Count the jobs of the outbox by topic, with the age of the oldest. Only stores with an outbox answer it."""

    namespace: str | None = None
    limit: int = DEFAULT_LIMIT_ROWS
    now: int | None = None


# How stores without GROUP BY count ----------------------------------------------------------------


def oldest_of(times: Iterable[int]) -> int:
    """The earliest of these times; 0 if there is none. 0 stands for "none" in the times as well."""
    return min((time for time in times if time), default=0)


def group_open(records: Iterable[Record], now: int) -> tuple[OpenGroup, ...]:
    """The groups of these records. Settled ones are left out."""
    groups: dict[tuple[str, str], OpenGroup] = {}
    for record in records:
        if record.state in OPEN:
            place = (record.kind, record.target)
            groups[place] = _add_record(groups.get(place) or OpenGroup(*place, 0, 0, 0, 0, 0, 0), record, now)
    return tuple(groups[place] for place in sorted(groups))


def _add_record(group: OpenGroup, record: Record, now: int) -> OpenGroup:
    if is_outcome_unknown(record, now):
        return group._replace(
            uncertain=group.uncertain + 1,
            unmarked=group.unmarked + (record.state is State.CLAIMED),
            oldest_uncertain=oldest_of((group.oldest_uncertain, record.started)),
        )
    return group._replace(
        in_progress=group.in_progress + 1,
        lapsed=group.lapsed + record.lapsed(now),
        oldest_in_progress=oldest_of((group.oldest_in_progress, record.started)),
    )


def group_topics(waiting: Iterable[StagedJob], dead: Iterable[StagedJob]) -> tuple[TopicGroup, ...]:
    groups: dict[str, TopicGroup] = {}
    for job in waiting:
        found = groups.get(job.job.topic) or TopicGroup(job.job.topic, 0, 0, 0, 0)
        oldest = oldest_of((found.oldest_waiting, job.created))
        groups[job.job.topic] = found._replace(waiting=found.waiting + 1, oldest_waiting=oldest)
    for job in dead:
        found = groups.get(job.job.topic) or TopicGroup(job.job.topic, 0, 0, 0, 0)
        oldest = oldest_of((found.oldest_dead, job.created))
        groups[job.job.topic] = found._replace(dead=found.dead + 1, oldest_dead=oldest)
    return tuple(groups[topic] for topic in sorted(groups))
