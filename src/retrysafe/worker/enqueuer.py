"""The enqueuer: publishes staged jobs, at least once, with a stable id, and deletes exactly what it published.

Between publishing and deleting the process may die; then the job is published again, with the same id, once its
lease is over. Whoever receives it can tell (I20).

Each topic that has a publisher is a lane of its own, so that a slow one holds up nobody else. A job is counted when it
is taken, for a delivery may end its process and then nobody is left to count; what was taken and not tried is given
back, uncounted. What a taker left behind is taken alone: so one that ends every process that tries it takes no other
job with it, and becomes a dead letter when it has used up its deliveries.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from retrysafe.core.jobs import FailJob, FinishJobs, Job, ListJobs, Namespaces, ReturnJob, StagedJob, TakeJobs
from retrysafe.core.times import duration_to_micros
from retrysafe.engine.safe import RetrySafe
from retrysafe.worker.flows import CallUserFunction, ShouldStop, WorkerFlow, is_async, never_stop, run
from retrysafe.worker.namespaces import is_sole_application

BATCH_ROWS = 100
LEASE_SECONDS = 60.0
MAX_ATTEMPTS = 20
MAX_BACKOFF_SECONDS = 600.0
MAX_TICK_SECONDS = 30.0
"""Seconds after which a round ends, whatever else has arrived."""

NAMESPACES_CACHE_SECONDS = 60.0
"""Seconds for which it is believed that nobody else uses the store, where there are jobs of no namespace."""

SAMPLE_ROWS = 1000
"""Of so many jobs it is looked whether somebody publishes them."""

ANY_TOPIC = "*"

_log = logging.getLogger("retrysafe.worker")

Publisher = Callable[[Job], Any]
"""Delivers a job, or raises. May be async."""


class EnqueuerCounts(NamedTuple):
    published: int
    failed: int
    dead: int
    waiting: int = 0
    """Of topics that have no publisher here: left alone, for another worker may have it."""

    def add(self, other: EnqueuerCounts) -> EnqueuerCounts:
        return EnqueuerCounts(*(one + another for one, another in zip(self, other, strict=True)))


NO_COUNTS = EnqueuerCounts(0, 0, 0)


class Enqueuer:
    """`publishers` by topic; `"*"` takes what no other does. A topic without a publisher waits.

    `lease` is how long a job that a dead worker had taken waits for the next one; a delivery that takes longer may be
    made twice. `max_attempts` is how many deliveries a job has.
    """

    def __init__(
        self,
        safe: RetrySafe,
        publishers: Mapping[str, Publisher],
        *,
        batch: int = BATCH_ROWS,
        lease: float = LEASE_SECONDS,
        max_attempts: int = MAX_ATTEMPTS,
    ) -> None:
        self._safe = safe
        self.publishers = publishers
        self.batch = batch
        self.lease = lease
        self.max_attempts = max_attempts
        self._unnamed_jobs = UnnamedJobs(safe.namespace)

    def run_once(self, stopping: ShouldStop = never_stop) -> EnqueuerCounts:
        """What is due now, the lanes in turns. `stopping` is asked between two deliveries."""
        return run(self._safe, self.tick_flow(stopping))

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[EnqueuerCounts]:
        total = NO_COUNTS._replace(waiting=(yield from self.count_unpublishable()))
        until = time.monotonic() + MAX_TICK_SECONDS
        busy = self.topic_queues()
        while busy and not stopping() and time.monotonic() < until:
            still = []
            for lane in busy:
                found, done = yield from lane.run_turn(stopping)
                total = total.add(done)
                if found:
                    still.append(lane)
            busy = still
        return total

    def topic_queues(self) -> list[TopicQueue]:
        return [TopicQueue(self, topic) for topic in self.publishers]

    def count_unpublishable(self) -> WorkerFlow[int]:
        """How many of the first jobs that wait have no publisher here: at least so many wait for another worker."""
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
    """Whether the jobs of no namespace are ours: they are, where nobody else is in the store (rule 15)."""

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
    """The jobs of one topic, or of all that have no lane of their own."""

    def __init__(self, enqueuer: Enqueuer, topic: str) -> None:
        self._enqueuer = enqueuer
        self._safe = enqueuer._safe
        self.topic = topic
        self.due_in: float | None = None
        """Seconds until the first of those that failed in its last turn is due again."""

    def tick_flow(self, stopping: ShouldStop = never_stop) -> WorkerFlow[EnqueuerCounts]:
        """Turn by turn, until nothing is due."""
        total, until = NO_COUNTS, time.monotonic() + MAX_TICK_SECONDS
        self.due_in = None
        while not stopping() and time.monotonic() < until:
            found, done = yield from self.run_turn(stopping)
            total = total.add(done)
            if not found:
                return total
        self.due_in = 0.0  # there may be more
        return total

    def run_turn(self, stopping: ShouldStop = never_stop) -> WorkerFlow[tuple[bool, EnqueuerCounts]]:
        """One job that a taker left behind, and one batch of the others. Whether there was anything."""
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
        """Deliver one after the other, and delete what was delivered. Half way through the lease those that were not
        tried go back, rather than being delivered by two workers at once; so do those behind one that failed, in its
        order."""
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
        """Why it could not be delivered."""
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
        return None

    def _settle_batch(self, batch: DeliveryBatch, token: bytes) -> WorkerFlow[None]:
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
            self._safe.events.emit("job_dead", bytes.fromhex(staged.job.id), staged.job.topic)
        else:
            self.due_in = delay if self.due_in is None else min(self.due_in, delay)

    def _format_error(self, error: BaseException) -> str:
        """Under a key ring the words of a user's error stay out: they may repeat what was sealed."""
        kind = type(error).__name__
        ours = isinstance(error, Unreadable | NoPublisher | Deadly)
        return kind if self._safe.sealed and not ours else f"{kind}: {error}"[:500]


class DeliveryBatch:
    """What became of those that were taken together, in their order."""

    def __init__(self, taken: Sequence[StagedJob]) -> None:
        self._untried = {staged.job.id: staged for staged in taken}
        self._blocked_orders: set[str] = set()
        """Order keys of which one was not delivered: those behind it wait."""
        self.published: list[StagedJob] = []
        self.failed: list[tuple[StagedJob, BaseException]] = []
        self.failures = 0
        self.dead = 0

    def is_held_up(self, staged: StagedJob) -> bool:
        return staged.job.order in self._blocked_orders

    def begin(self, staged: StagedJob) -> None:
        del self._untried[staged.job.id]
        self.failed.append((staged, Interrupted("its delivery was interrupted")))  # until it has ended

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
    """Nobody here knows the topic: another worker may, so the job waits and never becomes a dead letter for this."""


class Unreadable(ValueError):
    """Its payload cannot be opened with the keys at hand: it waits for the key, and never becomes a dead letter for
    this."""


class Deadly(RuntimeError):
    """Nobody said what became of its deliveries: each ended its worker, or outlived its lease."""


class Interrupted(RuntimeError):
    """The worker was stopped in the middle of it: whether it was delivered nobody knows."""
