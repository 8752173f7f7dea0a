"""The outbox's operations as plans. Published jobs are deleted by exactly their ids, never by a range: a lower
sequence number may commit after a higher one was read, and a range would take it along unpublished (I19).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from retrysafe.core.jobs import FailJob, FinishJobs, Job, ListJobs, ReviveJob, Stage, StagedJob, TakeJobs
from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Statement

Texts = dict[str, str]


def stage(texts: Texts, op: Stage) -> Plan[Statement, int]:
    staged = 0
    for job in op.jobs:
        values = {"id": job.id, "topic": job.topic, "payload": job.payload, "order_key": job.order, "now": op.now}
        staged += len((yield Statement(texts["job_stage"], values)))
    return staged


def take(texts: Texts, op: TakeJobs) -> Plan[Statement, tuple[StagedJob, ...]]:
    values = {"limit": op.limit, "token": op.token, "lease": op.lease, "now": op.now}
    taken = yield Statement(texts["job_take"], values)
    return tuple(sorted(map(read, taken), key=lambda job: job.sequence))


def finish(texts: Texts, op: FinishJobs) -> Plan[Statement, int]:
    if not op.ids:
        return 0
    gone = yield Statement(texts["job_finish"], {"ids": json.dumps(op.ids), "token": op.token})
    return len(gone)


def fail(texts: Texts, op: FailJob) -> Plan[Statement, bool]:
    values = {"id": op.id, "token": op.token, "error": op.error, "delay": op.delay, "dead": int(op.dead), "now": op.now}
    return bool((yield Statement(texts["job_fail"], values)))


def revive(texts: Texts, op: ReviveJob) -> Plan[Statement, bool]:
    return bool((yield Statement(texts["job_revive"], {"id": op.id, "now": op.now})))


def listing(texts: Texts, op: ListJobs) -> Plan[Statement, tuple[StagedJob, ...]]:
    values = {"after": op.after, "limit": op.limit, "dead": int(op.dead)}
    return tuple(map(read, (yield Statement(texts["job_list"], values, writes=False))))


def read(row: Sequence[Any]) -> StagedJob:
    sequence, job_id, topic, payload, order_key, created, attempts, due, dead, error = row
    job = Job(job_id, topic, bytes(payload), order_key)
    return StagedJob(job, sequence, created, attempts, due, bool(dead), error)


PLANS: dict[type[Any], Callable[[Texts, Any], Any]] = {
    Stage: stage,
    TakeJobs: take,
    FinishJobs: finish,
    FailJob: fail,
    ReviveJob: revive,
    ListJobs: listing,
}
