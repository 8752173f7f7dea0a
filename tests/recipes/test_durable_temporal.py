"""Temporal with a real server; workers and the web process killed with SIGKILL between an effect and its record."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
import pytest
from examples.recipes.durable_temporal import QUEUE, Careless, Job
from examples.recipes.warehouse import OrderIn
from temporalio.client import Client

from tests.conftest import in_ci
from tests.recipes.durable_world import Program, ProviderDouble, WebProgram, provider_double
from tests.recipes.run_temporal import LEASE, SILENCE
from tests.servers.base import ServerUnavailable
from tests.servers.temporal import TemporalServer

MODULE = "tests.recipes.run_temporal"
LONG = 600.0


@pytest.fixture(scope="module")
def temporal() -> Iterator[str]:
    try:
        server = TemporalServer().start()
    except ServerUnavailable as error:
        if in_ci():
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield server.url
    server.stop()


class World:
    """A database, a web process, and workers to be killed."""

    def __init__(self, temporal: str, provider: ProviderDouble, folder: Path) -> None:
        self.temporal, self.provider, self.folder = temporal, provider, folder
        self.path = folder / "app.db"
        self.store = f"sqlite:///{self.path}"
        self.begun: list[Program] = []

    def worker(self, dies: str = "never", lease: float = LEASE) -> Program:
        where = (self.temporal, self.store, self.provider.url)
        self.begun.append(Program(self.folder, MODULE, "worker", *where, dies, str(lease)))
        return self.begun[-1]

    def web(self, lease: float = LEASE, silence: float = SILENCE) -> WebProgram:
        program = WebProgram(self.folder, MODULE, "web", self.temporal, self.store, str(lease), str(silence))
        self.begun.append(program)
        return program.ready()

    def entries(self, account: str) -> int:
        with closing(sqlite3.connect(self.path, timeout=30)) as db:
            counted: tuple[int] = db.execute("SELECT count(*) FROM ledger WHERE account = ?", (account,)).fetchone()
            return counted[0]

    def effects(self, account: str) -> tuple[int, int, int]:
        return self.provider.charged(account), self.entries(account), self.provider.labelled(account)


@pytest.fixture
def world(temporal: str, tmp_path: Path) -> Iterator[World]:
    with provider_double() as provider:
        made = World(temporal, provider, tmp_path)
        yield made
        for program in made.begun:
            program.stop()


@pytest.fixture
def account() -> str:
    """The server is shared by the tests of this file, so an account's workflows are found again by the next."""
    return f"acct-{uuid4().hex[:8]}"


def test_one_key_starts_one_workflow(world: World, account: str) -> None:
    web = world.web(LONG, LONG)  # nobody dies, and whoever is held up for a while keeps what it has
    world.worker(lease=LONG)
    web.post("/orders", account + "-first", 5, idempotency_key="k")  # the worker is there: nobody below waits for that
    with ThreadPoolExecutor(4) as pool:
        told = list(pool.map(lambda _: web.post("/orders", account, 5, idempotency_key="k"), range(4)))
    assert [answer.status_code for answer in told] == [201] * 4, told[0].text
    assert len({answer.content for answer in told}) == 1
    assert sorted(answer.headers.get("idempotent-replayed", "no") for answer in told) == ["no", "true", "true", "true"]
    assert world.effects(account) == (1, 1, 1)
    assert web.post("/orders", account, 6, idempotency_key="k").status_code == 422, "the key belongs to another order"
    assert web.post("/orders", account + "b", 5, idempotency_key="k").status_code == 201
    assert (world.effects(account), world.effects(account + "b")) == ((1, 1, 1), (1, 1, 1))


def test_workers_killed_between_an_effect_and_its_record(world: World, account: str) -> None:
    web = world.web()
    first = world.worker()
    world.provider.deadly["/charges"] = first.kill
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(web.post, "/orders", account, 5, idempotency_key="k")
        first.was_killed()
        world.worker("enter").was_killed()  # it takes the charge's second attempt, and dies after the ledger's commit
        world.worker()
        answer = asked.result()
    assert answer.status_code == 201, answer.text
    assert answer.json() == {"charge": "ch_0", "entered": 5, "label": "label_1"}
    assert world.effects(account) == (1, 1, 1)
    assert world.provider.requests["/charges"] >= 2, "Temporal did run the cut-off activity again"


def test_the_web_process_killed_while_it_waits(world: World, account: str) -> None:
    first = world.web()
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(first.post, "/orders", account, 5, idempotency_key="k")
        world.provider.deadly["/charges"] = first.kill  # this time the worker lives, and only has to ask again
        world.worker()
        first.was_killed()
        assert isinstance(asked.exception(), httpx.TransportError)

    second = world.web()
    answer = second.post("/orders", account, 5, idempotency_key="k")
    assert answer.status_code == 201, answer.text
    assert world.effects(account) == (1, 1, 1)
    assert second.post("/orders", account, 5, idempotency_key="k").content == answer.content


def test_a_printer_without_keys_prints_once_and_a_person_is_asked(world: World, account: str) -> None:
    web = world.web()
    first = world.worker()
    world.provider.deadly["/labels"] = first.kill
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(web.post, "/orders", account, 5, idempotency_key="k")
        first.was_killed()
        world.worker()
        answer = asked.result()
    assert (answer.status_code, answer.json()["detail"]["state"]) == (500, "a person has to look")
    again = web.post("/orders", account, 5, idempotency_key="k")
    assert (again.status_code, again.json()) == (500, answer.json()), "the same failed workflow, and no other"
    assert world.effects(account) == (1, 1, 1), "never a second label"


def test_what_temporal_does_by_itself(world: World, account: str) -> None:
    """One *open* run for an id, and activities at least once. An id whose run has ended may be used again."""
    job = Job(OrderIn(account, 5), SILENCE)

    async def place() -> Any:
        client = await Client.connect(world.temporal)
        return await client.execute_workflow(Careless.run, job, id=account, task_queue=QUEUE)

    first = world.worker()
    world.provider.deadly["/labels"] = first.kill
    with ThreadPoolExecutor(1) as pool:
        asked = pool.submit(asyncio.run, place())
        first.was_killed()
        world.worker()
        asked.result()
    printed = world.provider.labelled(account)
    assert printed >= 2, "the activity was run again, and so was its effect"
    asyncio.run(place())
    assert world.provider.labelled(account) > printed, "its run had ended: the id was free for another"
