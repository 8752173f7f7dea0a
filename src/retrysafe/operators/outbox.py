"""Staged jobs, and dead letters among them: list, retry, drop."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from retrysafe.core.jobs import DropJob, ListJobs, ReviveJob, StagedJob
from retrysafe.core.times import format_time
from retrysafe.errors import UsageError
from retrysafe.operators.session import Reason, Session

PAGE_ROWS = 1000


def check_outbox(session: Session) -> None:
    if not session.capabilities.outbox:
        raise UsageError(
            f"the store {session.capabilities.name!r} has no outbox, so it holds no jobs; use a store "
            "with one, such as SQLite or PostgreSQL"
        )


def iter_jobs(session: Session, namespace: str | None, *, dead: bool, topic: str | None) -> Iterator[StagedJob]:
    """The jobs in their order, page by page."""
    after = 0
    while page := session.execute(ListJobs(dead, after=after, limit=PAGE_ROWS, namespace=namespace)):
        yield from (staged for staged in page if topic in (None, staged.job.topic))
        after = page[-1].sequence


class JobAction(NamedTuple):
    """What is done with jobs: its name, the operation for one of them, and what the job is then, for people."""

    name: str
    build: Callable[[StagedJob], ReviveJob | DropJob]
    result: str = "changed"


def make_retry(*, waiting: bool = False) -> JobAction:
    """Deliver a dead letter again, or a job that waits and that no worker has now instead of after its pause."""
    return JobAction(
        "outbox retry",
        lambda staged: ReviveJob(staged.job.id, namespace=staged.namespace, dead=not waiting),
        "due now",
    )


RETRY = make_retry()


def make_drop(*, waiting: bool = False) -> JobAction:
    """Delete a dead letter, or a job that waits and that no worker has."""
    return JobAction(
        "outbox drop",
        lambda staged: DropJob(staged.job.id, namespace=staged.namespace, dead=not waiting),
        "dropped",
    )


class JobResults(NamedTuple):
    done: dict[str, bool]
    """By the id of the job: whether it was changed. If not, it changed underneath."""
    audit: str

    @property
    def changed(self) -> int:
        return sum(self.done.values())

    @property
    def skipped(self) -> int:
        return len(self.done) - self.changed


def act_on_jobs(
    session: Session,
    action: JobAction,
    chosen: Sequence[StagedJob],
    reason: Reason,
    check: Callable[[], None] = lambda: None,
    **details: Any,
) -> JobResults:
    """Act on each of these jobs, under one audit row. `check` is called after each, and may raise."""
    done: dict[str, bool] = {}
    entry = reason.entry(action.name, tuple(each.job.id for each in chosen), **details)
    with session.act(entry) as audit:
        found = JobResults(done, audit.id)
        try:
            for staged in chosen:
                done[staged.job.id] = bool(session.execute(action.build(staged)))
                check()
        finally:  # an action that is interrupted says how far it came
            audit.result = {"changed": found.changed, "skipped": found.skipped}
        if chosen and not found.changed:
            audit.outcome = "refused"
    return found


def summarize_job(staged: StagedJob) -> dict[str, Any]:
    return {
        "id": staged.job.id,
        "namespace": staged.namespace,
        "topic": staged.job.topic,
        "order": staged.job.order,
        "state": "dead" if staged.dead else "waiting",
        "deliveries": staged.attempts,
        "created": format_time(staged.created),
        "due": format_time(staged.due),
        "error": staged.error,
    }
