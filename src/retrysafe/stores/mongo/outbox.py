"""The outbox's operations as plans. A job is a document of its own, found by its id; a counter gives the sequence.

Published jobs are deleted by exactly their ids, never by a range (I19). Jobs are leased one by one, each by a write
whose condition is that it is still due: two who take at the same time share what there is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from retrysafe.core.jobs import FailJob, FinishJobs, Job, ListJobs, ReviveJob, Stage, StagedJob, TakeJobs
from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan
from retrysafe.stores.mongo.plans import Command, Plans

R = TypeVar("R")

_COUNTER = "outbox"
_LOOK_AHEAD = 8
"""How many times as many as are wanted are read at once: those behind others of their order are passed over."""


def stage(plans: Plans, op: Stage) -> Plan[Command, int]:
    """New ones only; the same job again is the same job."""
    jobs: dict[str, Job] = {}
    for job in op.jobs:
        jobs.setdefault(job.id, job)
    known = (yield from _known(plans, list(jobs))) if jobs else set()
    fresh = [job for job in jobs.values() if job.id not in known]
    if not fresh:
        return 0
    now = yield from plans.clock(op.now)
    last = yield from _count(plans, len(fresh))
    first = last - len(fresh) + 1
    staged = 0
    for place, job in enumerate(fresh):
        staged += yield from _put(plans, job.id, _written(job, first + place, now))
    return staged


def _known(plans: Plans, ids: Sequence[str]) -> Plan[Command, set[str]]:
    found = yield from _found(plans, {"_id": {"$in": list(ids)}}, len(ids), {"_id": 1})
    return {each["_id"] for each in found}


def _count(plans: Plans, by: int) -> Plan[Command, int]:
    body = {
        "findAndModify": plans.names.meta,
        "query": {"_id": _COUNTER},
        "update": {"$inc": {"sequence": by}},
        "upsert": True,
        "new": True,
    }
    reply = yield from plans.write(body)
    return int(reply["value"]["sequence"])


def _put(plans: Plans, job_id: str, document: dict[str, Any]) -> Plan[Command, int]:
    """An upsert that only ever inserts: whoever comes second changes nothing."""
    body = {
        "update": plans.names.outbox,
        "updates": [{"q": {"_id": job_id}, "u": {"$setOnInsert": document}, "upsert": True}],
    }
    reply = yield from plans.write(body)
    return len(reply.get("upserted", ()))


def take(plans: Plans, op: TakeJobs) -> Plan[Command, tuple[StagedJob, ...]]:
    now = yield from plans.clock(op.now)
    taken: list[StagedJob] = []
    after = 0
    while len(taken) < op.limit:
        # Those that wait for their turn stand in the way too, so they are read as well.
        found = yield from _found(plans, {"sequence": {"$gt": after}, "dead": False}, op.limit * _LOOK_AHEAD + 1)
        for each in found:
            after = each["sequence"]
            if each["due"] > now or not (yield from _first(plans, each)):
                continue
            leased = yield from _lease(plans, each, op, now)
            if leased is not None:
                taken.append(leased)
            if len(taken) == op.limit:
                break
        if len(found) <= op.limit * _LOOK_AHEAD:
            break
    return tuple(taken)


def _first(plans: Plans, job: Mapping[str, Any]) -> Plan[Command, bool]:
    """Whether no job of the same order key stands before it."""
    if not job["order"]:
        return True
    before = {"order": job["order"], "dead": False, "sequence": {"$lt": job["sequence"]}}
    return not (yield from _found(plans, before, 1, {"_id": 1}))


def _lease(plans: Plans, job: Mapping[str, Any], op: TakeJobs, now: int) -> Plan[Command, StagedJob | None]:
    body = {
        "findAndModify": plans.names.outbox,
        # Whoever leased it in between has counted an attempt.
        "query": {"_id": job["_id"], "dead": False, "due": job["due"], "attempts": job["attempts"]},
        "update": {"$set": {"due": now + op.lease, "token": op.token}, "$inc": {"attempts": 1}},
        "new": True,
    }
    reply = yield from plans.write(body)
    return None if reply["value"] is None else _read(reply["value"])


def finish(plans: Plans, op: FinishJobs) -> Plan[Command, int]:
    if not op.ids:
        return 0
    held = {"_id": {"$in": list(op.ids)}, "token": op.token}
    gone = yield from plans.write({"delete": plans.names.outbox, "deletes": [{"q": held, "limit": 0}]})
    return int(gone["n"])


def fail(plans: Plans, op: FailJob) -> Plan[Command, bool]:
    now = yield from plans.clock(op.now)
    changed = {"due": now + op.delay, "dead": op.dead, "error": op.error, "token": b""}
    return (yield from _change(plans, {"_id": op.id, "token": op.token}, changed))


def revive(plans: Plans, op: ReviveJob) -> Plan[Command, bool]:
    now = yield from plans.clock(op.now)
    changed = {"dead": False, "due": now, "attempts": 0, "error": ""}
    return (yield from _change(plans, {"_id": op.id, "dead": True}, changed))


def _change(plans: Plans, condition: dict[str, Any], changed: dict[str, Any]) -> Plan[Command, bool]:
    body = {
        "findAndModify": plans.names.outbox,
        "query": condition,
        "update": {"$set": changed},
        "fields": {"_id": 1},
    }
    reply = yield from plans.write(body)
    return reply["value"] is not None


def listing(plans: Plans, op: ListJobs) -> Plan[Command, tuple[StagedJob, ...]]:
    condition: dict[str, Any] = {"sequence": {"$gt": op.after}}
    if op.dead:
        condition["dead"] = True
    found = yield from _found(plans, condition, op.limit)
    return tuple(map(_read, found))


def _found(
    plans: Plans, condition: dict[str, Any], limit: int, fields: dict[str, Any] | None = None
) -> Plan[Command, list[Mapping[str, Any]]]:
    """In their order."""
    body: dict[str, Any] = {"find": plans.names.outbox, "filter": condition, "sort": {"sequence": 1}, "limit": limit}
    return (yield from plans.found({**body, "batchSize": limit, "projection": fields or {}}))


def _written(job: Job, sequence: int, now: int) -> dict[str, Any]:
    return {
        "topic": job.topic,
        "payload": job.payload,
        "order": job.order,
        "sequence": sequence,
        "created": now,
        "attempts": 0,
        "due": now,
        "token": b"",
        "dead": False,
        "error": "",
    }


def _read(found: Mapping[str, Any]) -> StagedJob:
    job = Job(found["_id"], found["topic"], found["payload"], found["order"])
    return StagedJob(
        job, found["sequence"], found["created"], found["attempts"], found["due"], found["dead"], found["error"]
    )


JOB_PLANS: dict[type[Any], Callable[[Plans, Any], Any]] = {
    Stage: stage,
    TakeJobs: take,
    FinishJobs: finish,
    FailJob: fail,
    ReviveJob: revive,
    ListJobs: listing,
}


def plan_of(plans: Plans, op: Op[R]) -> Plan[Command, R]:
    """The plan of any operation, the outbox's among them."""
    made = JOB_PLANS.get(type(op))
    if made is None:
        return plans.of(op)
    plan: Plan[Command, R] = made(plans, op)
    return plan
