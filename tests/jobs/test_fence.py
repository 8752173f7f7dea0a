"""The fence itself, with a list as the queue: what a worker may do, and what a second caller gets."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path
from threading import Barrier, Thread
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Advance, List, Lookup
from retrysafe.core.times import duration_to_micros
from retrysafe.engine.drive import run
from retrysafe.engine.effects import CallFunction, Effect, FlowPause
from retrysafe.errors import (
    FingerprintMismatch,
    InProgress,
    NotDone,
    OutcomeUnknown,
    ResultNotStorable,
    StoredFailure,
    UsageError,
)
from retrysafe.jobs import JOB, FencedTask, JobMessage, QueueAdapter, RunningJob, current_job
from retrysafe.jobs.enqueue_flow import SEND_LEASE_SECONDS, JobSnapshot, is_being_sent, read_job_state


class Shop:
    """An adapter, a list as its queue, and tasks that record each of their runs."""

    def __init__(self, url: str = "memory://") -> None:
        self.safe = RetrySafe(url)
        self.jobs = QueueAdapter(self.safe)
        self.queue: list[JobMessage] = []
        self.runs: list[Any] = []

    def task(self, work: Callable[..., Any] | None = None, **options: Any) -> FencedTask:
        def charge(order: str, cents: int = 500) -> Any:
            self.runs.append((order, cents))
            return work() if work is not None else f"receipt of {order}"

        return self.jobs.fence(charge, **{"name": "charge", **options})

    def enqueue(self, task: FencedTask, *args: Any, key: str = "", **options: Any) -> Any:
        return self.jobs.enqueue(task, args, key=key, send=self.queue.append, **options)

    def work(self, task: FencedTask) -> Any:
        """Deliver the message that was sent last."""
        message = self.queue[-1]
        return task.run(message.id, message.args, message.kwargs)


@pytest.fixture
def shop() -> Shop:
    return Shop()


def fails() -> None:
    raise RuntimeError("the card reader is on fire")


# Enqueueing -----------------------------------------------------------------------------------------


def test_the_second_enqueue_is_the_same_job_and_sends_nothing(shop: Shop) -> None:
    task = shop.task()
    first, second = shop.enqueue(task, "o-7", key="charge-7"), shop.enqueue(task, "o-7", key="charge-7")
    assert (first.id, first.state, first.sent) == ("charge-7", "waiting", True)
    assert (second.id, second.state, second.sent) == ("charge-7", "waiting", False)
    assert len(shop.queue) == 1


def test_after_the_run_it_is_the_first_result(shop: Shop) -> None:
    task = shop.task()
    shop.enqueue(task, "o-7", key="charge-7")
    assert shop.work(task) == "receipt of o-7"
    enqueued = shop.enqueue(task, "o-7", key="charge-7")
    assert (enqueued.state, enqueued.sent, enqueued.result) == ("done", False, "receipt of o-7")
    assert shop.jobs.result("charge-7") == "receipt of o-7"
    assert len(shop.queue) == len(shop.runs) == 1


def test_many_at_once_send_one_message(shop: Shop, tmp_path: Path) -> None:
    shop = Shop(f"sqlite:///{tmp_path / 'jobs.db'}")
    shop.safe.migrate()
    task, start, enqueued = shop.task(), Barrier(8), []

    def caller() -> None:
        start.wait()
        enqueued.append(shop.enqueue(task, "o-7", key="charge-7"))

    threads = [Thread(target=caller) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(each.sent for each in enqueued) == len(shop.queue) == 1
    assert {each.id for each in enqueued} == {"charge-7"}
    shop.safe.close()


def overtaken(shop: Shop, task: FencedTask, stalled: float = 0.0) -> JobSnapshot:
    """An enqueue during which another enqueue runs between the lookup and the claim."""
    message = JobMessage("charge-7", "charge", ("o-7",), {})

    def perform(effect: Effect) -> Any:
        reply = shop.jobs._perform(effect)
        if isinstance(effect, Lookup):
            assert shop.enqueue(task, "o-7", key="charge-7").sent is True
            return reply._replace(now=reply.now - duration_to_micros(stalled))
        return reply

    return run(shop.jobs._enqueue_flow(task, message, shop.queue.append, None), perform)


def test_who_is_overtaken_by_another_sender_does_not_send_it_again(shop: Shop) -> None:
    """Eight threads showed this once in many runs: the first had sent and released before the second claimed."""
    task = shop.task()
    enqueued = overtaken(shop, task)
    assert (enqueued.state, enqueued.sent) == ("waiting", False)
    assert len(shop.queue) == 1
    assert shop.work(task) == "receipt of o-7"
    assert len(shop.runs) == 1


def test_who_is_overtaken_by_another_resend_does_not_send_it_again(shop: Shop) -> None:
    task = shop.task(fails)
    shop.enqueue(task, "o-7", key="charge-7")
    with pytest.raises(RuntimeError, match="on fire"):
        shop.work(task)
    assert overtaken(shop, task).sent is False
    assert len(shop.queue) == 2


def test_after_a_stall_it_is_sent_again_rather_than_perhaps_never(shop: Shop) -> None:
    """Another sender may have claimed it meanwhile and died before sending; its lease would be over too."""
    assert overtaken(shop, shop.task(), stalled=SEND_LEASE_SECONDS).sent is True
    assert len(shop.queue) == 2


def test_a_worker_with_the_lease_of_a_sender_is_not_taken_for_one(shop: Shop) -> None:
    """An enqueue would wait for it to send what it has been sent long ago."""
    seen: list[bool] = []

    def work() -> None:
        (record,) = shop.safe.execute(List()).records
        seen.append(is_being_sent(record, read_job_state(record, record.started)))

    task = shop.task(work, policy=JOB.replace(lease=SEND_LEASE_SECONDS))
    shop.enqueue(task, "o-7", key="charge-7")
    shop.work(task)
    assert seen == [False]


def test_positional_and_keyword_and_default_are_one_job(shop: Shop) -> None:
    task = shop.task()
    shop.enqueue(task, "o-7", key="charge-7")
    enqueued = shop.jobs.enqueue(task, (), {"cents": 500, "order": "o-7"}, key="charge-7", send=shop.queue.append)
    assert enqueued.sent is False


def test_another_job_under_the_same_key_is_refused(shop: Shop) -> None:
    task = shop.task()
    shop.enqueue(task, "o-7", key="charge-7")
    with pytest.raises(FingerprintMismatch, match="charge-7"):
        shop.enqueue(task, "o-8", key="charge-7")
    with pytest.raises(FingerprintMismatch, match="charge-7"):
        shop.enqueue(shop.task(name="refund"), "o-7", key="charge-7")
    assert len(shop.queue) == 1


def test_what_is_ignored_is_not_compared(shop: Shop) -> None:
    task = shop.task(ignore=("cents",))
    shop.enqueue(task, "o-7", 1, key="charge-7")
    assert shop.enqueue(task, "o-7", 2, key="charge-7").sent is False


def test_a_key_of_the_task_is_made_of_its_arguments(shop: Shop) -> None:
    task = shop.task(key="charge-{order}")
    assert shop.enqueue(task, "o-7").id == shop.enqueue(task, "o-7").id != shop.enqueue(task, "o-8").id
    assert len(shop.queue) == 2
    # A delivery with another id of the queue is still the same job.
    assert task.run("some-uuid", ("o-7",), {}) == task.run("another-uuid", ("o-7",), {})
    assert shop.runs == [("o-7", 500)]


def test_without_a_key_nothing_is_enqueued(shop: Shop) -> None:
    with pytest.raises(UsageError, match="needs a key"):
        shop.enqueue(shop.task(), "o-7")
    with pytest.raises(UsageError, match="makes its keys by"):
        shop.enqueue(shop.task(name="other", key="charge-{order}"), "o-7", key="mine")
    assert shop.queue == []


def broken(message: JobMessage) -> None:
    raise ConnectionError("no broker")


def test_a_sender_that_could_not_send_leaves_it_to_the_next_at_once(shop: Shop) -> None:
    """The failed sender's lease would last ten seconds: a second enqueue in that time must not report success without
    sending."""
    task = shop.task()
    with pytest.raises(ConnectionError):
        shop.jobs.enqueue(task, ("o-7",), key="charge-7", send=broken)
    assert shop.jobs.state("charge-7") == "lost"
    assert shop.enqueue(task, "o-7", key="charge-7").sent
    assert shop.queue[0].again
    assert shop.work(task) == "receipt of o-7"


async def test_a_sender_that_is_cancelled_leaves_it_to_the_next_at_once(shop: Shop) -> None:
    task = shop.task()
    began = asyncio.Event()

    async def hang(message: JobMessage) -> None:
        began.set()
        await asyncio.Event().wait()

    sending = asyncio.create_task(shop.jobs.aenqueue(task, ("o-7",), key="charge-7", send=hang))
    await began.wait()
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    assert shop.enqueue(task, "o-7", key="charge-7").sent


def test_who_is_overtaken_by_a_sender_that_failed_sends_it(shop: Shop) -> None:
    """The other sender claimed, failed to send and released, all between our lookup and our claim."""
    task = shop.task()
    message = JobMessage("charge-7", "charge", ("o-7",), {})
    looked = []

    def perform(effect: Effect) -> Any:
        reply = shop.jobs._perform(effect)
        if isinstance(effect, Lookup) and not looked:
            looked.append(effect)
            with pytest.raises(ConnectionError):
                shop.jobs.enqueue(task, ("o-7",), key="charge-7", send=broken)
        return reply

    assert run(shop.jobs._enqueue_flow(task, message, shop.queue.append, None), perform).sent
    assert len(shop.queue) == 1


def test_while_another_is_sending_it_is_waited_for_and_sent_if_that_one_died(shop: Shop) -> None:
    task = shop.task()
    message = JobMessage("charge-7", "charge", ("o-7",), {})
    waited = []

    def dies(effect: Effect) -> Any:
        """A sender that is killed while it sends: nothing happens after its claim."""
        if isinstance(effect, CallFunction):
            raise Killed
        assert not isinstance(effect, Advance), "it is dead"
        return shop.jobs._perform(effect)

    def perform(effect: Effect) -> Any:
        if isinstance(effect, FlowPause):
            waited.append(effect.seconds)
            lapse(shop, "charge-7")
            return 0.0
        return shop.jobs._perform(effect)

    with pytest.raises((Killed, AssertionError)):
        run(shop.jobs._enqueue_flow(task, message, shop.queue.append, None), dies)
    assert shop.jobs.state("charge-7") == "running"
    assert run(shop.jobs._enqueue_flow(task, message, shop.queue.append, None), perform).sent
    assert len(waited) == 1


def test_a_message_that_was_lost_is_sent_again_in_time(shop: Shop) -> None:
    task = shop.task()
    shop.enqueue(task, "o-7", key="charge-7")
    assert shop.enqueue(task, "o-7", key="charge-7", resend_after=3600.0).sent is False
    assert shop.enqueue(task, "o-7", key="charge-7", resend_after=0.0).sent
    assert [message.again for message in shop.queue] == [False, True]
    shop.work(task)
    shop.work(task)
    assert len(shop.runs) == 1


def test_a_queue_that_runs_jobs_while_they_are_sent(shop: Shop) -> None:
    """The eager or immediate modes that queues have for tests."""
    task = shop.task()
    enqueued = shop.jobs.enqueue(
        task, ("o-7",), key="charge-7", send=lambda message: task.run(message.id, message.args, message.kwargs)
    )
    assert enqueued.sent
    assert shop.jobs.result("charge-7") == "receipt of o-7"
    assert shop.enqueue(task, "o-7", key="charge-7").state == "done"


async def test_enqueueing_on_a_loop(shop: Shop) -> None:
    async def charge(order: str) -> dict[str, str]:
        shop.runs.append(order)
        return {"order": order}

    async def send(message: JobMessage) -> None:
        shop.queue.append(message)

    task = shop.jobs.fence(charge, name="acharge")
    assert (await shop.jobs.aenqueue(task, ("o-7",), key="a-7", send=send)).sent
    assert (await shop.jobs.aenqueue(task, ("o-7",), key="a-7", send=send)).sent is False
    message = shop.queue[-1]
    assert await task.arun(message.id, message.args, message.kwargs) == {"order": "o-7"}
    assert (await shop.jobs.aenqueue(task, ("o-7",), key="a-7", send=send)).result == {"order": "o-7"}
    assert await shop.jobs.aresult("a-7") == {"order": "o-7"}
    assert await shop.jobs.astate("a-7") == "done"
    assert shop.runs == ["o-7"]


# Running ----------------------------------------------------------------------------------------------


def test_a_redelivery_of_what_is_done_is_a_replay(shop: Shop) -> None:
    task = shop.task()
    assert [task.run("job-1", ("o-7",), {}) for _ in range(3)] == ["receipt of o-7"] * 3
    assert len(shop.runs) == 1


@pytest.mark.parametrize("value", [None, 0, "", [], False, (1, 2)], ids=repr)
def test_results_come_back_as_they_were(shop: Shop, value: Any) -> None:
    task = shop.task(lambda: value)
    task.run("job-1", ("o-7",), {})
    again = task.run("job-1", ("o-7",), {})
    assert (again, type(again), len(shop.runs)) == (value, type(value), 1)


def test_a_redelivery_meanwhile_is_busy_and_does_not_run(shop: Shop) -> None:
    task: FencedTask
    seen: list[Exception] = []

    def work() -> str:
        with pytest.raises(InProgress) as busy:
            task.run("job-1", ("o-7",), {})
        seen.append(busy.value)
        assert shop.jobs.state("job-1") == "running"
        return "done"

    task = shop.task(work)
    assert task.run("job-1", ("o-7",), {}) == "done"
    assert len(seen) == len(shop.runs) == 1


def test_what_raised_runs_again_when_the_queue_tries_again(shop: Shop) -> None:
    task = shop.task(lambda: fails() if len(shop.runs) < 3 else "at last")
    shop.enqueue(task, "o-7", key="charge-7")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="on fire"):
            shop.work(task)
    assert shop.jobs.state("charge-7") == "failed"
    with pytest.raises(NotDone, match="failed with RuntimeError") as raised:
        shop.jobs.result("charge-7")
    assert raised.value.state == "failed"
    assert shop.work(task) == shop.work(task) == "at last"
    assert len(shop.runs) == 3


def test_enqueueing_what_failed_sends_it_again_at_once(shop: Shop) -> None:
    task = shop.task(fails)
    shop.enqueue(task, "o-7", key="charge-7")
    with pytest.raises(RuntimeError):
        shop.work(task)
    assert shop.enqueue(task, "o-7", key="charge-7").sent
    assert [message.again for message in shop.queue] == [False, True]


def test_a_failure_may_be_the_result(shop: Shop) -> None:
    task = shop.task(fails, policy=JOB.replace(failures="store"))
    shop.enqueue(task, "o-7", key="charge-7")
    with pytest.raises(RuntimeError):
        shop.work(task)
    for ask in (lambda: shop.work(task), lambda: shop.jobs.result("charge-7"), lambda: again(shop, task)):
        with pytest.raises(StoredFailure, match="on fire"):
            ask()
    assert len(shop.runs) == 1


def again(shop: Shop, task: FencedTask) -> Any:
    return shop.enqueue(task, "o-7", key="charge-7")


class Killed(BaseException):
    """Ends a worker in the middle of its work."""


def killed_at_work(shop: Shop, task: FencedTask) -> RunningJob:
    """A worker that claims the last message, begins the job, and dies."""
    message = shop.queue[-1]
    claim = task.build_task(message.id, message.args, message.kwargs).build_claim()
    reply = shop.safe.execute(claim)
    assert reply.granted
    assert reply.record is not None
    return RunningJob(message.id, task.name, reply.record.attempt, reply.record.run)


def lapse(shop: Shop, key: str) -> None:
    """Make the owner's lease lapse."""
    record = shop.safe.execute(Lookup(shop.jobs._record_id(key))).record
    assert record is not None
    number = record.advances + 1
    assert shop.safe.execute(
        Advance(record.id, record.fence, number, record.point, record.progress, record.on_lapse, 0)
    )


