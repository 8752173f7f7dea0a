"""What is counted as a delivery, what becomes of one that ends its process, and how topics keep out of each other's
way. Time is not waited for: a lease of nothing is over at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.jobs import Job, ListJobs, Stage
from retrysafe.worker.enqueuer import Enqueuer, EnqueuerCounts
from retrysafe.worker.flows import CallUserFunction, never_stop


@pytest.fixture
def safe() -> Iterator[RetrySafe]:
    with RetrySafe("memory://") as made:
        yield made


def job(number: int, topic: str = "t", order: str = "") -> Job:
    return Job(f"{number:032x}", topic, b"{}", order)


def staged(safe: RetrySafe, *jobs: Job) -> None:
    safe.execute(Stage(jobs, namespace=safe.namespace))


def killed_at(safe: RetrySafe, enqueuer: Enqueuer, poison: str) -> bool:
    """A worker whose process ends in the delivery of one job: nothing after that is carried out. Whether it was."""
    sent: list[str] = []
    publisher = enqueuer.publishers["t"]
    enqueuer.publishers = {**enqueuer.publishers, "t": lambda given: sent.append(given.id)}
    story = enqueuer.tick_flow(never_stop)
    reply: Any = None
    try:
        while True:
            effect = story.send(reply)
            reply = effect.function() if isinstance(effect, CallUserFunction) else safe.execute(effect)  # type: ignore[arg-type]
            if isinstance(effect, CallUserFunction) and sent[-1] == poison:
                story.close()
                return True
            if isinstance(effect, CallUserFunction):
                publisher(job(int(sent[-1], 16)))
    except StopIteration:
        return False


def test_a_delivery_that_ends_its_process_becomes_a_dead_letter_and_the_others_go_on(safe: RetrySafe) -> None:
    """30 of 30 workers were killed by one job, and no other job was ever sent."""
    sent: list[str] = []
    staged(safe, *(job(number) for number in range(20)))
    poison = job(7).id
    kills = 0
    while killed_at(
        safe, Enqueuer(safe, {"t": lambda given: sent.append(given.id)}, lease=0.0, max_attempts=5), poison
    ):
        kills += 1
        assert kills < 10
    assert kills == 5
    assert sorted(set(sent)) == [job(number).id for number in range(20) if number != 7]
    (dead,) = safe.execute(ListJobs())
    assert (dead.job.id, dead.dead) == (poison, True)
    assert dead.error == "Deadly: 5 deliveries ended their worker, or took longer than 0 s"


def test_those_taken_with_it_lose_one_delivery_at_most(safe: RetrySafe) -> None:
    fails: list[str] = []

    def refuses(given: Job) -> None:
        fails.append(given.id)
        raise ValueError("not today")

    staged(safe, *(job(number) for number in range(5)))
    enqueuer = Enqueuer(safe, {"t": refuses}, lease=0.0, max_attempts=9)
    killed_at(safe, Enqueuer(safe, {"t": lambda given: None}, lease=0.0), job(0).id)
    assert [each.attempts for each in safe.execute(ListJobs())] == [1] * 5
    enqueuer.run_once()
    assert [each.attempts for each in safe.execute(ListJobs())] == [2] * 5
    assert len(fails) == 5


def test_a_round_counts_what_was_tried_and_nothing_else(safe: RetrySafe) -> None:
    """114 jobs were dead letters after one delivery: looking at them had been counted."""
    now = [0.0]

    def slow(given: Job) -> None:
        now[0] += 20.0

    staged(safe, *(job(number) for number in range(10)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("retrysafe.worker.enqueuer.time.monotonic", lambda: now[0])
        assert Enqueuer(safe, {"t": slow}, lease=60.0).run_once().published == 2
    assert [each.attempts for each in safe.execute(ListJobs())] == [0] * 8


def test_those_behind_one_that_failed_wait_in_their_order(safe: RetrySafe) -> None:
    sent: list[int] = []

    def picky(given: Job) -> None:
        number = int(given.id, 16)
        if number == 2 and 2 not in failed:
            failed.append(2)
            raise ValueError("not yet")
        sent.append(number)

    failed: list[int] = []
    staged(safe, job(1, order="o"), job(2, order="o"), job(3, order="o"), job(4))
    assert Enqueuer(safe, {"t": picky}).run_once() == EnqueuerCounts(2, 1, 0)
    assert sent == [1, 4]
    assert [(each.attempts, each.error) for each in safe.execute(ListJobs())] == [(1, "ValueError: not yet"), (0, "")]


def test_lanes_take_turns(safe: RetrySafe) -> None:
    """A topic with many jobs does not keep the others waiting until all of its own are sent."""
    sent: list[str] = []

    def note(given: Job) -> None:
        sent.append(given.topic)

    staged(safe, *(job(number, "many") for number in range(50)), job(99, "few"), job(100, "other"))
    assert Enqueuer(safe, {"many": note, "few": note, "*": note}, batch=10).run_once() == EnqueuerCounts(52, 0, 0)
    assert sent.index("few") == 10
    assert sent.index("other") == 11


def test_a_worker_that_is_interrupted_gives_back_what_it_has_not_tried(safe: RetrySafe) -> None:
    class Stopped(BaseException):
        pass

    def stops(given: Job) -> None:
        if given.id == job(1).id:
            raise Stopped

    staged(safe, job(0), job(1), job(2))
    with pytest.raises(Stopped):
        Enqueuer(safe, {"t": stops}).run_once()
    left = safe.execute(ListJobs())
    assert [(each.job.id, each.attempts) for each in left] == [(job(1).id, 1), (job(2).id, 0)]
    assert left[0].error.startswith("Interrupted")
