"""Behind PgBouncer in transaction mode: sessions change hands between transactions, and nothing of ours is in one."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from retrysafe.core.states import State
from retrysafe.stores.diagnosis import diagnose
from retrysafe.stores.postgres.sync import PostgresStore
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete, lookup, record_of, release, renew
from tests.batching.test_stores import Together, in_tasks, in_threads
from tests.faults.story import asked
from tests.opening import with_option
from tests.postgres_family.conftest import Pooled

pytestmark = [pytest.mark.store("pgbouncer"), pytest.mark.xdist_group("pgbouncer")]

MANY = 60


def session_of(connection: psycopg.Connection[Any]) -> int:
    """Which of the server's sessions this transaction has; it is open from here on."""
    (pid,) = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone() or (0,)
    return int(pid)


def test_sessions_really_change_hands(pooled: Pooled) -> None:
    with psycopg.connect(pooled.server.url) as one, psycopg.connect(pooled.server.url) as other:
        first = {session_of(one), session_of(other)}
        assert len(first) == 2, "both are in a transaction, so each has a session"
        seen = set()
        for _ in range(10):
            one.commit()
            other.commit()
            seen.add(session_of(one))
        assert seen == first, "one connection has met both sessions"
        assert one.info.backend_pid not in first, "by this it is noticed that there is a pooler"


def test_nothing_is_prepared_in_a_session(pooled: Pooled) -> None:
    """Under a name that another connection may have given to another statement, that one would be run."""
    do = pooled.empty("sync")
    for number in range(20):
        held = do(asked(f"prepared-{number}"))
        assert do(renew(held, now=None)) is True
        do.many([complete(held, now=None), asked(f"beside-{number}")])
        do(lookup(held, now=None))
    do.close()
    with psycopg.connect(pooled.server.url) as one, psycopg.connect(pooled.server.url) as other:
        for connection in (one, other):  # in a transaction each: so these are the two sessions there are
            session_of(connection)
            found = connection.execute("SELECT name FROM pg_prepared_statements", prepare=False).fetchall()
            assert found == []


def test_straight_to_the_server_they_are_prepared(pooled: Pooled) -> None:
    """The same without a pooler in between: so the test above could fail."""
    pooled.empty("sync").close()
    with ConnectionPool(pooled.direct, min_size=1, max_size=1, open=True) as pool:
        store = PostgresStore(pool, table=pooled.prefix)
        for _ in range(20):
            store.execute(lookup("nobody's", now=None))
        with pool.connection() as connection:
            found = connection.execute("SELECT count(*) FROM pg_prepared_statements", prepare=False).fetchone()
        assert found == (1,)


@pytest.fixture(params=["sync", "async"])
def together(request: pytest.FixtureRequest, pooled: Pooled) -> Iterator[Together]:
    pooled.empty("sync").close()
    url = with_option(with_option(pooled.url, "pool", "4"), "pool_timeout", "60")
    yield from (in_threads(url) if request.param == "sync" else in_tasks(url))


def test_many_callers_in_batches(together: Together) -> None:
    """Claims, renewals, answers and releases of many callers at once, of which each session sees some."""
    held = together([claim(f"k{number}", now=0) for number in range(MANY)])
    assert [reply.granted for reply in held] == [True] * MANY
    assert not any(reply.granted for reply in together([claim(f"k{number}", now=1) for number in range(MANY)]))
    assert together([renew(reply, now=2) for reply in held]) == [True] * MANY
    ends = [complete(reply, now=3) if number % 2 else release(reply, now=3) for number, reply in enumerate(held)]
    assert together(ends) == [True] * MANY
    again = together([claim(f"k{number}", now=4) for number in range(MANY)])
    assert [reply.granted for reply in again] == [number % 2 == 0 for number in range(MANY)]


def test_one_winner_of_many_callers(together: Together) -> None:
    for key in range(5):
        replies = together([claim(f"wanted-{key}", now=0) for _ in range(40)])
        assert [reply.granted for reply in replies].count(True) == 1


def test_two_processes_worth_of_pools(pooled: Pooled) -> None:
    """Two stores on the same two sessions, doing different things at the same time."""
    pooled.empty("sync").close()
    url = with_option(with_option(pooled.url, "pool", "4"), "pool_timeout", "60")
    errors: list[BaseException] = []

    def use(name: str) -> None:
        store = open_store(url)
        try:
            for number in range(25):
                held = store.execute(claim(f"{name}-{number}", now=0))
                assert store.execute(complete(held, name.encode(), now=1) if name == "a" else release(held, now=1))
                state = record_of(store.execute(lookup(held, now=2))).state
                assert state is (State.COMPLETED if name == "a" else State.RELEASED)
        except BaseException as error:
            errors.append(error)
        finally:
            store.close()

    users = [threading.Thread(target=use, args=(name,)) for name in ("a", "b")]
    for user in users:
        user.start()
    for user in users:
        user.join()
    assert errors == []


def test_the_doctor_sees_the_pooler(pooled: Pooled) -> None:
    pooled.empty("sync").close()
    found = {one.setting: one for one in diagnose(pooled.url).findings}
    assert found["pooler"].fine
    assert str(pooled.server.port) in found["pooler"].value
