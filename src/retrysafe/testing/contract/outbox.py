"""The outbox: jobs are staged once, leased, deleted by their ids, and published in order if they have an order key.

For stores whose `capabilities.outbox` is true. I19: a job exists until its publisher deletes it by its id. I20: a job
is published at least once, always with the same id. I34: a job has a namespace from the time it is staged, and no other
application takes it.
"""

from __future__ import annotations

import random
from typing import Any

from retrysafe.core.jobs import (
    AssignJobs,
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
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.builders import claim
from retrysafe.testing.driver import Do

ONE, TWO = b"one".ljust(16), b"two".ljust(16)


def job(number: int, order: str = "", payload: bytes = b"{}", topic: str = "topic") -> Job:
    return Job(f"{number:032x}", topic, payload, order)


def stage(*jobs: Job, namespace: str = "", now: int = 0) -> Stage:
    return Stage(jobs, now * SECOND_MICROS, namespace)


def take(token: bytes = ONE, limit: int = 100, lease: int = 60, now: int = 0, **filters: Any) -> TakeJobs:
    return TakeJobs(limit, token, lease * SECOND_MICROS, now * SECOND_MICROS, **filters)


def finish(*numbers: int, token: bytes = ONE, now: int = 0) -> FinishJobs:
    return FinishJobs(tuple(job(number).id for number in numbers), token, now * SECOND_MICROS)


def fail(number: int, *, token: bytes = ONE, delay: int = 5, dead: bool = False, now: int = 0) -> FailJob:
    return FailJob(job(number).id, token, "why", delay * SECOND_MICROS, dead, now * SECOND_MICROS)


def give_back(number: int, *, token: bytes = ONE, delay: int = 0, now: int = 0) -> ReturnJob:
    return ReturnJob(job(number).id, token, "", delay * SECOND_MICROS, now * SECOND_MICROS)


def job_numbers(taken: tuple[StagedJob, ...]) -> list[int]:
    return [int(each.job.id, 16) for each in taken]


def list_remaining(do: Do) -> list[int]:
    return job_numbers(do(ListJobs(limit=1000)))


def test_the_same_job_again_is_the_same_job(do: Do) -> None:
    assert do(stage(job(1), job(2))) == 2
    assert do(stage(job(2, payload=b"other"), job(3))) == 1
    assert [each.job.payload for each in do(ListJobs())] == [b"{}"] * 3


def test_a_job_comes_out_as_it_went_in(do: Do) -> None:
    given = Job("ab" * 16, "tøpic/ünï", bytes(range(256)), "order 1")
    do(stage(given, now=7))
    (taken,) = do(take(now=9))
    assert taken.job == given
    assert (taken.created, taken.attempts, taken.due, taken.dead) == (7 * SECOND_MICROS, 1, 69 * SECOND_MICROS, False)


def test_what_is_taken_is_nobody_elses_until_the_lease_is_over(do: Do) -> None:
    do(stage(job(1), job(2), job(3)))
    assert job_numbers(do(take(ONE, limit=2))) == [1, 2]
    assert job_numbers(do(take(TWO, now=59))) == [3]
    assert job_numbers(do(take(TWO, now=60, left=True))) == [1, 2]
    assert [each.attempts for each in do(ListJobs())] == [2, 2, 1]


def test_exactly_what_was_published_goes(do: Do) -> None:
    """I19: jobs are deleted by id and not by range, so the jobs between them stay."""
    do(stage(*(job(number) for number in range(1, 6))))
    do(take())
    assert do(finish(1, 3, 5)) == 3
    assert list_remaining(do) == [2, 4]


def test_only_whoever_holds_a_job_may_delete_or_fail_it(do: Do) -> None:
    do(stage(job(1)))
    assert do(finish(1)) == 0
    do(take(ONE))
    do(take(TWO, now=60, left=True))
    assert do(finish(1, token=ONE, now=61)) == 0
    assert do(fail(1, token=ONE, now=61)) is False
    assert do(finish(1, token=TWO, now=61)) == 1
    assert list_remaining(do) == []


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
    assert job_numbers(do(ListJobs(dead=True))) == [1]
    assert job_numbers(do(take(TWO, now=1000, left=True))) == [2]
    assert do(ReviveJob(job(2).id)) is False
    assert do(ReviveJob(job(1).id, 1000 * SECOND_MICROS)) is True
    (revived,) = do(take(TWO, now=1000))
    assert (revived.attempts, revived.error) == (1, "")


def test_a_person_makes_a_waiting_job_due(do: Do) -> None:
    """Its pause ends, and nothing else changes: its deliveries count on, and a job that a worker has is left alone."""
    do(stage(job(1), job(2)))
    do(take(limit=1))
    soon = ReviveJob(job(1).id, 10 * SECOND_MICROS, dead=False)
    assert do(soon) is False, "a worker has it"
    assert do(fail(1, delay=600)) is True
    assert job_numbers(do(take(TWO, now=10, limit=1))) == [2]
    assert do(ReviveJob(job(1).id, 10 * SECOND_MICROS, "other", dead=False)) is False
    assert do(soon) is True
    (taken,) = do(take(TWO, now=10))
    assert (taken.job.id, taken.attempts, taken.error != "") == (job(1).id, 2, True)
    assert do(fail(1, token=TWO, dead=True)) is True
    assert do(soon) is False, "a dead letter waits for nothing"


def test_what_its_taker_left_behind_is_told_apart(do: Do) -> None:
    """A job that was left behind may have killed its worker, so such jobs are taken separately from new ones."""
    do(stage(job(1), job(2), job(3)))
    do(take(limit=2))
    assert job_numbers(do(take(TWO, now=60))) == [3]
    assert job_numbers(do(take(TWO, now=60, left=True, limit=1))) == [1]
    do(fail(1, token=TWO, delay=0, now=60))
    assert job_numbers(do(take(now=60))) == [1], "it was reported as failed, so it is not left behind"
    assert job_numbers(do(take(now=60, left=True))) == [2]


def test_what_is_given_back_does_not_count(do: Do) -> None:
    do(stage(job(1)))
    (first,) = do(take())
    assert do(give_back(1, token=TWO)) is False
    assert do(give_back(1, delay=9)) is True
    assert do(give_back(1)) is False
    assert do(take(now=8)) == ()
    (again,) = do(take(now=9))
    assert (first.attempts, again.attempts) == (1, 1)


def test_each_topic_has_a_lane(do: Do) -> None:
    do(stage(job(1, topic="a"), job(2, topic="b"), job(3, topic="c"), job(4, topic="a")))
    assert job_numbers(do(take(topics=("b",), others=False))) == [2]
    assert do(take(topics=("x",), others=False)) == ()
    assert do(take(topics=(), others=False)) == ()
    assert job_numbers(do(take(topics=("a", "x"), others=True))) == [3]
    assert job_numbers(do(take(topics=("x", "a"), others=False))) == [1, 4]


def test_jobs_of_one_order_go_in_turn_and_to_one_taker(do: Do) -> None:
    do(stage(job(1, "a"), job(2, "a"), job(3, "b"), job(4), job(5, "b"), job(6, "a")))
    assert job_numbers(do(take(limit=4))) == [1, 2, 3, 4]
    assert do(take(TWO)) == (), "those behind wait until all before them are gone"
    do(finish(3))
    assert job_numbers(do(take(TWO))) == [5]
    do(finish(1))
    assert do(take(TWO)) == ()
    do(fail(2, delay=30))
    assert do(take(TWO, now=29)) == ()
    assert job_numbers(do(take(TWO, now=30))) == [2, 6]


def test_an_order_is_kept_over_topics_and_over_what_was_left_behind(do: Do) -> None:
    do(stage(job(1, "a", topic="x"), job(2, "a", topic="y"), job(3, "a", topic="x")))
    assert do(take(topics=("y",), others=False)) == ()
    assert job_numbers(do(take(topics=("x",), others=False))) == [1]
    assert do(take(TWO, now=60)) == (), "the first was left behind, and has to go first"
    assert job_numbers(do(take(TWO, now=60, left=True))) == [1]
    do(finish(1, token=TWO, now=60))
    assert job_numbers(do(take(now=60))) == [2, 3]


def test_namespaces_are_walls(do: Do) -> None:
    do(stage(job(1, "o"), job(2, "o"), namespace="shop-a"))
    do(stage(job(3, "o"), job(4), namespace="shop-b"))
    assert job_numbers(do(ListJobs(namespace="shop-a"))) == [1, 2]
    assert list_remaining(do) == [1, 2, 3, 4]
    assert do(take(namespace="shop")) == ()
    assert do(take(namespace="")) == ()
    (first,) = do(take(namespace="shop-a", limit=1))
    assert (first.job, first.namespace) == (job(1, "o"), "shop-a")
    assert job_numbers(do(take(TWO, namespace="shop-b"))) == [3, 4], "an order key is its application's own"
    do(fail(1, dead=True))
    assert do(ReviveJob(job(1).id, 0, "shop-b")) is False
    assert do(ReviveJob(job(1).id, 0)) is False
    assert do(ReviveJob(job(1).id, 0, "shop-a")) is True


def test_a_job_of_no_namespace_is_taken_by_who_is_alone_or_assigned_by_a_person(do: Do) -> None:
    do(stage(job(1, "o"), job(2, "o")))
    do(stage(job(3, "o"), namespace="shop"))
    assert job_numbers(do(take(namespace="shop"))) == [3], "jobs without a namespace do not block others"
    do(give_back(3))
    assert job_numbers(do(take(namespace="shop", unnamed=True, limit=2))) == [1, 2]
    assert do(take(TWO, namespace="shop", unnamed=True)) == (), "with unnamed=True they come first in their order"
    do(give_back(1))
    do(give_back(2))
    assert do(AssignJobs("shop")) == 2
    assert do(AssignJobs("other")) == 0
    assert job_numbers(do(take(namespace="shop"))) == [1, 2, 3]


def test_whose_records_and_jobs_there_are(do: Do) -> None:
    assert do(Namespaces()) == NamespacesReply(0, ())
    do(claim("k", namespace="shop-a"))
    do(stage(job(1), namespace="shop-b"))
    assert do(Namespaces()) == NamespacesReply(0, ()), (
        "without every=True the names are only read if jobs have no namespace"
    )
    assert do(Namespaces(every=True)) == NamespacesReply(0, ("shop-a", "shop-b"))
    do(stage(job(2), job(3)))
    assert do(Namespaces()) == NamespacesReply(2, ("shop-a", "shop-b"))


def test_a_dead_job_does_not_hold_up_those_behind_it(do: Do) -> None:
    do(stage(job(1, "a"), job(2, "a")))
    do(take())
    do(fail(1, dead=True))
    do(give_back(2))
    assert job_numbers(do(take())) == [2]


def test_nothing_to_finish_is_nothing(do: Do) -> None:
    assert do(finish()) == 0
    assert do(stage()) == 0


def test_listing_in_pages(do: Do) -> None:
    do(stage(*(job(number) for number in range(1, 8))))
    first = do(ListJobs(limit=3))
    rest = do(ListJobs(after=first[-1].sequence, limit=100))
    assert job_numbers(first) + job_numbers(rest) == [1, 2, 3, 4, 5, 6, 7]


def test_any_sequence_is_what_the_reference_store_makes_of_it(do: Do) -> None:
    reference = Do.sync(MemoryStore())
    choose = random.Random(11)
    now = 0
    for step in range(400):
        now += choose.choice([0, 1, 5])
        op = choose_random_op(choose, now)
        assert normalize_reply(do(op)) == normalize_reply(reference(op)), f"step {step}: {op}"


def choose_random_op(choose: random.Random, now: int) -> Op[object]:
    token = choose.choice([ONE, TWO])
    number = choose.randrange(6)
    namespace = choose.choice(["", "n1", "n2"])
    filters = {
        "namespace": namespace,
        "unnamed": choose.random() < 0.2,
        "left": choose.random() < 0.3,
        "topics": choose.choice([(), ("x",), ("x", "topic")]),
        "others": choose.random() < 0.6,
    }
    topic = choose.choice(["topic", "x"])
    ops: list[Op[object]] = [
        stage(
            job(number, choose.choice(["", "a", "b"]), topic=topic),
            job(choose.randrange(6)),
            namespace=namespace,
            now=now,
        ),
        take(token, limit=choose.choice([1, 3]), lease=choose.choice([2, 8]), now=now, **filters),
        take(token, limit=choose.choice([1, 3]), lease=choose.choice([2, 8]), now=now, **filters),
        finish(number, choose.randrange(6), token=token, now=now),
        fail(number, token=token, delay=3, dead=choose.random() < 0.3, now=now),
        give_back(number, token=token, delay=choose.choice([0, 2]), now=now),
        ReviveJob(job(number).id, now * SECOND_MICROS, namespace, dead=choose.random() < 0.5),
        ListJobs(dead=choose.random() < 0.5, namespace=choose.choice([None, namespace])),
        Namespaces(every=choose.random() < 0.5),
    ]
    if choose.random() < 0.03:
        return AssignJobs(namespace or "n1")
    return choose.choice(ops)


def normalize_reply(reply: object) -> object:
    """Remove the sequence numbers: each store has its own, and only their order is compared."""
    if not isinstance(reply, tuple) or isinstance(reply, NamespacesReply):
        return reply
    return [each._replace(sequence=0) for each in reply]
