"""SIGKILL between any two statements of a request: all or nothing was done, and the retry succeeds."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from retrysafe.core.keys import Key
from retrysafe.core.ops import Lookup
from tests.forks import FORKS
from tests.transactions.conftest import postgres_world, sqlite_world
from tests.transactions.lost import wait_for_the_dead
from tests.transactions.rigs import World
from tests.web.transactions.crashing import CALLS, PAID, pay, retry

STORES = {"sqlite": sqlite_world, "postgres": postgres_world}


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.store(name)) for name in STORES])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    made = STORES[request.param](request, tmp_path)
    yield made
    made.safe.close()


def points(world: World, name: str, conflicts: int = 0) -> int:
    ours, theirs = FORKS.Pipe()
    child = FORKS.Process(target=pay, args=(world.url, name, 0, theirs, conflicts))
    child.start()
    child.join(60)
    assert child.exitcode == 0
    return int(ours.recv())


def killed(world: World, name: str, at: int, conflicts: int = 0) -> None:
    victim = FORKS.Process(target=pay, args=(world.url, name, at, None, conflicts))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    victim.close()


def emptied(world: World) -> None:
    import sqlite3

    sqlite = world.url.startswith("sqlite")
    keys = "retrysafe_keys" if sqlite else f"{world.url.rpartition('table=')[2]}_keys"
    other = sqlite3.connect(world.path) if sqlite else psycopg.connect(world.plain)
    for table in ("effects", keys):
        other.execute(f"DELETE FROM {table}")
    other.commit()
    other.close()


def is_whole_or_nothing(world: World, name: str, at: int, conflicts: int = 0) -> bool:
    """After a kill at that point and a retry, it was done once. Returns whether it was done before the kill."""
    killed(world, name, at, conflicts)
    wait_for_the_dead(world)  # otherwise the retry meets its lock and gets "in progress"
    stored = world.safe.execute(Lookup(Key("k", "alice").id("default"))).record
    assert (stored is not None) == (world.effects() == ["a"]), f"half done at point {at}"
    retried = retry(world.url, name)
    assert (retried.status_code, retried.content) == (201, PAID)
    assert ("idempotent-replayed" in retried.headers) == (stored is not None)
    assert world.effects() == ["a"]
    emptied(world)
    return stored is not None


@pytest.mark.parametrize("name", list(CALLS))
def test_killed_anywhere_it_happened_whole_or_not_at_all(world: World, name: str) -> None:
    last = points(world, name)
    assert last >= 10
    emptied(world)
    done = sum(is_whole_or_nothing(world, name, at) for at in range(1, last + 1))
    assert 1 <= done < last, "some died after the commit, some before"


@pytest.mark.store("sqlite")
@pytest.mark.parametrize("world", ["sqlite"], indirect=True)
def test_killed_anywhere_in_a_run_that_follows_a_conflict(world: World) -> None:
    once = points(world, "flask")
    emptied(world)
    last = points(world, "flask", conflicts=1)
    emptied(world)
    assert last > once
    done = sum(is_whole_or_nothing(world, "flask", at, conflicts=1) for at in range(last - once + 1, last + 1))
    assert 1 <= done < once, "some died after the commit, some before"
