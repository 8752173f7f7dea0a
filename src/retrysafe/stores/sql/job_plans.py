"""The operations of the outbox as plans. Published jobs are deleted by exactly their ids, never by a range: a lower
sequence number may commit after a higher one was read, and a range would delete that job unpublished (I19).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from string import ascii_lowercase
from typing import Any

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
from retrysafe.stores.base import Plan
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.stores.sql.names import TableNames

Texts = dict[str, str]
FillTake = Callable[[str, str, str, str], str]
"""The text of `take`, from the template and its three conditions."""

_SLOT = re.compile(r"\{(left|lane|whose) (\w+)\}")


def stage(texts: Texts, op: Stage) -> Plan[Statement, int]:
    staged = 0
    for job in op.jobs:
        values = {
            "id": job.id,
            "topic": job.topic,
            "payload": job.payload,
            "order_key": job.order,
            "now": op.now,
            "namespace": op.namespace,
        }
        staged += len((yield Statement(texts["job_stage"], values)))
    return staged


def take(texts: Texts, op: TakeJobs, fill: FillTake) -> Plan[Statement, tuple[StagedJob, ...]]:
    if not op.topics and not op.others:
        return ()
    names = {f"topic_{encode_letters(place)}": topic for place, topic in enumerate(op.topics)}
    values = {
        "limit": op.limit,
        "token": op.token,
        "lease": op.lease,
        "now": op.now,
        "namespace": op.namespace,
        **names,
    }
    left = "{table}.token <> {empty}" if op.left else "{table}.token = {empty}"
    # A single namespace is compared with `=`: the index then returns the jobs in their order.
    whose = "{table}.namespace IN (:namespace, '')" if op.unnamed else "{table}.namespace = :namespace"
    text = fill(texts["job_take"], left, topic_condition(op, list(names)), whose)
    taken = yield Statement(text, values)
    return tuple(sorted(map(read_job, taken), key=lambda job: job.sequence))


def topic_condition(op: TakeJobs, names: Sequence[str]) -> str:
    """The SQL condition for the wanted topics."""
    if not names:
        return "1 = 1"
    listed = ", ".join(f":{name}" for name in names)
    return f"{{table}}.topic {'NOT IN' if op.others else 'IN'} ({listed})"


def encode_letters(number: int) -> str:
    """A number in letters, for the name of a parameter: a, b, … z, ba, bb …"""
    more, last = divmod(number, 26)
    return (encode_letters(more) if more else "") + ascii_lowercase[last]


def finish(texts: Texts, op: FinishJobs) -> Plan[Statement, int]:
    if not op.ids:
        return 0
    deleted = yield Statement(texts["job_finish"], {"ids": json.dumps(op.ids), "token": op.token})
    return len(deleted)


def fail(texts: Texts, op: FailJob) -> Plan[Statement, bool]:
    values = {"id": op.id, "token": op.token, "error": op.error, "delay": op.delay, "dead": int(op.dead), "now": op.now}
    return bool((yield Statement(texts["job_fail"], values)))


def give_back(texts: Texts, op: ReturnJob) -> Plan[Statement, bool]:
    values = {"id": op.id, "token": op.token, "error": op.error, "delay": op.delay, "now": op.now}
    return bool((yield Statement(texts["job_return"], values)))


def revive(texts: Texts, op: ReviveJob) -> Plan[Statement, bool]:
    values = {"id": op.id, "now": op.now, "namespace": op.namespace}
    return bool((yield Statement(texts["job_revive" if op.dead else "job_hasten"], values)))


def drop(texts: Texts, op: DropJob) -> Plan[Statement, bool]:
    values = {"id": op.id, "dead": int(op.dead), "now": op.now, "namespace": op.namespace}
    return bool((yield Statement(texts["job_drop"], values)))


def backlog(texts: Texts, op: JobBacklog) -> Plan[Statement, JobBacklogReply]:
    values = {"limit": op.limit, "namespace": op.namespace or "", "every": int(op.namespace is None)}
    found = yield Statement(texts["job_backlog"], values, writes=False)
    ((now,),) = yield Statement(texts["clock"], {"now": op.now}, writes=False)
    groups = tuple(sorted(TopicGroup(topic, *map(int, counts)) for topic, *counts in found))
    most = max(sum(group.waiting for group in groups), sum(group.dead for group in groups))
    return JobBacklogReply(groups, most >= op.limit, int(now))


def assign(texts: Texts, op: AssignJobs) -> Plan[Statement, int]:
    return len((yield Statement(texts["job_assign"], {"namespace": op.namespace})))


def list_namespaces(texts: Texts, op: Namespaces) -> Plan[Statement, NamespacesReply]:
    ((unnamed,),) = yield Statement(texts["job_unnamed"], {}, writes=False)
    if not unnamed and not op.every:
        return NamespacesReply(0, ())
    found = yield Statement(texts["namespaces"], {}, writes=False)
    return NamespacesReply(int(unnamed), tuple(sorted(name for (name,) in found if name)))


def list_jobs(texts: Texts, op: ListJobs) -> Plan[Statement, tuple[StagedJob, ...]]:
    values = {
        "after": op.after,
        "limit": op.limit,
        "namespace": op.namespace or "",
        "every": int(op.namespace is None),
    }
    name = "job_list_dead" if op.dead else "job_list"
    return tuple(map(read_job, (yield Statement(texts[name], values, writes=False))))


def read_job(row: Sequence[Any]) -> StagedJob:
    sequence, job_id, topic, payload, order_key, created, deliveries, due, dead, error, namespace = row
    job = Job(job_id, topic, bytes(payload), order_key)
    return StagedJob(job, sequence, created, deliveries, due, bool(dead), error, namespace)


FILLED_TEXTS = 256
_NO_NAMES = TableNames("", "", "")


def build_fill(dialect: Dialect) -> FillTake:
    """Fills the conditions of `take`. They are few, and each text is built once."""

    @lru_cache(FILLED_TEXTS)
    def fill_take(template: str, left: str, lane: str, whose: str) -> str:
        slots = {"left": left, "lane": lane, "whose": whose}
        return _SLOT.sub(lambda slot: dialect.fill(slots[slot[1]].replace("{table}", slot[2]), _NO_NAMES), template)

    return fill_take


PLANS: dict[type[Any], Callable[[Texts, Any], Any]] = {
    Stage: stage,
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
