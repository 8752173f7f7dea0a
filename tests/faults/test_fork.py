"""Processes that were forked, and processes with several event loops: nobody shares a connection with anybody."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pymysql
import pytest
import redis
from pymongo import MongoClient

from retrysafe import RetrySafe
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim
from tests.opening import patient, unique, with_option
from tests.servers.mysql import sessions

STORES = ["sqlite", "postgres", "redis", "mysql", "mongodb"]
each_store = pytest.mark.parametrize("store", [pytest.param(name, marks=pytest.mark.store(name)) for name in STORES])

CHILDREN = 3
KEYS = 40
DEADLINE = 180.0
ROOT = Path(__file__).parents[2]


@pytest.fixture
def mine(store: str, request: pytest.FixtureRequest) -> str:
    """A store of this test's own, whose connections the server knows by this test's own name."""
    url = patient(store, request.getfixturevalue(f"{store}_url"))
    name = unique("fork_")
    if store == "postgres":
        url = with_option(with_option(url, "table", name), "application_name", name)
    elif store == "redis":
        url = with_option(with_option(url, "prefix", name), "client_name", name)
    elif store == "mysql":
        url = with_option(url, "table", name)
    elif store == "mongodb":
        url = with_option(with_option(url, "collection", name), "appname", name)
    opened = open_store(url)
    opened.migrate()
    opened.close()
    return url


def connections(url: str) -> list[int]:
    """The server's own numbers for the connections of this test: backend pids, or client ids."""
    name = url.rpartition("=")[2]
    if url.startswith("redis"):
        client = redis.Redis.from_url(url.partition("?")[0])
        try:
            return [int(each["id"]) for each in client.client_list() if each["name"] == name]
        finally:
            client.close()
    if url.startswith("mysql"):
        return mysql_connections(url)
    if url.startswith("mongodb"):
        return mongodb_connections(url, name)
    with psycopg.connect(url.partition("?")[0], autocommit=True) as admin:
        rows = admin.execute("SELECT pid FROM pg_stat_activity WHERE application_name = %s", [name]).fetchall()
    return [pid for (pid,) in rows]


def mysql_connections(url: str) -> list[int]:
    """Those of this worker's own database that say they come from a client, our own question aside."""
    with pymysql.connect(**parse_url(url).connect) as admin, admin.cursor() as cursor:
        return sorted(sessions(cursor, "db = DATABASE() AND id <> connection_id()"))


def mongodb_connections(url: str, name: str) -> list[int]:
    """Of those that are there, the ones that a client with this test's name opened to work on, not to watch."""
    admin: MongoClient[Any] = MongoClient(url.partition("?")[0])
    with admin:
        there = admin.admin.aggregate([{"$currentOp": {"idleConnections": True, "allUsers": True}}])
        return [
            int(each["connectionId"])
            for each in there
            if each.get("appName") == name and each.get("command", {}).get("hello") is None
        ]


@contextmanager
def running(command: list[str]) -> Iterator[subprocess.Popen[str]]:
    process = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    guard = threading.Timer(DEADLINE, process.kill)
    guard.start()
    try:
        yield process
    finally:
        guard.cancel()
        process.kill()
        process.communicate()


@each_store
def test_forked_after_use(store: str, mine: str) -> None:
    """As gunicorn does with preload: the application, its store in use, is forked into workers."""
    command = [sys.executable, "-W", "error", "-m", "tests.faults.prefork", mine, str(CHILDREN), str(KEYS)]
    with running(command) as process:
        assert process.stdout is not None
        lines = [json.loads(process.stdout.readline() or "{}") for _ in range(CHILDREN + 1)]
        there = [] if store == "sqlite" else connections(mine)
        _, errors = process.communicate("go\n", timeout=DEADLINE)
        assert process.returncode == 0, errors
    assert errors == ""
    assert len({line["pid"] for line in lines}) == CHILDREN + 1
    granted = sorted(key for line in lines for key in line["granted"])
    assert granted == sorted(map(str, range(KEYS))), "each key is granted exactly once, by whichever process"
    assert all(line["heartbeat"] for line in lines), "a heartbeat does not survive a fork: each process starts its own"
    if store != "sqlite":
        assert len(set(there)) >= CHILDREN + 1, "a process without a connection of its own shares another's"


