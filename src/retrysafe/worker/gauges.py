"""The gauges: how much is open in the store, and how old the oldest of it is. The worker asks once a tick, by
operations whose cost does not grow with what is finished (core/backlog.py), and puts the replies into the figures.

Only the worker does it: every process would get the same replies, and a sum over processes would be wrong. If several
workers run, take the maximum over them.
"""

from __future__ import annotations

from collections.abc import Mapping

from retrysafe.core.backlog import Backlog, BacklogReply, JobBacklog, JobBacklogReply
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.figures import Labels
from retrysafe.engine.instruments import (
    IN_PROGRESS_AGE,
    OUTBOX_AGE,
    OUTBOX_MESSAGES,
    REAPER_LAG,
    RECORDS,
    UNCERTAIN_AGE,
)
from retrysafe.engine.safe import RetrySafe
from retrysafe.stores.base import Capabilities
from retrysafe.worker.flows import ShouldStop, WorkerFlow, never_stop

GaugeValues = Mapping[tuple[str, Labels], float]


class Gauges:
    """A service of the worker. Its rounds have no count for the report."""

    def __init__(self, safe: RetrySafe, capabilities: Capabilities) -> None:
        self._safe = safe
        self._capabilities = capabilities

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[None]:
        gauges = self._safe.figures.gauges
        gauges.update(read_backlog((yield Backlog(self._safe.namespace))))
        if self._capabilities.outbox and not stopping():
            gauges.update(read_job_backlog((yield JobBacklog(self._safe.namespace))))


def can_ask(capabilities: Capabilities) -> bool:
    """Whether a background service may ask this store."""
    return capabilities.backlog == "index" or capabilities.name == "memory"


def read_backlog(reply: BacklogReply) -> GaugeValues:
    return {
        (RECORDS.name, ("claimed",)): reply.in_progress,
        (RECORDS.name, ("lapsed",)): reply.lapsed,
        (RECORDS.name, ("uncertain",)): reply.uncertain,
        (RECORDS.name, ("expired",)): reply.reapable,
        (IN_PROGRESS_AGE.name, ()): age_of(reply.oldest_in_progress, reply.now),
        (UNCERTAIN_AGE.name, ()): age_of(reply.oldest_uncertain, reply.now),
        (REAPER_LAG.name, ()): age_of(reply.oldest_reapable, reply.now),
    }


def read_job_backlog(reply: JobBacklogReply) -> GaugeValues:
    return {
        (OUTBOX_MESSAGES.name, ("pending",)): reply.waiting,
        (OUTBOX_MESSAGES.name, ("dead",)): reply.dead,
        (OUTBOX_AGE.name, ()): age_of(reply.oldest_waiting, reply.now),
    }


def age_of(since: int, now: int) -> float:
    """Seconds from `since` to `now`; 0 if there is nothing."""
    return max(0.0, (now - since) / SECOND_MICROS) if since else 0.0
