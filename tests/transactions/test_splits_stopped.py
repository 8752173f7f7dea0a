"""A body that commits by hand and does not come to its end: it is interrupted, its process dies, or a second caller
comes before its end. The outcome is unknown from that commit on, and nothing runs again."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import psycopg
import pytest

from retrysafe.core.ops import List, Lookup, Release
from retrysafe.core.states import State
from retrysafe.errors import InProgress, OutcomeUnknown, RolledBack, TransactionSplit
from tests.transactions.conftest import marks
from tests.transactions.rigs import (
    COMMIT,
    DEADLOCK,
    MYSQL_DEADLOCK,
    RELEASE,
    RIGS,
    ROLLBACK,
    SCOPE,
    AsyncCaller,
    Caller,
    World,
    task,
)
from tests.transactions.test_splits_lost import Killer

Open = Callable[[], Caller]
each_adapter = pytest.mark.parametrize("rig", [pytest.param(name, marks=marks(name)) for name in RIGS], indirect=True)


def state_of(world: World) -> State | None:
    record = world.safe.execute(Lookup(task(world.safe, "k", 1, RELEASE).key.id("default"))).record
    return None if record is None else record.state


def in_thread(work: Callable[[], object]) -> Callable[[], None]:
    """The work as a step of a body. It runs in a thread of its own, because an event loop may be running here."""

    def step() -> None:
        raised: list[BaseException] = []

        def run() -> None:
            try:
                work()
            except BaseException as error:
                raised.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
        assert not thread.is_alive()
        if raised:
            raise raised[0]

    return step


@each_adapter
def test_a_second_caller_does_not_run_beside_a_body_that_has_committed(world: World, caller: Open) -> None:
    """Its lock is gone on PostgreSQL and SQLite; what it committed says that the outcome is unknown."""
    first, second = caller(), caller()
    met: list[BaseException] = []

    def meet() -> None:
        with pytest.raises((OutcomeUnknown, InProgress, TransactionSplit)) as caught:
            second.run("k", ["z"])
        met.append(caught.value)

    with pytest.raises(TransactionSplit):
        first.run("k", ["a", COMMIT, in_thread(meet)])
    assert len(met) == 1
    assert (world.effects(), state_of(world)) == (["a"], State.UNCERTAIN)


def interrupt(caller: Caller, error: type[BaseException]) -> Callable[[], Any]:
    if error is not asyncio.CancelledError or not isinstance(caller, AsyncCaller):

        def stop() -> None:
            raise error

        return stop

    async def cancel() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.sleep(0)

    return cancel


@each_adapter
@pytest.mark.parametrize("form", ["run", "block"])
def test_a_body_that_is_interrupted_after_a_commit_is_not_run_again(world: World, caller: Open, form: str) -> None:
    user = caller()
    error = asyncio.CancelledError if isinstance(user, AsyncCaller) else KeyboardInterrupt
    with pytest.raises(error):
        getattr(user, form)("k", ["a", COMMIT, interrupt(user, error)])
    assert (world.effects(), state_of(world)) == (["a"], State.UNCERTAIN)
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            getattr(caller(), form)("k", ["b"])
    assert world.effects() == ["a"]


@each_adapter
def test_a_body_that_is_interrupted_without_a_commit_leaves_nothing(world: World, caller: Open) -> None:
    user = caller()
    error = asyncio.CancelledError if isinstance(user, AsyncCaller) else SystemExit
    with pytest.raises(error):
        user.run("k", ["a", interrupt(user, error)])
    assert (world.effects(), state_of(world)) == ([], None)
    assert caller().run("k", ["b"]).replayed is False
    assert world.effects() == ["b"]


@pytest.mark.parametrize(
    "server", [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres")]
)
@pytest.mark.parametrize("known", [False, True], ids=["new", "released"])
def test_a_process_that_dies_after_a_commit_by_hand(request: pytest.FixtureRequest, server: str, known: bool) -> None:
    """The record that was written first is there, also where it took the place of an older one."""
    world: World = request.getfixturevalue(server)
    if known:
        record = world.safe.execute(replace(task(world.safe, "k", 1, RELEASE).build_claim(), on_lapse="rerun")).record
        assert record is not None
        assert world.safe.execute(Release(record.id, record.fence, "nothing was done"))
    connection: Any = sqlite3.connect(world.path) if server == "sqlite" else psycopg.connect(world.plain)
    block = world.safe.transaction(connection, key="k", scope=SCOPE, request=1, policy=RELEASE)
    claim = task(world.safe, "k", 1, RELEASE)
    block._task = claim
    handle = block.__enter__().handle
    handle.execute("INSERT INTO effects (value) VALUES ('a')")
    handle.execute("COMMIT")
    connection.close()  # as if the process were gone; the block is never left
    block._staging.close()
    with RIGS[f"{server}-{'sqlite3' if server == 'sqlite' else 'psycopg'}"](world) as other:
        for _ in range(2):
            with pytest.raises(OutcomeUnknown):
                other.run("k", ["b"])
        assert (world.effects(), [each.id for each in list_lapsed(world)]) == (["a"], [claim.key.id("default")])
        world.safe.resolve(claim.key, happened=False, because="looked, and deleted the row")
        assert other.run("k", ["b"]).replayed is False


def list_lapsed(world: World) -> list[Any]:
    """What the sweeper would show to a person."""
    return list(world.safe.execute(List(lapsed=True)).records)


# A rollback by hand, and a commit after it ---------------------------------------------------------------------------

DEADLOCKS = {"postgres": DEADLOCK, "mysql": MYSQL_DEADLOCK, "mariadb": MYSQL_DEADLOCK}
each_server = pytest.mark.parametrize(
    "rig",
    [pytest.param(name, marks=marks(name)) for name in RIGS if name.partition("-")[0] in DEADLOCKS],
    indirect=True,
)


def choose_commit(rig: str) -> list[str]:
    """How the second transaction is committed. Connections in autocommit mode commit each statement by themselves."""
    return [] if rig in ("postgres-psycopg-autocommit", "postgres-asyncpg", "postgres-asyncpg-pool") else [COMMIT]


@each_server
@pytest.mark.parametrize("then", ["deadlock", "lost"])
def test_a_rollback_by_hand_and_a_commit_before_the_end(world: World, caller: Open, rig: str, then: str) -> None:
    """Our transaction was rolled back, the next one was committed, and nothing in the database tells it: the body does
    not run again all the same."""
    ran: list[str] = []
    killer = Killer(world)
    last: list[Any] = [DEADLOCKS[rig.partition("-")[0]]] if then == "deadlock" else [killer.kill, "lost"]
    user = caller()
    steps = [lambda: ran.append("begun"), killer.find, ROLLBACK, "kept", *choose_commit(rig), "open", *last]
    with pytest.raises(TransactionSplit):
        user.run("k", steps)
    assert (ran, state_of(world)) == (["begun"], State.UNCERTAIN)
    assert "kept" in world.effects()
    with pytest.raises(OutcomeUnknown):
        caller().run("k", ["c"])


@each_server
def test_a_rollback_by_hand_before_a_deadlock_and_nothing_after_it(world: World, caller: Open, rig: str) -> None:
    """Nothing was kept, so it is a failure like any other."""
    with pytest.raises(RolledBack):
        caller().block("k", ["a", ROLLBACK, DEADLOCKS[rig.partition("-")[0]]])
    assert (world.effects(), state_of(world)) == ([], None)
    assert caller().run("k", ["a"]).replayed is False
