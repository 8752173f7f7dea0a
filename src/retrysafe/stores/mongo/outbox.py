"""The operations of the outbox as plans. A job is one document, found by its id; a counter gives the sequence.

Published jobs are deleted by exactly their ids, never by a range (I19). Jobs are leased one by one, each by a write
whose condition is that the job is still due: two workers that take at the same time get different jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from retrysafe.core.backlog import JobBacklog, JobBacklogReply, TopicGroup
from retrysafe.core.jobs import (
    AssignJobs,
    DropJob,
    FailJob,
    FinishJobs,
    Job,
    ListJobs,
    Namespaces,
    NamespacesReply,
    ReturnJob,
    ReviveJob,
    Stage,
    StagedJob,
    TakeJobs,
)
from retrysafe.core.ops import Op
from retrysafe.stores.base import Plan
from retrysafe.stores.mongo.plans import MongoCommand, MongoPlans

R = TypeVar("R")

_COUNTER = "outbox"
_LOOK_AHEAD_FACTOR = 8
"""`take` reads this many times the jobs that it wants: it skips jobs that must wait for others of their order key."""


def stage(plans: MongoPlans, op: Stage) -> Plan[MongoCommand, int]:
    """Insert the jobs whose ids are new, and return how many."""
    jobs: dict[str, Job] = {}
    for job in op.jobs:
        jobs.setdefault(job.id, job)
    known = (yield from _find_known_ids(plans, list(jobs))) if jobs else set()
    fresh = [job for job in jobs.values() if job.id not in known]
    if not fresh:
        return 0
    now = yield from plans.read_clock(op.now)
    last = yield from _advance_counter(plans, len(fresh))
    first = last - len(fresh) + 1
    staged = 0
    for place, job in enumerate(fresh):
        staged += yield from _insert_once(plans, job.id, _build_document(job, first + place, now, op.namespace))
    return staged


def _find_known_ids(plans: MongoPlans, ids: Sequence[str]) -> Plan[MongoCommand, set[str]]:
    found = yield from _find_jobs(plans, {"_id": {"$in": list(ids)}}, len(ids), {"_id": 1})
    return {each["_id"] for each in found}


def _advance_counter(plans: MongoPlans, by: int) -> Plan[MongoCommand, int]:
    body = {
        "findAndModify": plans.names.meta,
        "query": {"_id": _COUNTER},
        "update": {"$inc": {"sequence": by}},
        "upsert": True,
        "new": True,
    }
    reply = yield from plans.write(body)
    return int(reply["value"]["sequence"])


def _insert_once(plans: MongoPlans, job_id: str, document: dict[str, Any]) -> Plan[MongoCommand, int]:
    """Insert the job, or change nothing if it exists."""
    body = {
        "update": plans.names.outbox,
        "updates": [{"q": {"_id": job_id}, "u": {"$setOnInsert": document}, "upsert": True}],
    }
    reply = yield from plans.write(body)
    return len(reply.get("upserted", ()))


def take(plans: MongoPlans, op: TakeJobs) -> Plan[MongoCommand, tuple[StagedJob, ...]]:
    """Lease jobs one by one, in their order. Several jobs of one order key can be leased together, if each job before
    them is leased by this call too."""
    now = yield from plans.read_clock(op.now)
    taken: list[StagedJob] = []
    gate = OrderGate(op)
    after = 0
    while len(taken) < op.limit:
        found = yield from _find_jobs(
            plans, {**gate.build_filter(now), "sequence": {"$gt": after}}, op.limit * _LOOK_AHEAD_FACTOR + 1
        )
        for each in found:
            after = each["sequence"]
            if not (yield from gate.is_next(plans, each)):
                continue
            leased = yield from _lease(plans, each, op, now)
            if leased is not None:
                gate.record_taken(each)
                taken.append(leased)
            if len(taken) == op.limit:
                break
        if len(found) <= op.limit * _LOOK_AHEAD_FACTOR:
            break
    return tuple(taken)


class OrderGate:
    """Decides whether a job may be leased: all earlier jobs of its order key are published, or leased by this call."""

    def __init__(self, op: TakeJobs) -> None:
        self._op = op
        self._ours: dict[str, list[str]] = {}
        self._blocked: set[str] = set()

    def build_filter(self, now: int) -> dict[str, Any]:
        op = self._op
        return {
            "dead": False,
            "due": {"$lte": now},
            "token": {"$ne": b""} if op.left else b"",
            "topic": {"$nin" if op.others else "$in": list(op.topics)},
            "namespace": namespace_filter(op.namespace, unnamed=op.unnamed),
        }

    def is_next(self, plans: MongoPlans, job: Mapping[str, Any]) -> Plan[MongoCommand, bool]:
        order = job["order"]
        if not order:
            return True
        if order in self._blocked:
            return False
        before = {
            "order": order,
            "dead": False,
            "sequence": {"$lt": job["sequence"]},
            "namespace": namespace_filter(self._op.namespace, unnamed=self._op.unnamed),
            "_id": {"$nin": self._ours.get(order, [])},
        }
        if (yield from _find_jobs(plans, before, 1, {"_id": 1})):
            self._blocked.add(order)
            return False
        return True

    def record_taken(self, job: Mapping[str, Any]) -> None:
        self._ours.setdefault(job["order"], []).append(job["_id"])


def namespace_filter(namespace: str, *, unnamed: bool) -> dict[str, Any]:
    """A filter by namespace. Jobs of an older release have no such field; null matches those."""
    names: list[str | None] = [namespace] if namespace else []
    return {"$in": [*names, "", None] if unnamed or not namespace else names}


def _lease(plans: MongoPlans, job: Mapping[str, Any], op: TakeJobs, now: int) -> Plan[MongoCommand, StagedJob | None]:
    body = {
        "findAndModify": plans.names.outbox,
        # Matches nothing if another worker has leased the job meanwhile: it has written its token.
        "query": {"_id": job["_id"], "dead": False, "due": job["due"], "token": job["token"]},
        "update": {"$set": {"due": now + op.lease, "token": op.token}, "$inc": {"deliveries": 1}},
        "new": True,
    }
    reply = yield from plans.write(body)
    return None if reply["value"] is None else _read_job(reply["value"])


def finish(plans: MongoPlans, op: FinishJobs) -> Plan[MongoCommand, int]:
    if not op.ids:
        return 0
    leased = {"_id": {"$in": list(op.ids)}, "token": op.token}
    deleted = yield from plans.write({"delete": plans.names.outbox, "deletes": [{"q": leased, "limit": 0}]})
    return int(deleted["n"])


def fail(plans: MongoPlans, op: FailJob) -> Plan[MongoCommand, bool]:
    now = yield from plans.read_clock(op.now)
    changed = {"due": now + op.delay, "dead": op.dead, "error": op.error, "token": b""}
    return (yield from _change(plans, {"_id": op.id, "token": op.token}, changed))


def give_back(plans: MongoPlans, op: ReturnJob) -> Plan[MongoCommand, bool]:
    now = yield from plans.read_clock(op.now)
    changed = {"due": now + op.delay, "error": op.error, "token": b""}
    return (yield from _change(plans, {"_id": op.id, "token": op.token}, changed, {"deliveries": -1}))


def revive(plans: MongoPlans, op: ReviveJob) -> Plan[MongoCommand, bool]:
    now = yield from plans.read_clock(op.now)
    condition = {"_id": op.id, "dead": op.dead, "namespace": namespace_filter(op.namespace, unnamed=False)}
    if not op.dead:
        condition["$or"] = [{"token": b""}, {"due": {"$lte": now}}]
        return (yield from _change(plans, condition, {"due": now}))
    changed = {"dead": False, "due": now, "attempts": 0, "deliveries": 0, "error": ""}
    return (yield from _change(plans, condition, changed))


def drop(plans: MongoPlans, op: DropJob) -> Plan[MongoCommand, bool]:
    now = yield from plans.read_clock(op.now)
    condition = {
        "_id": op.id,
        "dead": op.dead,
        "namespace": namespace_filter(op.namespace, unnamed=False),
        "$or": [{"token": b""}, {"due": {"$lte": now}}],
    }
    deleted = yield from plans.write({"delete": plans.names.outbox, "deletes": [{"q": condition, "limit": 1}]})
    return bool(deleted["n"])


def backlog(plans: MongoPlans, op: JobBacklog) -> Plan[MongoCommand, JobBacklogReply]:
    now = yield from plans.read_clock(op.now)
    waiting = yield from _count_topics(plans, op, dead=False)
    dead = yield from _count_topics(plans, op, dead=True)
    groups = tuple(
        TopicGroup(topic, *waiting.get(topic, (0, 0)), *dead.get(topic, (0, 0))) for topic in sorted({*waiting, *dead})
    )
    most = max(sum(count for count, _ in each.values()) for each in (waiting, dead))
    return JobBacklogReply(groups, most >= op.limit, now)


def _count_topics(plans: MongoPlans, op: JobBacklog, *, dead: bool) -> Plan[MongoCommand, dict[str, tuple[int, int]]]:
    """The number of jobs of each topic, and when the oldest was staged."""
    condition: dict[str, Any] = {"dead": dead}
    if op.namespace is not None:
        condition["namespace"] = namespace_filter(op.namespace, unnamed=False)
    stages: list[dict[str, Any]] = [
        {"$match": condition},
        {"$sort": {"sequence": 1}},
        {"$limit": op.limit},
        {"$group": {"_id": "$topic", "count": {"$sum": 1}, "oldest": {"$min": "$created"}}},
    ]
    found = yield from plans.find_all({"aggregate": plans.names.outbox, "pipeline": stages, "cursor": {}})
    return {each["_id"]: (int(each["count"]), int(each["oldest"])) for each in found}


def assign(plans: MongoPlans, op: AssignJobs) -> Plan[MongoCommand, int]:
    unnamed = {"namespace": namespace_filter("", unnamed=True)}
    update = {"q": unnamed, "u": {"$set": {"namespace": op.namespace}}, "multi": True}
    reply = yield from plans.write({"update": plans.names.outbox, "updates": [update]})
    return int(reply["n"])


def list_namespaces(plans: MongoPlans, op: Namespaces) -> Plan[MongoCommand, NamespacesReply]:
    unnamed = {"namespace": namespace_filter("", unnamed=True)}
    counted = yield MongoCommand({"count": plans.names.outbox, "query": unnamed}, writes=False)
    if not counted["n"] and not op.every:
        return NamespacesReply(0, ())
    names: set[str] = set()
    for collection in (plans.names.keys, plans.names.outbox):
        found = yield MongoCommand({"distinct": collection, "key": "namespace"}, writes=False)
        names |= {name for name in found["values"] if name}
    return NamespacesReply(int(counted["n"]), tuple(sorted(names)))


def _change(
    plans: MongoPlans, condition: dict[str, Any], changed: dict[str, Any], added: dict[str, int] | None = None
) -> Plan[MongoCommand, bool]:
    body = {
        "findAndModify": plans.names.outbox,
        "query": condition,
        "update": {"$set": changed, **({"$inc": added} if added else {})},
        "fields": {"_id": 1},
    }
    reply = yield from plans.write(body)
    return reply["value"] is not None


def list_jobs(plans: MongoPlans, op: ListJobs) -> Plan[MongoCommand, tuple[StagedJob, ...]]:
    condition: dict[str, Any] = {"sequence": {"$gt": op.after}}
    if op.dead:
        condition["dead"] = True
    if op.namespace is not None:
        condition["namespace"] = namespace_filter(op.namespace, unnamed=False)
    found = yield from _find_jobs(plans, condition, op.limit)
    return tuple(map(_read_job, found))


def _find_jobs(
    plans: MongoPlans, condition: dict[str, Any], limit: int, fields: dict[str, Any] | None = None
) -> Plan[MongoCommand, list[Mapping[str, Any]]]:
    """Jobs in the order of their sequence."""
    body: dict[str, Any] = {"find": plans.names.outbox, "filter": condition, "sort": {"sequence": 1}, "limit": limit}
    return (yield from plans.find_all({**body, "batchSize": limit, "projection": fields or {}}))


def _build_document(job: Job, sequence: int, now: int, namespace: str) -> dict[str, Any]:
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
        "namespace": namespace,
        "deliveries": 0,
    }


def _read_job(found: Mapping[str, Any]) -> StagedJob:
    job = Job(found["_id"], found["topic"], found["payload"], found["order"])
    return StagedJob(
        job,
        found["sequence"],
        found["created"],
        found.get("deliveries", 0),  # jobs of an older release have no deliveries and no namespace
        found["due"],
        found["dead"],
        found["error"],
        found.get("namespace", ""),
    )


JOB_PLANS: dict[type[Any], Callable[[MongoPlans, Any], Any]] = {
    Stage: stage,
    TakeJobs: take,
    FinishJobs: finish,
    FailJob: fail,
    ReturnJob: give_back,
    ReviveJob: revive,
    DropJob: drop,
    JobBacklog: backlog,
    AssignJobs: assign,
    Namespaces: list_namespaces,
    ListJobs: list_jobs,
}


def plan_operation(plans: MongoPlans, op: Op[R]) -> Plan[MongoCommand, R]:
    """The plan of any operation, those of the outbox included."""
    build = JOB_PLANS.get(type(op))
    if build is None:
        return plans.plan_operation(op)
    plan: Plan[MongoCommand, R] = build(plans, op)
    return plan
