"""What only PostgreSQL can show: conflicts between transactions, commits counted at the server, a cut at the commit."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import psycopg
import psycopg_pool
import pytest

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.engine.guard import Task
from retrysafe.errors import NotSameDatabase, RolledBack, SchemaMissing, StoreError, StoreUnclear
from retrysafe.transactions import flow, run
from tests.faults.proxy import PostgresProxy
from tests.opening import unique, with_option
from tests.servers import PostgresServer
from tests.servers.postgres import temporary_database
from tests.transactions.conftest import EFFECTS
from tests.transactions.lost import LOOKS, wait_for_the_dead
from tests.transactions.rigs import SCOPE, World, on_psycopg_pool, task
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

RELEASE = Policy(failures="release")
ANSWER = Answer(201, {"ok": True})


@pytest.fixture
def pool(postgres: World) -> Iterator[Any]:
    with psycopg_pool.ConnectionPool(postgres.plain, min_size=1, max_size=4, open=True) as opened:
        yield opened


def write(connection: Any, value: str) -> None:
    connection.execute("INSERT INTO effects (value) VALUES (%s)", [value])


# Conflicts ----------------------------------------------------------------------------------------


def serializable(connection: psycopg.Connection[Any]) -> None:
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE


@pytest.fixture
def strict_pool(postgres: World) -> Iterator[Any]:
    with psycopg_pool.ConnectionPool(
        postgres.plain, min_size=1, max_size=4, open=True, configure=serializable
    ) as opened:
        yield opened


def collide(postgres: World) -> None:
    """Write what the open transaction has read, and read what it is going to write: one of the two must go."""
    with psycopg.connect(postgres.plain) as other:
        serializable(other)
        other.execute("SELECT count(*) FROM effects").fetchone()
        write(other, "rival")


def test_a_serialization_failure_runs_the_body_again(postgres: World, strict_pool: Any) -> None:
    tries: list[int] = []

    def body(tx: Any) -> Answer:
        count = tx.execute("SELECT count(*) FROM effects").fetchone()[0]
        tries.append(count)
        if len(tries) == 1:
            collide(postgres)
        write(tx, f"after-{count}")
        return ANSWER

    ended = run(postgres.safe, task(postgres.safe, "k", 1, RELEASE), strict_pool, body)
    assert not ended.replayed
    assert tries == [0, 1], "the second run saw what the first could not"
    assert postgres.effects() == ["after-1", "rival"]


def test_a_block_cannot_run_again_and_says_so(postgres: World, strict_pool: Any) -> None:
    def block() -> None:
        with postgres.safe.transaction(strict_pool, key="k", scope=SCOPE) as tx:
            tx.handle.execute("SELECT count(*) FROM effects").fetchone()
            collide(postgres)
            write(tx.handle, "mine")
            tx.answer = ANSWER

    with pytest.raises(RolledBack) as caught:
        block()
    assert caught.value.retryable
    assert postgres.effects() == ["rival"]


def test_reruns_are_bounded(postgres: World, strict_pool: Any) -> None:
    tries: list[int] = []

    def body(tx: Any) -> Answer:
        tries.append(1)
        raise psycopg.errors.SerializationFailure("again and again")

    with pytest.raises(RolledBack):
        run(postgres.safe, task(postgres.safe, "k", 1, RELEASE), strict_pool, body)
    assert len(tries) == 9


def test_a_deadlock_runs_the_body_again(postgres: World, pool: Any) -> None:
    with psycopg.connect(postgres.plain, autocommit=True) as admin:
        admin.execute("INSERT INTO effects VALUES ('x'), ('y')")
    first_inside, second_inside = threading.Event(), threading.Event()
    tries: list[str] = []

    def touch(tx: Any, value: str) -> None:
        tx.execute("UPDATE effects SET value = value WHERE value = %s", [value])

    def cross(name: str, mine: str, other: str, inside: threading.Event, wait_for: threading.Event) -> None:
        def body(tx: Any) -> Answer:
            tries.append(name)
            touch(tx, mine)
            inside.set()
            wait_for.wait(60)
            touch(tx, other)
            return ANSWER

        run(postgres.safe, task(postgres.safe, name, 1, RELEASE), pool, body)

    rival = threading.Thread(target=cross, args=("b", "y", "x", second_inside, first_inside))
    rival.start()
    cross("a", "x", "y", first_inside, second_inside)
    rival.join(60)
    assert sorted(set(tries)) == ["a", "b"]
    assert len(tries) >= 3, "one of the two was undone, and ran again"
    for key in ("a", "b"):
        assert run(postgres.safe, task(postgres.safe, key, 1, RELEASE), pool, lambda tx: ANSWER).replayed


def test_a_deferred_constraint_that_fails_at_the_commit_leaves_nothing(postgres: World, pool: Any) -> None:
    table = unique("later")
    with psycopg.connect(postgres.plain, autocommit=True) as admin:
        admin.execute(
            f"CREATE TABLE {table} (of text REFERENCES effects (value) DEFERRABLE INITIALLY DEFERRED)"  # type: ignore[arg-type]
        )

    def body(tx: Any) -> Answer:
        tx.execute(f"INSERT INTO {table} VALUES ('nobody')")
        return ANSWER

    this = task(postgres.safe, "k", 1, RELEASE)
    with pytest.raises(psycopg.errors.ForeignKeyViolation):
        run(postgres.safe, this, pool, body)
    assert postgres.query(f"SELECT * FROM {table}") == []
    assert postgres.safe.execute(Lookup(this.key.id("default"))).record is None
    with psycopg.connect(postgres.plain, autocommit=True) as admin:
        admin.execute(f"DROP TABLE {table}")  # type: ignore[arg-type]


def test_an_error_that_was_passed_over_is_met_at_the_receipt(postgres: World, pool: Any) -> None:
    def body(tx: Any) -> Answer:
        write(tx, "a")
        with pytest.raises(psycopg.errors.UndefinedTable):
            tx.execute("SELECT * FROM nowhere")
        return ANSWER

    with pytest.raises(StoreError, match="savepoint"):
        run(postgres.safe, task(postgres.safe, "k", 1, RELEASE), pool, body)
    assert postgres.effects() == []


# Costs --------------------------------------------------------------------------------------------


@pytest.fixture
def alone() -> Iterator[World]:
    """A server of its own: its transaction counter counts only our transactions."""
    server = PostgresServer(autovacuum="off")
    server.start()
    safe = RetrySafe(server.url)
    safe.migrate()
    with psycopg.connect(server.url, autocommit=True) as admin:
        admin.execute(EFFECTS)
    yield World(server.url, safe)
    safe.close()
    server.stop()


def test_one_commit_in_all_counted_at_the_server(alone: World) -> None:
    with on_psycopg_pool(alone) as user, psycopg.connect(alone.plain, autocommit=True) as admin:
        user.run("warm", ["w"])
        statements = logged(admin, lambda: user.run("k", ["a"]))
    assert statements == {"commits": 1}


def logged(admin: psycopg.Connection[Any], work: Any) -> dict[str, int]:
    """Commits that wrote something: the transaction counter moves by one for each."""
    before = admin.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()
    work()
    after = admin.execute("SELECT pg_snapshot_xmax(pg_current_snapshot())").fetchone()
    assert before is not None
    assert after is not None
    return {"commits": int(after[0]) - int(before[0])}


def test_a_replay_uses_no_transaction_number(alone: World) -> None:
    with on_psycopg_pool(alone) as user, psycopg.connect(alone.plain, autocommit=True) as admin:
        user.run("k", ["a"])
        assert logged(admin, lambda: user.run("k", ["a"])) == {"commits": 0}


def test_a_transaction_held_open_does_not_delay_other_keys(postgres: World, pool: Any) -> None:
    with postgres.safe.transaction(pool, key="slow", scope=SCOPE) as slow:
        write(slow.handle, "slow")
        with postgres.safe.transaction(pool, key="fast", scope=SCOPE) as fast:
            write(fast.handle, "fast")
            fast.answer = ANSWER
        assert postgres.safe.execute(task(postgres.safe, "guarded", 1, RELEASE).build_claim()).granted
        assert postgres.effects() == ["fast"]
        slow.answer = ANSWER
    assert postgres.effects() == ["fast", "slow"]


# The commit, cut ----------------------------------------------------------------------------------


@pytest.fixture
def proxy(postgres: World) -> Iterator[PostgresProxy]:
    opened = PostgresProxy(postgres.plain)
    yield opened
    opened.close()


def messages_of_one_transaction(postgres: World, proxy: PostgresProxy, given: Any) -> int:
    """From the startup's answer to the client's goodbye, which reaches the proxy after `run` has returned."""

    def body(tx: Any) -> Answer:
        write(tx, "count")
        return ANSWER

    proxy.count()
    run(postgres.safe, task(postgres.safe, "count", 1, RELEASE), given, body)
    until(lambda: ">X" in proxy.seen, 60, "the client's goodbye")
    return len(proxy.seen)


@pytest.mark.parametrize("side", ["before", "after", "swallow"])
def test_the_connection_is_cut_at_every_message(postgres: World, proxy: PostgresProxy, side: Any) -> None:
    """Whatever message is lost, the effect and the receipt are both there or both not, and a retry settles it."""
    url = proxy.url
    connect = lambda: psycopg.connect(url, autocommit=True)  # noqa: E731
    last = messages_of_one_transaction(postgres, proxy, connect)
    outcomes: dict[str, int] = {}
    for number in range(1, last + 3):
        key = f"{side}-{number}"

        def body(tx: Any, key: str = key) -> Answer:
            write(tx, key)
            return ANSWER

        this = task(postgres.safe, key, 1, RELEASE)
        proxy.cut_at(number, side)
        try:
            outcome = "done" if not run(postgres.safe, this, connect, body).replayed else "replayed"
        except Exception as error:
            outcome = type(error).__name__
        outcomes[outcome] = outcomes.get(outcome, 0) + 1
        wait_for_the_dead(postgres)  # what was on its way has arrived, or never will
        record = postgres.safe.execute(Lookup(this.key.id("default"))).record
        assert (key in postgres.effects()) == (record is not None and record.state is State.COMPLETED)
        assert outcome != "done" or key in postgres.effects()
        proxy.count()
        run(postgres.safe, patient(this), connect, body)
        assert postgres.effects().count(key) == 1
    assert outcomes["done"] >= 1, "the last cuts come after the end"
    # StoreUnclear: on a busy machine the server may hold the lost transaction's lock longer than we look for it.
    assert set(outcomes) <= {"done", "StoreUnavailable", "OperationalError", "StoreUnclear"}, outcomes


def patient(this: Task) -> Task:
    return replace(this, policy=this.policy.replace(busy="wait"))


@pytest.fixture
def looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow, "RECOVERY_DELAYS_SECONDS", LOOKS)


@pytest.mark.usefixtures("looks")
def test_a_commit_whose_reply_was_lost_is_recognised(postgres: World, proxy: PostgresProxy) -> None:
    """The COMMIT is carried out, its reply swallowed: the caller gets "done", and the body ran once."""
    runs: list[int] = []
    with psycopg_pool.ConnectionPool(proxy.url, min_size=1, max_size=2, open=True) as pool:
        pool.wait()

        def body(tx: Any) -> Answer:
            runs.append(1)
            write(tx, "a")
            return ANSWER

        commit_at = position_of_commit(postgres, proxy, pool)
        proxy.cut_at(commit_at, "swallow")
        ended = run(postgres.safe, task(postgres.safe, "k", 1, RELEASE), pool, body)
        assert proxy.was_cut()
    assert not ended.replayed
    assert runs == [1]
    assert postgres.effects() == ["a"]


@pytest.mark.usefixtures("looks")
def test_a_commit_that_never_arrived_runs_the_body_again(postgres: World, proxy: PostgresProxy) -> None:
    runs: list[int] = []
    with psycopg_pool.ConnectionPool(proxy.url, min_size=1, max_size=2, open=True) as pool:
        pool.wait()

        def body(tx: Any) -> Answer:
            runs.append(1)
            write(tx, "a")
            return ANSWER

        proxy.cut_at(position_of_commit(postgres, proxy, pool), "before")
        ended = run(postgres.safe, task(postgres.safe, "k", 1, RELEASE), pool, body)
        assert proxy.was_cut()
    assert not ended.replayed
    assert runs == [1, 1]
    assert postgres.effects() == ["a"]


def test_a_block_on_one_connection_asks_the_store_what_became_of_its_commit(
    postgres: World, proxy: PostgresProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def block(key: str) -> None:
        with postgres.safe.transaction(connection, key=key, scope=SCOPE) as tx:
            write(tx.handle, key)
            tx.answer = ANSWER

    connection = psycopg.connect(proxy.url, autocommit=True)
    block("warm")
    proxy.count()
    block("count")
    last = len(proxy.seen)
    commit_at = max(place for place in range(last) if proxy.seen[place].startswith(">")) + 1
    proxy.cut_at(commit_at, "swallow")
    with monkeypatch.context() as patched:
        patched.setattr(flow, "RECOVERY_DELAYS_SECONDS", LOOKS)
        block("kept")
    assert proxy.was_cut()
    assert "kept" in postgres.effects()
    connection.close()
    connection = psycopg.connect(proxy.url, autocommit=True)
    proxy.cut_at(commit_at, "before")
    with pytest.raises(StoreUnclear):
        block("lost")
    assert "lost" not in postgres.effects()
    connection.close()


def position_of_commit(postgres: World, proxy: PostgresProxy, pool: Any) -> int:
    """The number of the message that carries COMMIT, counted on a twin of the transaction."""

    def body(tx: Any) -> Answer:
        write(tx, unique("twin"))
        return ANSWER

    for name in ("twin-1", "twin-2"):
        proxy.count()
        run(postgres.safe, task(postgres.safe, name, 1, RELEASE), pool, body)
    with psycopg.connect(postgres.plain, autocommit=True) as admin:
        admin.execute("DELETE FROM effects")
    return max(place for place in range(len(proxy.seen)) if proxy.seen[place].startswith(">")) + 1


# The right database -------------------------------------------------------------------------------


def test_another_database_is_refused(postgres: World, pool: Any) -> None:
    """Another installation in the same tables' names is another database to us."""
    tables = postgres.url.rpartition("table=")[2]
    ran: list[int] = []
    with temporary_database(postgres.plain) as elsewhere, RetrySafe(with_option(elsewhere, "table", tables)) as other:
        given = (postgres.safe, task(postgres.safe, "k", 1, RELEASE), lambda: psycopg.connect(elsewhere), ran.append)
        with pytest.raises(SchemaMissing):
            run(*given)  # type: ignore[arg-type]
        other.migrate()
        with pytest.raises(NotSameDatabase):
            run(*given)  # type: ignore[arg-type]
    assert ran == []


# Cancellation -------------------------------------------------------------------------------------


async def test_a_cancelled_body_leaves_nothing_and_a_clean_connection(postgres: World) -> None:
    async with psycopg_pool.AsyncConnectionPool(postgres.plain, min_size=1, max_size=1, open=False) as pool:
        inside = asyncio.Event()

        async def stand(key: str, wait: bool) -> None:
            async with postgres.safe.transaction(pool, key=key, scope=SCOPE) as tx:
                await tx.handle.execute("INSERT INTO effects (value) VALUES (%s)", [key])
                if wait:
                    inside.set()
                    await asyncio.Event().wait()
                tx.answer = ANSWER

        running = asyncio.create_task(stand("a", True))
        await inside.wait()
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert postgres.effects() == []
        await stand("a", False)
        assert postgres.effects() == ["a"]
    await postgres.safe.aclose()
