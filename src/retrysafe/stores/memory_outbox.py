"""The outbox of the memory store: what each operation of core/jobs.py does, on a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from retrysafe.core.jobs import FailJob, FinishJobs, ListJobs, ReviveJob, Stage, StagedJob, TakeJobs


class MemoryOutbox:
    """Called under the store's lock."""

    def __init__(self) -> None:
        self._jobs: dict[str, StagedJob] = {}
        self._tokens: dict[str, bytes] = {}
        self._sequence = 0

    def apply(self, op: Any, now: int) -> Any:
        return _APPLY[type(op)](self, op, now)

    def _stage(self, op: Stage, now: int) -> int:
        before = len(self._jobs)
        for job in op.jobs:
            if job.id not in self._jobs:
                self._sequence += 1
                self._jobs[job.id] = StagedJob(job, self._sequence, now, 0, now, False, "")
        return len(self._jobs) - before

    def _take(self, op: TakeJobs, now: int) -> tuple[StagedJob, ...]:
        ready = [job for job in self._jobs.values() if not job.dead and job.due <= now and self._first(job)]
        taken = []
        for job in sorted(ready, key=lambda each: each.sequence)[: op.limit]:
            leased = job._replace(due=now + op.lease, attempts=job.attempts + 1)
            self._jobs[job.job.id], self._tokens[job.job.id] = leased, op.token
            taken.append(leased)
        return tuple(taken)

    def _first(self, job: StagedJob) -> bool:
        """Whether no job of the same order key stands before it."""
        order = job.job.order
        return not order or not any(
            each.job.order == order and not each.dead and each.sequence < job.sequence for each in self._jobs.values()
        )

    def _held(self, job_id: str, token: bytes) -> bool:
        return job_id in self._jobs and self._tokens.get(job_id) == token

    def _finish(self, op: FinishJobs, now: int) -> int:
        held = [job_id for job_id in dict.fromkeys(op.ids) if self._held(job_id, op.token)]
        for job_id in held:
            del self._jobs[job_id], self._tokens[job_id]
        return len(held)

    def _fail(self, op: FailJob, now: int) -> bool:
        if not self._held(op.id, op.token):
            return False
        self._jobs[op.id] = self._jobs[op.id]._replace(due=now + op.delay, dead=op.dead, error=op.error)
        del self._tokens[op.id]
        return True

    def _revive(self, op: ReviveJob, now: int) -> bool:
        job = self._jobs.get(op.id)
        if job is None or not job.dead:
            return False
        self._jobs[op.id] = job._replace(dead=False, due=now, attempts=0, error="")
        return True

    def _list(self, op: ListJobs, now: int) -> tuple[StagedJob, ...]:
        found = [job for job in self._jobs.values() if job.sequence > op.after and (job.dead or not op.dead)]
        return tuple(sorted(found, key=lambda each: each.sequence)[: op.limit])


_APPLY: dict[type[Any], Callable[[MemoryOutbox, Any, int], Any]] = {
    Stage: MemoryOutbox._stage,
    TakeJobs: MemoryOutbox._take,
    FinishJobs: MemoryOutbox._finish,
    FailJob: MemoryOutbox._fail,
    ReviveJob: MemoryOutbox._revive,
    ListJobs: MemoryOutbox._list,
}