def test_after_a_kill_it_runs_again_with_the_same_keys(shop: Shop) -> None:
    task = shop.task(lambda: current_job().key("provider"))
    shop.enqueue(task, "o-7", key="charge-7")
    dead = killed_at_work(shop, task)
    assert shop.jobs.state("charge-7") == "running"
    with pytest.raises(InProgress):
        shop.work(task)
    lapse(shop, "charge-7")
    assert shop.jobs.state("charge-7") == "lost"
    assert shop.work(task) == dead.key("provider")
    assert len(shop.runs) == 1
    assert dead.key("provider") != dead.key("provider", part="2") != dead.key("other")


def test_enqueueing_what_a_dead_worker_held_sends_it_again(shop: Shop) -> None:
    task = shop.task()
    shop.enqueue(task, "o-7", key="charge-7")
    killed_at_work(shop, task)
    assert shop.enqueue(task, "o-7", key="charge-7").state == "running"
    lapse(shop, "charge-7")
    assert shop.enqueue(task, "o-7", key="charge-7").sent
    assert shop.work(task) == "receipt of o-7"


def test_what_is_not_repeatable_is_left_to_a_person(shop: Shop) -> None:
    task = shop.task(repeatable=False)
    shop.enqueue(task, "o-7", key="charge-7")
    killed_at_work(shop, task)
    lapse(shop, "charge-7")
    assert shop.jobs.state("charge-7") == "unknown"
    for ask in (lambda: shop.work(task), lambda: shop.jobs.result("charge-7"), lambda: again(shop, task)):
        with pytest.raises(OutcomeUnknown, match="charge-7"):
            ask()
    assert (len(shop.runs), len(shop.queue)) == (0, 1)


