"""The outbox of the memory store: what each operation of core/jobs.py does, on a dictionary."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from retrysafe.core.backlog import JobBacklog, JobBacklogReply, group_topics
from retrysafe.core.jobs import (
    AssignJobs,
    DropJob,
    FailJob,
    FinishJobs,
    ListJobs,
    Namespaces,
    NamespacesReply,
    ReturnJob,
    ReviveJob,
    Stage,
    StagedJob,
    TakeJobs,
)


class MemoryOutbox:
    """The store calls it under its lock. `records` returns the namespaces of the store's records."""

    def __init__(self, records: Callable[[], Iterable[str]] = tuple) -> None:
        self._jobs: dict[str, StagedJob] = {}
        self._tokens: dict[str, bytes] = {}
        self._sequence = 0
        self._records = records

    def apply(self, op: Any, now: int) -> Any:
        return _APPLY[type(op)](self, op, now)

    def _stage(self, op: Stage, now: int) -> int:
        before = len(self._jobs)
        for job in op.jobs:
            if job.id not in self._jobs:
                self._sequence += 1
                self._jobs[job.id] = StagedJob(job, self._sequence, now, 0, now, False, "", op.namespace)
        return len(self._jobs) - before

    def _take(self, op: TakeJobs, now: int) -> tuple[StagedJob, ...]:
        taken: list[StagedJob] = []
        blocked: set[str] = set()
        for job in self._jobs_in_order():
            if len(taken) == op.limit:
                break
            if job.dead or not is_in_namespace(job, op):
                continue
            order = job.job.order
            if order in blocked or not self._is_takeable(job, op, now):
                blocked |= {order} - {""}  # later jobs of the same order wait for this one
                continue
            leased = job._replace(due=now + op.lease, attempts=job.attempts + 1)
            self._jobs[job.job.id], self._tokens[job.job.id] = leased, op.token
            taken.append(leased)
        return tuple(taken)

    def _is_takeable(self, job: StagedJob, op: TakeJobs, now: int) -> bool:
        left = job.job.id in self._tokens
        return job.due <= now and left == op.left and (job.job.topic in op.topics) != op.others

    def _jobs_in_order(self) -> list[StagedJob]:
        return sorted(self._jobs.values(), key=lambda each: each.sequence)

    def _has_lease(self, job_id: str, token: bytes) -> bool:
        return job_id in self._jobs and self._tokens.get(job_id) == token

    def _finish(self, op: FinishJobs, now: int) -> int:
        leased = [job_id for job_id in dict.fromkeys(op.ids) if self._has_lease(job_id, op.token)]
        for job_id in leased:
            del self._jobs[job_id], self._tokens[job_id]
        return len(leased)

    def _fail(self, op: FailJob, now: int) -> bool:
        if not self._has_lease(op.id, op.token):
            return False
        self._jobs[op.id] = self._jobs[op.id]._replace(due=now + op.delay, dead=op.dead, error=op.error)
        del self._tokens[op.id]
        return True

    def _return(self, op: ReturnJob, now: int) -> bool:
        if not self._has_lease(op.id, op.token):
            return False
        job = self._jobs[op.id]
        self._jobs[op.id] = job._replace(due=now + op.delay, error=op.error, attempts=job.attempts - 1)
        del self._tokens[op.id]
        return True

    def _revive(self, op: ReviveJob, now: int) -> bool:
        job = self._jobs.get(op.id)
        if job is None or job.dead != op.dead or job.namespace != op.namespace:
            return False
        if not op.dead:
            if op.id in self._tokens and job.due > now:
                return False  # a worker has it
            self._jobs[op.id] = job._replace(due=now)
            return True
        self._jobs[op.id] = job._replace(dead=False, due=now, attempts=0, error="")
        return True

    def _drop(self, op: DropJob, now: int) -> bool:
        job = self._jobs.get(op.id)
        if job is None or job.dead != op.dead or job.namespace != op.namespace:
            return False
        if op.id in self._tokens and job.due > now:
            return False  # a worker has it
        del self._jobs[op.id]
        self._tokens.pop(op.id, None)
        return True

    def _backlog(self, op: JobBacklog, now: int) -> JobBacklogReply:
        found = [job for job in self._jobs_in_order() if op.namespace in (None, job.namespace)]
        waiting = [job for job in found if not job.dead][: op.limit]
        dead = [job for job in found if job.dead][: op.limit]
        return JobBacklogReply(group_topics(waiting, dead), max(len(waiting), len(dead)) >= op.limit, now)

    def _assign(self, op: AssignJobs, now: int) -> int:
        unnamed = [job for job in self._jobs.values() if not job.namespace]
        for job in unnamed:
            self._jobs[job.job.id] = job._replace(namespace=op.namespace)
        return len(unnamed)

    def _list_namespaces(self, op: Namespaces, now: int) -> NamespacesReply:
        of_jobs = [job.namespace for job in self._jobs.values()]
        unnamed = of_jobs.count("")
        names = {*of_jobs, *self._records()} - {""} if unnamed or op.every else set()
        return NamespacesReply(unnamed, tuple(sorted(names)))

    def _list(self, op: ListJobs, now: int) -> tuple[StagedJob, ...]:
        found = [
            job
            for job in self._jobs_in_order()
            if job.sequence > op.after and (job.dead or not op.dead) and op.namespace in (None, job.namespace)
        ]
        return tuple(found[: op.limit])


def is_in_namespace(job: StagedJob, op: TakeJobs) -> bool:
    return job.namespace == op.namespace or (op.unnamed and not job.namespace)


_APPLY: dict[type[Any], Callable[[MemoryOutbox, Any, int], Any]] = {
    Stage: MemoryOutbox._stage,
    TakeJobs: MemoryOutbox._take,
    FinishJobs: MemoryOutbox._finish,
    FailJob: MemoryOutbox._fail,
    ReturnJob: MemoryOutbox._return,
    ReviveJob: MemoryOutbox._revive,
    DropJob: MemoryOutbox._drop,
    JobBacklog: MemoryOutbox._backlog,
    AssignJobs: MemoryOutbox._assign,
    Namespaces: MemoryOutbox._list_namespaces,
    ListJobs: MemoryOutbox._list,
}
