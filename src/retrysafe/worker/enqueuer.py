"""The enqueuer: the relay of the transactional outbox. It publishes staged jobs at least once, each with a stable id.

A job is deleted after it was published. If the process dies in between, the job is published again with the same id
once its lease is over, and the receiver can recognise it (I20).

Each topic that has a publisher has a queue of its own, so that a slow topic does not hold up others. A delivery is
counted when the job is taken, because a delivery may kill its process. A job that was taken and not tried is returned
uncounted. A job that a dead worker left behind is taken alone. So a job that kills every process that tries it affects
no other job, and becomes a dead letter when its deliveries are used up.
"""

from __future__ import annotations

import logging
import operator
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from retrysafe.core.jobs import FailJob, FinishJobs, Job, ListJobs, Namespaces, ReturnJob, StagedJob, TakeJobs
from retrysafe.core.times import SECOND_MICROS, duration_to_micros
from retrysafe.engine.safe import RetrySafe
from retrysafe.policy import DEFAULT_LEASE_SECONDS
from retrysafe.worker.flows import (
    CallUserFunction,
    ShouldStop,
    WorkerFlow,
    is_async,
    is_sole_application,
    never_stop,
    run,
)

BATCH_ROWS = 100
MAX_ATTEMPTS = 20
MAX_BACKOFF_SECONDS = 600.0
MAX_TICK_SECONDS = 30.0
"""The longest time of a round, even if more jobs are due."""

NAMESPACES_CACHE_SECONDS = 60.0
"""How long it is remembered whether jobs without a namespace belong to this application."""

SAMPLE_ROWS = 1000
"""The number of jobs that are checked for a publisher."""

ANY_TOPIC = "*"

_log = logging.getLogger("retrysafe.worker")

Publisher = Callable[[Job], Any]
"""Delivers a job, or raises an error. May be async."""


class EnqueuerCounts(NamedTuple):
    """The jobs that one round processed, by outcome."""

    published: int
    failed: int
    dead: int
    waiting: int = 0
    """Of topics without a publisher in this process: left alone, because another worker may have one."""

    def add(self, other: EnqueuerCounts) -> EnqueuerCounts:
        return EnqueuerCounts(*map(operator.add, self, other))


NO_COUNTS = EnqueuerCounts(0, 0, 0)