def test_what_is_not_repeatable_may_wait_for_its_first_run(shop: Shop) -> None:
    """Only a run makes the outcome unknown; a sender that died has run nothing."""
    task = shop.task(repeatable=False)
    shop.enqueue(task, "o-7", key="charge-7")
    assert shop.jobs.state("charge-7") == "waiting"
    assert shop.work(task) == "receipt of o-7"


def test_a_result_that_cannot_be_stored_does_not_run_again(shop: Shop) -> None:
    task = shop.task(object)
    with pytest.raises(ResultNotStorable):
        task.run("job-1", ("o-7",), {})
    with pytest.raises(Exception, match="not kept"):
        task.run("job-1", ("o-7",), {})
    assert len(shop.runs) == 1


async def test_colours_meet(shop: Shop) -> None:
    """An async worker runs plain functions in a thread."""
    task = shop.task()
    assert await task.arun("job-1", ("o-7",), {}) == await task.arun("job-1", ("o-7",), {}) == "receipt of o-7"
    assert len(shop.runs) == 1


def test_an_async_function_in_a_plain_worker(shop: Shop) -> None:
    async def charge(order: str) -> str:
        shop.runs.append(current_job().id)
        return order

    task = shop.jobs.fence(charge, name="acharge")
    assert task.run("job-1", ("o-7",), {}) == task.run("job-1", ("o-7",), {}) == "o-7"
    assert shop.runs == ["job-1"]


