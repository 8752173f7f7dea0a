"""What operators ask of the outbox: how many jobs wait or are dead, how old the oldest is, and to drop one.

For stores whose `capabilities.outbox` is true."""

from __future__ import annotations

from retrysafe.core.backlog import JobBacklog, JobBacklogReply, TopicGroup
from retrysafe.core.jobs import DropJob, FailJob, Job, ListJobs, ReviveJob, Stage, TakeJobs
from retrysafe.core.times import SECOND_MICROS
from retrysafe.testing.builders import to_micros
from retrysafe.testing.driver import Do

TOKEN = b"t" * 16


def test_jobs_are_counted_by_topic_with_the_oldest(do: Do) -> None:
    for number, topic in enumerate(("mail", "mail", "ship")):
        job = Job(f"{number:032x}", topic, b"{}")
        assert do(Stage((job,), to_micros(10 + number), "n1")) == 1
    assert do(Stage((Job("f" * 32, "mail", b"{}"),), to_micros(5), "n2")) == 1
    assert len(do(TakeJobs(1, TOKEN, 60 * SECOND_MICROS, to_micros(20), "n1"))) == 1
    assert do(FailJob(f"{0:032x}", TOKEN, "no", 0, True, to_micros(21)))
    assert do(JobBacklog("n1", now=to_micros(30))) == JobBacklogReply(
        (
            TopicGroup("mail", 1, 11 * SECOND_MICROS, 1, 10 * SECOND_MICROS),
            TopicGroup("ship", 1, 12 * SECOND_MICROS, 0, 0),
        ),
        False,
        30 * SECOND_MICROS,
    )
    assert do(JobBacklog(now=to_micros(30))).waiting == 3
    assert do(JobBacklog("n1", limit=2, now=to_micros(30))).truncated
    assert do(JobBacklog("n3", now=to_micros(30))).groups == ()


def test_a_person_drops_a_dead_letter_and_nothing_else(do: Do) -> None:
    job = Job("a" * 32, "mail", b"{}")
    assert do(Stage((job,), to_micros(10), "n1")) == 1
    assert not do(DropJob(job.id, to_micros(11), "n1")), "it waits: it is no dead letter"
    assert do(TakeJobs(1, TOKEN, 60 * SECOND_MICROS, to_micros(20), "n1"))
    assert not do(DropJob(job.id, to_micros(21), "n1", dead=False)), "a worker has it"
    assert do(FailJob(job.id, TOKEN, "no", 0, True, to_micros(22)))
    assert not do(DropJob(job.id, to_micros(23), "n2")), "it belongs to another application"
    assert do(ReviveJob(job.id, to_micros(24), "n1"))
    assert not do(DropJob(job.id, to_micros(25), "n1")), "somebody revived it meanwhile"
    assert do(DropJob(job.id, to_micros(26), "n1", dead=False))
    assert do(ListJobs()) == ()
    assert not do(DropJob(job.id, to_micros(27), "n1"))


def test_a_job_whose_lease_ran_out_can_be_dropped(do: Do) -> None:
    job = Job("a" * 32, "mail", b"{}")
    assert do(Stage((job,), to_micros(10), "n1")) == 1
    assert do(TakeJobs(1, TOKEN, 60 * SECOND_MICROS, to_micros(20), "n1"))
    assert not do(DropJob(job.id, to_micros(79.9), "n1", dead=False))
    assert do(DropJob(job.id, to_micros(80), "n1", dead=False))
