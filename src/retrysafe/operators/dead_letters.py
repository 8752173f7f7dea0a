"""Everything that is not tried again before an operator has looked: jobs of the outbox whose deliveries all failed, and
runs of operations that gave up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from retrysafe.core.ops import List
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import age_seconds
from retrysafe.engine.why import DEAD_LETTER
from retrysafe.operators.follow_up import APP_PLACEHOLDER, build_command
from retrysafe.operators.outbox import iter_jobs
from retrysafe.operators.record_search import iter_records
from retrysafe.operators.session import Session


def iter_letters(session: Session, namespace: str | None, limit: int) -> Iterator[dict[str, Any]]:
    now = session.read_time()
    if session.capabilities.outbox:
        for staged, _ in zip(iter_jobs(session, namespace, dead=True, topic=None), range(limit), strict=False):
            yield {
                "what": "job",
                "id": staged.job.id,
                "namespace": staged.namespace,
                "name": staged.job.topic,
                "age_seconds": age_seconds(staged.created, now),
                "why": staged.error,
                "do": build_command(
                    "outbox", "retry", staged.job.id[:16], namespace=staged.namespace, then="--because TEXT"
                ),
            }
    for record in iter_dead_runs(session, namespace, limit):
        yield {
            "what": "run",
            "id": record.id.hex(),
            "namespace": record.namespace,
            "name": record.target,
            "age_seconds": age_seconds(record.started, now),
            "why": record.note,
            "do": build_command(
                "operations", "resume", APP_PLACEHOLDER, record.id.hex()[:16], "--id", then="--because TEXT"
            ),
        }


def iter_dead_runs(session: Session, namespace: str | None, limit: int) -> Iterator[Record]:
    """Runs of operations that gave up, at most `limit`."""
    return islice(filter_dead(iter_records(session.execute, List(namespace, State.UNCERTAIN))), limit)


def filter_dead(records: Iterable[Record]) -> Iterator[Record]:
    """Those that gave up."""
    return (record for record in records if record.note.startswith(DEAD_LETTER))
