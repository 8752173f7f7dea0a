"""The worker while it runs: services side by side, woken by notifications, in threads and on the application's loop."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.jobs import Job, ListJobs, Stage
from retrysafe.operations import stage
from retrysafe.worker import Worker
from retrysafe.worker.health import read_health
from retrysafe.worker.status import TickResult
from tests.opening import unique, with_option

PATIENCE = 30.0


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[RetrySafe]:
    path = tmp_path / "app.db"
    with RetrySafe(f"sqlite:///{path}", tx=str(path)) as made:
        made.migrate()
        yield made


def job(number: int, topic: str) -> Job:
    return Job(f"{number:032x}", topic, b"{}")


class Running:
    """A worker in a thread, until the block is left."""

    def __init__(self, safe: RetrySafe, **options: Any) -> None:
        self.worker = Worker(safe, **{"tick": 600.0, **options})
        self.reports: list[TickResult] = []
        self.reported = threading.Event()
        self._thread = threading.Thread(target=self.worker.run, args=[self._report])

    def _report(self, done: TickResult) -> None:
        self.reports.append(done)
        self.reported.set()

    def __enter__(self) -> Running:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self.worker.stop()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()


def test_one_slow_publisher_stops_nobody_else_and_is_shown_as_busy(safe: RetrySafe) -> None:
    hanging, go_on, sent = threading.Event(), threading.Event(), threading.Event()

    def hangs(given: Job) -> None:
        hanging.set()
        assert go_on.wait(PATIENCE)

    operation = safe.operation("greet", policy=Policy(failures="release", start="worker"))
    ran = threading.Event()

    @operation.body
    def greet() -> Answer:
        ran.set()
        return Answer(200)

    safe.publish("slow")(hangs)
    safe.publish("quick")(lambda given: sent.set())
    safe.execute(Stage((job(1, "slow"), job(2, "quick")), namespace="default"))
    with Running(safe) as running:
        assert hanging.wait(PATIENCE)
        assert sent.wait(PATIENCE)
        operation(key="k")
        assert ran.wait(PATIENCE), "an operation submitted meanwhile does not wait for it either"
        told = read_health(running.worker, 0.0)[1]
        assert "enqueuer slow" in told["busy"]
        go_on.set()
    assert safe.execute(ListJobs()) == ()


def test_a_job_is_published_when_its_step_commits_not_at_the_next_tick(safe: RetrySafe) -> None:
    published = threading.Event()
    safe.publish("receipt")(lambda given: published.set())
    operation = safe.operation("order")

    @operation.local
    def enter(tx: sqlite3.Connection) -> None:
        stage(tx, "receipt", {})

    @operation.body
    def place() -> Answer:
        enter()
        return Answer(201)

    with Running(safe) as running:
        assert running.reported.wait(PATIENCE), "the first round is over, the next is ten minutes away"
        operation(key="k")
        assert published.wait(PATIENCE)


def test_what_failed_is_tried_again_when_it_is_due_not_at_the_next_tick(safe: RetrySafe) -> None:
    tries: list[int] = []
    done = threading.Event()

    def second_time(given: Job) -> None:
        tries.append(1)
        if len(tries) == 1:
            raise ValueError("not yet")
        done.set()

    safe.publish("t")(second_time)
    safe.execute(Stage((job(1, "t"),), namespace="default"))
    with Running(safe):
        assert done.wait(PATIENCE), "after two seconds, with a tick of ten minutes"


def test_a_service_that_fails_is_shown_and_the_others_go_on(safe: RetrySafe) -> None:
    running = Running(safe)

    def broken(stopping: Any) -> Any:
        raise RuntimeError("no such luck")
        yield

    duty = running.worker.services[1]
    running.worker.services[1] = type(duty)(duty.name, broken)
    with running:
        assert running.reported.wait(PATIENCE)
        assert isinstance(running.reports[0].counts["sweeper"], RuntimeError)
        assert not isinstance(running.reports[0].counts["completer"], Exception)
        status, told = read_health(running.worker, 0.0)
        assert (status, told["failing"]) == (503, ["sweeper"])


@pytest.mark.store("postgres")
def test_a_worker_elsewhere_is_told_by_the_store(postgres_url: str) -> None:
    url = with_option(postgres_url, "table", unique())
    with RetrySafe(url) as here, RetrySafe(url) as elsewhere:
        here.migrate()
        ran = threading.Event()
        operations = [
            each.operation("greet", policy=Policy(failures="release", start="worker")) for each in (here, elsewhere)
        ]

        for operation in operations:

            @operation.body
            def greet() -> Answer:
                ran.set()
                return Answer(200)

        with Running(elsewhere) as running:
            assert running.reported.wait(PATIENCE)
            listener = elsewhere.store
            while not listening(listener):
                threading.Event().wait(0.01)
            operations[0](key="k")
            assert ran.wait(PATIENCE), "by NOTIFY: its next tick is ten minutes away"


def listening(store: Any) -> bool:
    """Whether the store's listener has its connection."""
    inner = store
    while inner is not None:
        found = getattr(inner, "_listener", None)
        if found is not None:
            return bool(found.up.is_set())
        inner = getattr(inner, "_store", None) or (inner._current().store if hasattr(inner, "_current") else None)
    return False


# On the application's loop -----------------------------------------------------------------------


@pytest.mark.store("postgres")
async def test_on_the_applications_loop_its_own_pool_is_used(postgres_url: str) -> None:
    """A pool belongs to the loop it was made on: on the worker's own loop every attempt failed, until it was a dead
    letter."""
    url = with_option(postgres_url, "table", unique())
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=4) as pool, RetrySafe(url, tx=pool) as safe:
        safe.migrate()
        loops: list[Any] = []
        published = asyncio.Event()
        order = safe.operation("order", policy=Policy(failures="release", start="worker"))

        @order.local
        async def enter(tx: Any, number: int) -> None:
            await tx.execute("SELECT 1")
            loops.append(asyncio.get_running_loop())
            await stage(tx, "receipt", {"number": number})

        @order.body
        async def place(number: int) -> Answer:
            await enter(number)
            return Answer(201)

        @safe.publish("receipt")
        async def send(given: Job) -> None:
            loops.append(asyncio.get_running_loop())
            published.set()

        worker = Worker(safe, tick=600.0)
        running = asyncio.create_task(worker.arun())
        await order(1, key="k")
        async with asyncio.timeout(PATIENCE):
            await published.wait()
        worker.stop()
        async with asyncio.timeout(PATIENCE):
            await running
        assert loops == [asyncio.get_running_loop()] * 2
        assert (await order(1, key="k")).status == 201
        await safe.aclose()


async def test_a_plain_function_does_not_hold_up_the_loop_and_cancelling_stops_it(tmp_path: Path) -> None:
    async with RetrySafe(f"sqlite:///{tmp_path / 'app.db'}") as safe:
        safe.migrate()
        go_on, began = threading.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()

        def plain(given: Job) -> None:
            loop.call_soon_threadsafe(began.set)
            assert go_on.wait(PATIENCE)

        safe.publish("t")(plain)
        await safe.aexecute(Stage((job(1, "t"),), namespace="default"))
        worker = Worker(safe, tick=600.0)
        running = asyncio.create_task(worker.arun())
        async with asyncio.timeout(PATIENCE):
            await began.wait()  # the loop runs on while the function waits
        running.cancel()
        go_on.set()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert await safe.aexecute(ListJobs()) == (), "what was being delivered was ended first"