CLOSED_BY_A_CHILD = """
import gc, os, sys
from retrysafe import RetrySafe
from retrysafe.testing.builders import claim
from tests.faults.prefork import leave

def closes():
    safe.close()
    gc.collect()  # nor is it closed as what nobody holds

safe = RetrySafe(sys.argv[1])
for number in range(3):
    assert safe.store.execute(claim(str(number), now=None)).granted
    print("open", flush=True)
    sys.stdin.readline()
    pid = os.fork()
    if pid == 0:
        leave(closes)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
assert not safe.store.execute(claim("0", now=None)).granted
print("open", flush=True)
sys.stdin.readline()
safe.close()
"""


@each_store
def test_a_child_that_closes_leaves_its_parent_s_connections_alone(store: str, mine: str) -> None:
    """A worker that ends at once, as servers end them: its parent goes on on the very connection it had."""
    command = [sys.executable, "-W", "error", "-c", CLOSED_BY_A_CHILD, mine]
    seen: list[list[int]] = []
    with running(command) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for _ in range(4):
            assert process.stdout.readline() == "open\n"
            seen.append([] if store == "sqlite" else sorted(connections(mine)))
            process.stdin.write("go\n")
            process.stdin.flush()
        _, errors = process.communicate(timeout=DEADLINE)
        assert (process.returncode, errors) == (0, "")
    assert store == "sqlite" or seen[0]
    assert all(set(seen[0]) <= set(later) for later in seen), "the first connections are there to the end"


# Event loops --------------------------------------------------------------------------------------


class Counted:
    """An async function under `once`, called from whichever loop."""

    def __init__(self, url: str) -> None:
        self.safe = RetrySafe(url)
        self.effects: list[str] = []

        @self.safe.once("loop:{key}", scope="loops")
        async def charge(key: str) -> str:
            await asyncio.sleep(0)
            self.effects.append(key)
            return key

        self.charge: Any = charge

    async def work(self, keys: list[str]) -> list[str]:
        try:
            return list(await asyncio.gather(*(self.charge(key) for key in keys)))
        finally:
            await self.safe.aclose()


@each_store
def test_one_loop_after_the_other(mine: str) -> None:
    counted = Counted(mine)
    keys = [unique() for _ in range(5)]
    assert asyncio.run(counted.work(keys)) == keys
    assert asyncio.run(counted.work(keys)) == keys
    assert sorted(counted.effects) == sorted(keys)


@each_store
def test_loops_side_by_side(mine: str) -> None:
    """Two threads with a loop each, on one RetrySafe, for the same keys."""
    counted = Counted(mine)
    keys = [unique() for _ in range(10)]
    together = threading.Barrier(2)

    def run() -> list[str]:
        together.wait(DEADLINE)
        return asyncio.run(counted.work(keys))

    with ThreadPoolExecutor(2) as threads:
        results = [future.result(DEADLINE) for future in [threads.submit(run) for _ in range(2)]]
    assert results == [keys, keys]
    assert sorted(counted.effects) == sorted(keys)


@each_store
def test_sync_and_async_on_one_object(mine: str) -> None:
    counted = Counted(mine)
    key = unique()
    assert asyncio.run(counted.work([key])) == [key]
    held = counted.safe.store.execute(claim(unique(), now=None))
    assert held.granted is True
    assert asyncio.run(counted.work([key])) == [key]
    assert counted.effects == [key]
    counted.safe.close()


FORGETFUL = """
import asyncio, gc, logging, sys
from tests.faults.test_fork import Counted

logging.disable()
counted = Counted(sys.argv[1])
burst = int(sys.argv[2])

async def once(number):
    return await asyncio.gather(*(counted.charge(f"{number}-{each}") for each in range(burst)))

for number in range(5):
    for _ in range(2):
        assert len(asyncio.run(once(number))) == burst
gc.collect()
assert len(counted.effects) == 5 * burst
"""


@each_store
@pytest.mark.parametrize("burst", [1, 8])
def test_a_loop_that_ends_without_closing(mine: str, burst: int) -> None:
    """A script may call `asyncio.run` again and again and never close anything: each loop opens its own, and ends.

    With a burst, connections are still being made when the loop ends.
    """
    command = [sys.executable, "-c", FORGETFUL, mine, str(burst)]
    ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=DEADLINE, check=False)
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")