class Enqueuer:
    """`publishers` by topic; `"*"` takes the topics that have none. Jobs of a topic without a publisher wait.

    `lease`: seconds until another worker takes the jobs of a dead one. A delivery that takes longer may be made twice.
    `max_attempts`: the deliveries of a job.
    """

    def __init__(
        self,
        safe: RetrySafe,
        publishers: Mapping[str, Publisher],
        *,
        batch: int = BATCH_ROWS,
        lease: float = DEFAULT_LEASE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self._safe = safe
        self.publishers = publishers
        self.batch = batch
        self.lease = lease
        self.max_attempts = max_attempts
        self._unnamed_jobs = UnnamedJobs(safe.namespace)

    def run_once(self, stopping: ShouldStop = never_stop) -> EnqueuerCounts:
        """Publish what is due, the topics in turns. `stopping` is called between two deliveries."""
        return run(self._safe, self.tick_flow(stopping))

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[EnqueuerCounts]:
        total = NO_COUNTS._replace(waiting=(yield from self.count_unpublishable()))
        until = time.monotonic() + MAX_TICK_SECONDS
        busy = self.topic_queues()
        while busy and not stopping() and time.monotonic() < until:
            still_busy = []
            for queue in busy:
                found, counts = yield from queue.run_turn(stopping)
                total = total.add(counts)
                if found:
                    still_busy.append(queue)
            busy = still_busy
        return total

    def topic_queues(self) -> list[TopicQueue]:
        return [TopicQueue(self, topic) for topic in self.publishers]

    def count_unpublishable(self) -> WorkerFlow[int]:
        """How many of the first SAMPLE_ROWS jobs have no publisher here. At least so many wait for another worker."""
        if ANY_TOPIC in self.publishers:
            return 0
        jobs = yield ListJobs(limit=SAMPLE_ROWS, namespace=self._safe.namespace)
        if (yield from self.takes_unnamed()):
            jobs += yield ListJobs(limit=SAMPLE_ROWS, namespace="")
        topics = [each.job.topic for each in jobs if not each.dead and each.job.topic not in self.publishers]
        for topic in sorted(set(topics)):
            _log.warning("%d jobs wait: no publisher for topic %r here", topics.count(topic), topic)
        return len(topics)

    def takes_unnamed(self) -> WorkerFlow[bool]:
        return (yield from self._unnamed_jobs.are_ours())


class UnnamedJobs:
    """Decides whether jobs without a namespace are ours: they are if the store has no other application (rule 15)."""

    def __init__(self, namespace: str) -> None:
        self._namespace = namespace
        self._ours = False
        self._until = -1.0

    def are_ours(self) -> WorkerFlow[bool]:
        if time.monotonic() > self._until:
            self._until = time.monotonic() + NAMESPACES_CACHE_SECONDS
            seen = yield Namespaces()
            self._ours = bool(seen.unnamed) and is_sole_application(self._namespace, seen.names)
        return self._ours


class TopicQueue:
    """The jobs of one topic, or (`"*"`) of all topics that have no publisher of their own."""

    def __init__(self, enqueuer: Enqueuer, topic: str) -> None:
        self._enqueuer = enqueuer
        self._safe = enqueuer._safe
        self.topic = topic
        self.due_in: float | None = None
        """Seconds until the first job that failed in the last turn is due again."""

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[EnqueuerCounts]:
        """Run turns until no job is due."""
        total, until = NO_COUNTS, time.monotonic() + MAX_TICK_SECONDS
        self.due_in = None
        while not stopping() and time.monotonic() < until:
            found, counts = yield from self.run_turn(stopping)
            total = total.add(counts)
            if not found:
                return total
        self.due_in = 0.0  # there may be more
        return total

    def run_turn(self, stopping: ShouldStop = never_stop) -> WorkerFlow[tuple[bool, EnqueuerCounts]]:
        """Take one job that a dead worker left behind, and one batch of other jobs. Returns whether there was any job,
        and the counts."""
        found, total = False, NO_COUNTS
        for left, limit in ((True, 1), (False, self._enqueuer.batch)):
            token = secrets.token_bytes(16)
            taken = yield self._build_take(token, limit, left, unnamed=(yield from self._enqueuer.takes_unnamed()))
            found = found or bool(taken)
            if taken:
                total = total.add((yield from self._publish(taken, token, stopping)))
        return found, total

    def _build_take(self, token: bytes, limit: int, left: bool, *, unnamed: bool) -> TakeJobs:
        others = self.topic == ANY_TOPIC
        topics = tuple(name for name in self._enqueuer.publishers if name != ANY_TOPIC) if others else (self.topic,)
        return TakeJobs(
            limit,
            token,
            duration_to_micros(self._enqueuer.lease),
            namespace=self._safe.namespace,
            topics=topics,
            others=others,
            left=left,
            unnamed=unnamed,
        )

    def _publish(self, taken: Sequence[StagedJob], token: bytes, stopping: ShouldStop) -> WorkerFlow[EnqueuerCounts]:
        """Deliver the jobs one after the other, and delete what was delivered. After half of the lease the jobs that
        were not tried are returned, so that two workers do not deliver them at once. So are jobs with the same order
        key as one that failed."""
        batch = DeliveryBatch(taken)
        until = time.monotonic() + self._enqueuer.lease / 2
        try:
            for place, staged in enumerate(taken):
                if place and (stopping() or time.monotonic() > until):
                    break
                if not batch.is_held_up(staged):
                    batch.begin(staged)
                    batch.record_outcome((yield from self._deliver(staged)))
        except GeneratorExit:
            raise
        except BaseException:
            yield from self._settle_batch(batch, token)
            raise
        yield from self._settle_batch(batch, token)
        return EnqueuerCounts(len(batch.published), batch.failures - batch.dead, batch.dead)

    def _deliver(self, staged: StagedJob) -> WorkerFlow[Exception | None]:
        """Deliver one job. Returns the error if that failed."""
        if staged.unreadable:
            return Unreadable(staged.unreadable)
        if staged.attempts > self._enqueuer.max_attempts:
            times = staged.attempts - 1
            return Deadly(f"{times} deliveries ended their worker, or took longer than {self._enqueuer.lease:g} s")
        publisher = self._enqueuer.publishers.get(self.topic)
        if publisher is None:
            return NoPublisher(f"the publisher of {self.topic!r} was taken away")
        try:
            yield CallUserFunction(lambda: publisher(staged.job), is_async(publisher))
        except Exception as error:
            return error
        delay = time.time() - staged.created / SECOND_MICROS  # by two clocks: the store's, and that of this machine
        self._safe.figures.outbox_delay.observe((self.topic,), max(0.0, delay))
        return None

    def _settle_batch(self, batch: DeliveryBatch, token: bytes) -> WorkerFlow[None]:
        """Delete the published jobs, and return the others with their errors."""
        yield FinishJobs(tuple(staged.job.id for staged in batch.published), token)
        for staged, error in batch.failed:
            if isinstance(error, Unreadable | NoPublisher):
                yield ReturnJob(
                    staged.job.id, token, self._format_error(error), duration_to_micros(MAX_BACKOFF_SECONDS)
                )
                batch.failures += 1
                continue
            spent = isinstance(error, Deadly) or staged.attempts >= self._enqueuer.max_attempts
            yield from self._fail_job(staged, token, error, dead=spent)
            batch.failures, batch.dead = batch.failures + 1, batch.dead + spent
        for staged in batch.list_untried():
            yield ReturnJob(staged.job.id, token, staged.error)

    def _fail_job(self, staged: StagedJob, token: bytes, error: BaseException, *, dead: bool) -> WorkerFlow[None]:
        delay = min(2.0 ** min(staged.attempts, 20), MAX_BACKOFF_SECONDS)
        yield FailJob(staged.job.id, token, self._format_error(error), duration_to_micros(delay), dead)
        if dead:
            self._safe.events.emit("job_dead", bytes.fromhex(staged.job.id), staged.job.topic, ("", staged.job.topic))
        else:
            self.due_in = delay if self.due_in is None else min(self.due_in, delay)

    def _format_error(self, error: BaseException) -> str:
        """The error in one line. With a key ring the text of a user's error is left out: it may repeat what was
        sealed."""
        kind = type(error).__name__
        ours = isinstance(error, Unreadable | NoPublisher | Deadly)
        return kind if self._safe.sealed and not ours else f"{kind}: {error}"[:500]


class DeliveryBatch:
    """The jobs that were taken together, and the outcome of each."""

    def __init__(self, taken: Sequence[StagedJob]) -> None:
        self._untried = {staged.job.id: staged for staged in taken}
        self._blocked_orders: set[str] = set()
        """Order keys of jobs that failed: later jobs with the same key wait."""
        self.published: list[StagedJob] = []
        self.failed: list[tuple[StagedJob, BaseException]] = []
        self.failures = 0
        self.dead = 0

    def is_held_up(self, staged: StagedJob) -> bool:
        return staged.job.order in self._blocked_orders

    def begin(self, staged: StagedJob) -> None:
        del self._untried[staged.job.id]
        self.failed.append((staged, Interrupted("its delivery was interrupted")))  # replaced by record_outcome

    def record_outcome(self, problem: Exception | None) -> None:
        staged, _ = self.failed.pop()
        if problem is None:
            self.published.append(staged)
            return
        self.failed.append((staged, problem))
        self._blocked_orders |= {staged.job.order} - {""}

    def list_untried(self) -> list[StagedJob]:
        return list(self._untried.values())


class NoPublisher(LookupError):
    """This worker has no publisher for the topic. Another may, so the job waits and does not become a dead letter."""


class Unreadable(ValueError):
    """The payload cannot be decrypted with the keys of this ring. The job waits for the key, and does not become a dead
    letter."""


class Deadly(RuntimeError):
    """The outcome of every delivery is unknown: each killed its worker, or took longer than its lease."""


class Interrupted(RuntimeError):
    """The worker was stopped during the delivery. Its outcome is unknown."""
