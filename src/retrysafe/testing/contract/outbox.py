"""The outbox: jobs are staged once, leased, deleted by exactly their ids, and published in turn where asked.

For stores whose `capabilities.outbox` is true. I19: a job exists until the one who published it deletes it, by its id;
I20: at least once, always with the same id.
"""

from __future__ import annotations

import random

from retrysafe.core.jobs import FailJob, FinishJobs, Job, ListJobs, ReviveJob, Stage, StagedJob, TakeJobs
from retrysafe.core.ops import Op
from retrysafe.core.times import SECOND
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.driver import Do

ONE, TWO = b"one".ljust(16), b"two".ljust(16)


def job(number: int, order: str = "", payload: bytes = b"{}") -> Job:
    return Job(f"{number:032x}", "topic", payload, order)


def stage(*jobs: Job, now: int = 0) -> Stage:
    return Stage(jobs, now * SECOND)


def take(token: bytes = ONE, limit: int = 100, lease: int = 60, now: int = 0) -> TakeJobs:
    return TakeJobs(limit, token, lease * SECOND, now * SECOND)


def finish(*numbers: int, token: bytes = ONE, now: int = 0) -> FinishJobs:
    return FinishJobs(tuple(job(number).id for number in numbers), token, now * SECOND)


def fail(number: int, *, token: bytes = ONE, delay: int = 5, dead: bool = False, now: int = 0) -> FailJob:
    return FailJob(job(number).id, token, "why", delay * SECOND, dead, now * SECOND)


def numbers(taken: tuple[StagedJob, ...]) -> list[int]:
    return [int(each.job.id, 16) for each in taken]


def left(do: Do) -> list[int]:
    return numbers(do(ListJobs(limit=1000)))


def test_the_same_job_again_is_the_same_job(do: Do) -> None:
    assert do(stage(job(1), job(2))) == 2
    assert do(stage(job(2, payload=b"other"), job(3))) == 1
    assert [each.job.payload for each in do(ListJobs())] == [b"{}"] * 3


def test_a_job_comes_out_as_it_went_in(do: Do) -> None:
    given = Job("ab" * 16, "tøpic/ünï", bytes(range(256)), "order 1")
    do(stage(given, now=7))
    (taken,) = do(take(now=9))
    assert taken.job == given
    assert (taken.created, taken.attempts, taken.due, taken.dead) == (7 * SECOND, 1, 69 * SECOND, False)


def test_what_is_taken_is_nobody_elses_until_the_lease_is_over(do: Do) -> None:
    do(stage(job(1), job(2), job(3)))
    assert numbers(do(take(ONE, limit=2))) == [1, 2]
    assert numbers(do(take(TWO, now=59))) == [3]
    assert numbers(do(take(TWO, now=60))) == [1, 2]
    assert [each.attempts for each in do(ListJobs())] == [2, 2, 1]


def test_exactly_what_was_published_goes(do: Do) -> None:
    """I19: not a range; what lies between stays."""
    do(stage(*(job(number) for number in range(1, 6))))
    do(take())
    assert do(finish(1, 3, 5)) == 3
    assert left(do) == [2, 4]


def test_only_whoever_holds_a_job_may_delete_or_fail_it(do: Do) -> None:
    do(stage(job(1)))
    assert do(finish(1)) == 0
    do(take(ONE))
    do(take(TWO, now=60))
    assert do(finish(1, token=ONE, now=61)) == 0
    assert do(fail(1, token=ONE, now=61)) is False
    assert do(finish(1, token=TWO, now=61)) == 1
    assert left(do) == []


def test_a_job_that_failed_comes_back_after_its_delay(do: Do) -> None:
    do(stage(job(1)))
    do(take())
    assert do(fail(1, delay=5, now=1)) is True
    assert do(take(now=5)) == ()
    (again,) = do(take(TWO, now=6))
    assert (again.attempts, again.error) == (2, "why")


def test_a_dead_job_waits_for_a_person(do: Do) -> None:
    do(stage(job(1), job(2)))
    do(take())
    assert do(fail(1, dead=True)) is True
    assert numbers(do(ListJobs(dead=True))) == [1]
    assert numbers(do(take(TWO, now=1000))) == [2]
    assert do(ReviveJob(job(2).id)) is False
    assert do(ReviveJob(job(1).id, 1000 * SECOND)) is True
    (revived,) = do(take(TWO, now=1000))
    assert (revived.attempts, revived.error) == (1, "")


def test_jobs_of_one_order_go_one_after_the_other(do: Do) -> None:
    do(stage(job(1, "a"), job(2, "a"), job(3, "b"), job(4), job(5, "b")))
    assert numbers(do(take())) == [1, 3, 4]
    do(finish(3))
    assert numbers(do(take(TWO))) == [5]
    do(fail(1, delay=30))
    assert do(take(TWO, now=29)) == ()
    assert numbers(do(take(TWO, now=30))) == [1]
    do(finish(1, token=TWO))
    assert numbers(do(take(now=30))) == [2]


def test_a_dead_job_does_not_hold_up_those_behind_it(do: Do) -> None:
    do(stage(job(1, "a"), job(2, "a")))
    do(take())
    do(fail(1, dead=True))
    assert numbers(do(take())) == [2]


def test_nothing_to_finish_is_nothing(do: Do) -> None:
    assert do(finish()) == 0
    assert do(stage()) == 0


def test_listing_in_pages(do: Do) -> None:
    do(stage(*(job(number) for number in range(1, 8))))
    first = do(ListJobs(limit=3))
    rest = do(ListJobs(after=first[-1].sequence, limit=100))
    assert numbers(first) + numbers(rest) == [1, 2, 3, 4, 5, 6, 7]


def test_any_sequence_is_what_the_reference_store_makes_of_it(do: Do) -> None:
    reference = Do.sync(MemoryStore())
    choose = random.Random(11)
    now = 0
    for step in range(300):
        now += choose.choice([0, 1, 5])
        op = anything(choose, now)
        assert described(do(op)) == described(reference(op)), f"step {step}: {op}"


def anything(choose: random.Random, now: int) -> Op[object]:
    token = choose.choice([ONE, TWO])
    number = choose.randrange(6)
    made: list[Op[object]] = [
        stage(job(number, choose.choice(["", "a", "b"])), job(choose.randrange(6)), now=now),
        take(token, limit=choose.choice([1, 3]), lease=choose.choice([2, 8]), now=now),
        finish(number, choose.randrange(6), token=token, now=now),
        fail(number, token=token, delay=3, dead=choose.random() < 0.3, now=now),
        ReviveJob(job(number).id, now * SECOND),
        ListJobs(dead=choose.random() < 0.5),
    ]
    return choose.choice(made)


def described(reply: object) -> object:
    """Sequence numbers are the store's own; their order is not."""
    if not isinstance(reply, tuple):
        return reply
    return [each._replace(sequence=0) for each in reply]