# In a transaction ---------------------------------------------------------------------------------------


def test_in_a_transaction_the_work_and_its_result_are_one(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    shop = Shop(f"sqlite:///{path}")
    shop.safe.migrate()
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE orders (name)")
    deaths = [Killed(), None]

    def enter(name: str, tx: sqlite3.Connection) -> int:
        tx.execute("INSERT INTO orders VALUES (?)", [name])
        death = deaths.pop(0)
        if death is not None:
            raise death
        return 1

    task = shop.jobs.fence(enter, name="enter", tx=str(path))
    shop.enqueue(task, "o-7", key="enter-7")
    with pytest.raises(Killed):
        shop.work(task)
    assert shop.work(task) == shop.work(task) == 1
    assert shop.jobs.result("enter-7") == 1
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT name FROM orders").fetchall() == [("o-7",)]
    shop.safe.close()


def test_a_job_in_a_transaction_has_no_keys_for_others(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    shop = Shop(f"sqlite:///{path}")

    def enter(tx: sqlite3.Connection) -> str:
        return current_job().key("provider")

    with pytest.raises(UsageError, match="runs in a transaction"):
        shop.jobs.fence(enter, name="enter", tx=str(path)).run("job-1", (), {})
    shop.safe.close()


# Reading and declaring ------------------------------------------------------------------------------------


def test_a_result_is_waited_for(shop: Shop) -> None:
    task = shop.task()
    shop.enqueue(task, "o-7", key="charge-7")
    worker = Thread(target=shop.work, args=(task,))
    worker.start()
    assert shop.jobs.result("charge-7", wait=60.0) == "receipt of o-7"
    worker.join()


def test_there_is_no_result_of_what_nobody_enqueued(shop: Shop) -> None:
    with pytest.raises(NotDone, match="'charge-7' has no result yet: it is absent"):
        shop.jobs.result("charge-7")


def test_perform_enqueues_and_waits(shop: Shop) -> None:
    task = shop.task()

    class Immediate(QueueAdapter):
        def send(self, message: JobMessage) -> None:
            Thread(target=task.run, args=(message.id, message.args, message.kwargs)).start()

    jobs = Immediate(shop.safe)
    jobs.tasks["charge"] = task
    assert jobs.perform(task, ("o-7",), key="charge-7", wait=60.0) == "receipt of o-7"
    assert jobs.perform("charge", ("o-7",), key="charge-7", wait=0.0) == "receipt of o-7"
    assert len(shop.runs) == 1


def test_a_fence_without_a_queue_says_so(shop: Shop) -> None:
    with pytest.raises(UsageError, match="does not know how to send"):
        shop.jobs.enqueue(shop.task(), ("o-7",), key="charge-7")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ignore": ("colour",)}, "no such argument"),
        ({"key": "charge-{colour}"}, "no such argument"),
        ({"tx": "shop.db"}, "no argument named 'tx'"),
        ({"key": "charge"}, "name at least one argument"),
    ],
)
def test_what_cannot_be_declared(shop: Shop, options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        shop.task(**options)


def test_one_name_is_one_task(shop: Shop) -> None:
    shop.task()
    with pytest.raises(UsageError, match="declared already"):
        shop.task()
    with pytest.raises(UsageError, match="is not a task of this QueueAdapter"):
        shop.jobs.enqueue("refund", (), key="x")
    with pytest.raises(UsageError, match="as a tuple"):
        shop.jobs.enqueue("charge", "o-7", key="x")


def test_nothing_is_standing_where_there_is_nothing() -> None:
    assert read_job_state(None, 0) == "absent"
