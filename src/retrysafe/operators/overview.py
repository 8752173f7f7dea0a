"""What a store holds that needs work or attention."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrysafe.core.backlog import (
    DEFAULT_LIMIT_ROWS,
    Backlog,
    BacklogReply,
    JobBacklog,
    JobBacklogReply,
    OpenGroup,
    group_open,
)
from retrysafe.core.ops import List, Stats, StatsReply
from retrysafe.core.states import State
from retrysafe.core.times import age_seconds
from retrysafe.engine.audit import AUDIT_KIND
from retrysafe.errors import UsageError
from retrysafe.operators.session import Session


class Overview(NamedTuple):
    """What a store holds that needs work or attention."""

    open: BacklogReply
    jobs: JobBacklogReply | None
    counted: StatsReply | None


def read_overview(
    session: Session, namespace: str | None, examine: int = DEFAULT_LIMIT_ROWS, *, count: bool = False, passed: int = 0
) -> Overview:
    """What is open, of one application or of all. `count` also counts every record, which reads the whole store.
    `passed` bounds how many open records of other applications are passed over."""
    if examine < 1:
        raise UsageError(f"--examine {examine}: give 1 or more")
    op = Backlog(namespace, examine, examine=passed)
    answers = session.capabilities.backlog != "none"
    opened = session.execute(op) if answers else count_by_lists(session, op)
    jobs = None
    if session.capabilities.outbox and answers:
        jobs = session.execute(JobBacklog(namespace, examine))
    counted = session.execute(Stats(namespace=namespace)) if count else None
    return Overview(_without_audit(opened), jobs, counted)


def _without_audit(found: BacklogReply) -> BacklogReply:
    """Audit rows that are being written are no work of the application. One that was left shows as uncertain."""
    groups = (group for group in found.groups if group.kind != AUDIT_KIND or group.uncertain)
    return found._replace(groups=tuple(groups))


def count_by_lists(session: Session, op: Backlog) -> BacklogReply:
    """For a store that does not answer `Backlog`: the same from its lists, without what is due for reaping."""
    now = session.read_time()
    found = []
    for state in (State.UNCERTAIN, State.CLAIMED):
        page = session.execute(List(op.namespace, state, limit=op.limit))
        found += page.records
    return BacklogReply(group_open(found[: op.limit], now), 0, 0, len(found) >= op.limit, now)


def summarize_overview(overview: Overview) -> dict[str, Any]:
    found, jobs, counted = overview
    now = found.now
    return {
        "in_progress": found.in_progress,
        "lapsed": found.lapsed,
        "uncertain": found.uncertain,
        "oldest_in_progress_seconds": age_seconds(found.oldest_in_progress, now),
        "oldest_uncertain_seconds": age_seconds(found.oldest_uncertain, now),
        "reapable": found.reapable,
        "reaper_lag_seconds": age_seconds(found.oldest_reapable, now),
        "groups": [summarize_group(group, now) for group in found.groups],
        "outbox": None if jobs is None else summarize_jobs(jobs),
        "records": None if counted is None else {k: v for k, v in counted._asdict().items() if k != "now"},
        "truncated": found.truncated or (jobs is not None and jobs.truncated),
    }


def summarize_group(group: OpenGroup, now: int) -> dict[str, Any]:
    return {
        "kind": group.kind,
        "target": group.target,
        "in_progress": group.in_progress,
        "lapsed": group.lapsed,
        "uncertain": group.uncertain,
        "unmarked": group.unmarked,
        "oldest_in_progress_seconds": age_seconds(group.oldest_in_progress, now),
        "oldest_uncertain_seconds": age_seconds(group.oldest_uncertain, now),
    }


def summarize_jobs(jobs: JobBacklogReply) -> dict[str, Any]:
    return {
        "waiting": jobs.waiting,
        "dead": jobs.dead,
        "oldest_waiting_seconds": age_seconds(jobs.oldest_waiting, jobs.now),
        "oldest_dead_seconds": age_seconds(jobs.oldest_dead, jobs.now),
        "topics": [
            {
                "topic": group.topic,
                "waiting": group.waiting,
                "dead": group.dead,
                "oldest_waiting_seconds": age_seconds(group.oldest_waiting, jobs.now),
                "oldest_dead_seconds": age_seconds(group.oldest_dead, jobs.now),
            }
            for group in jobs.groups
        ],
    }
