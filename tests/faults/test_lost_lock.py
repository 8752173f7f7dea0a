"""PostgreSQL as others leave it: rows that are locked (I28), other isolation levels, pools and sessions not for us."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg import sql
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from retrysafe.core.judge import judge
from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.core.outcomes import Busy
from retrysafe.core.states import State
from retrysafe.errors import SchemaMissing, StoreUnavailable
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.postgres.aio import AsyncPostgresStore
from retrysafe.stores.postgres.dialect import DIALECT
from retrysafe.stores.postgres.sync import PostgresStore
from retrysafe.stores.sql.names import build_names
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup, record_of, release, renew
from tests.faults.story import CASES, check_truth
from tests.opening import COLOURS, open_do, open_migrated, patient, unique, with_option
from tests.servers.postgres import temporary_database
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

SLACK = 60.0
"""For a machine that stands still: a wait that is over by then is only late."""

IDLE = 120
"""Seconds after which the server ends a transaction that is only held. Who waits for it without a limit is then granted
the key, or sees the row: that it was told neither is how a test knows that it did not wait."""

each_colour = pytest.mark.parametrize("colour", COLOURS)
ROOT = Path(__file__).parents[2]


class Place:
    """Tables of one test's own."""

    def __init__(self, url: str) -> None:
        self.plain = url
        self.table = unique("lock_")
        self.url = with_option(patient("postgres", url), "table", self.table)

    @contextmanager
    def store(self, colour: str) -> Iterator[Do]:
        do = open_migrated(self.url, colour)
        try:
            yield do
        finally:
            do.close()

    @contextmanager
    def transaction(self) -> Iterator[psycopg.Connection[Any]]:
        """Somebody else's, open until the block ends; rolled back unless committed before.

        The server ends it when it is idle for too long, so that a claim that waits for it fails instead of hanging.
        """
        with psycopg.connect(self.plain, options=f"-c idle_in_transaction_session_timeout={IDLE}s") as connection:
            yield connection
            connection.rollback()  # not by closing: the server would give the locks back when it comes to it

    def insert(self, connection: psycopg.Connection[Any], op: Claim) -> None:
        """The row a claim makes, in somebody else's transaction."""
        statement = next(SqlPlans(DIALECT, build_names(self.table)).plan_operation(op))
        connection.execute(statement.sql, statement.values)

    def lock(self, connection: psycopg.Connection[Any], record_id: bytes) -> None:
        query = sql.SQL("SELECT 1 FROM {} WHERE id = %s FOR UPDATE").format(sql.Identifier(f"{self.table}_keys"))
        assert connection.execute(query, [record_id]).fetchone() is not None


@pytest.fixture
def place(postgres_url: str) -> Place:
    return Place(postgres_url)


# Somebody is in the middle of it ------------------------------------------------------------------


@each_colour
def test_an_uncommitted_claim_is_not_waited_for(place: Place, colour: str) -> None:
    with place.store(colour) as do, place.transaction() as other:
        first, mine = claim("k", now=None), claim("k", now=None)
        place.insert(other, first)
        reply = do(mine)
        assert (reply.granted, reply.record) == (False, None)
        assert isinstance(judge(mine, reply), Busy)
        # The connection is as good as before: another key at once.
        assert do(claim("other", now=None)).granted is True
        other.rollback()
        assert do(mine).granted is True


@each_colour
def test_once_it_commits_it_is_seen(place: Place, colour: str) -> None:
    with place.store(colour) as do, place.transaction() as other:
        first, mine = claim("k", now=None), claim("k", now=None)
        place.insert(other, first)
        assert do(mine).record is None
        other.commit()
        reply = do(mine)
        assert reply.granted is False
        assert reply.record is not None
        assert reply.record.fence == (1, first.token)


def test_it_commits_while_we_wait(place: Place) -> None:
    """The claim waits in the database for the other's fate; then it reads again in a fresh snapshot (I1).

    It waits for two seconds and no longer, so on a machine that stands still the commit may come too late for it. Then
    it is told what it must be told in that case, and the next key has its turn.
    """
    with place.store("sync") as do, psycopg.connect(place.plain, autocommit=True) as admin:
        for key in map(str, range(20)):
            first, reply = committed_meanwhile(place, do, admin, key)
            assert reply.granted is False
            if reply.record is not None:
                assert reply.record.fence == (1, first.token)
                return
    raise AssertionError("no commit came in time")


def committed_meanwhile(place: Place, do: Do, admin: psycopg.Connection[Any], key: str) -> tuple[Claim, ClaimReply]:
    """The other's claim, and what ours was told."""
    first, mine = claim(key, now=None), claim(key, now=None)
    replies: list[Any] = []
    waiting = threading.Thread(target=lambda: replies.append(do(mine)))
    with place.transaction() as other:
        place.insert(other, first)
        waiting.start()
        until(lambda: blocked(place, admin) or not waiting.is_alive(), SLACK, "the claim to wait for the lock")
        other.commit()
    waiting.join(SLACK)
    (reply,) = replies
    return first, reply


def blocked(place: Place, admin: psycopg.Connection[Any]) -> bool:
    """Whether some session waits for a lock on a statement that names this test's table."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE %s"
    row = admin.execute(query, [f"%{place.table}%"]).fetchone()
    return row is not None and row[0] > 0


@each_colour
@pytest.mark.parametrize("how", ["takeover", "rebirth"])
def test_a_locked_row_is_not_waited_for_either(place: Place, colour: str, how: str) -> None:
    """A record that may be taken, but whose row somebody holds: Busy, not a hang."""
    with place.store(colour) as do, place.transaction() as other:
        held = do(claim("k", retention=1))
        assert do(release(held)) is True
        place.lock(other, record_of(held).id)
        mine = claim("k", now=1 if how == "takeover" else 10_000)
        reply = do(mine)
        assert isinstance(judge(mine, reply), Busy)
        other.rollback()
        after = do(mine)
        assert after.granted is True
        assert record_of(after).attempt == (2 if how == "takeover" else 1)


@each_colour
def test_a_lock_timeout_of_the_database_is_an_error_of_ours(place: Place, colour: str) -> None:
    """Operators set lock_timeout for a role or database; a fenced write that meets it did nothing, and says so."""
    with place.store("sync") as owner:
        held = owner(claim("k", now=None))
        assert held.granted
    impatient = with_option(place.url, "options", "-c%20lock_timeout%3D50")
    do = open_do(impatient, colour)
    try:
        with place.transaction() as other:
            place.lock(other, record_of(held).id)
            for op in (renew(held, now=None), complete(held, now=None)):
                with pytest.raises(StoreUnavailable, match="open transaction"):
                    do(op)
        assert do(complete(held, now=None)) is True
    finally:
        do.close()


@each_colour
def test_a_batch_with_a_held_key_did_nothing(place: Place, colour: str) -> None:
    with place.store(colour) as do, place.transaction() as other:
        batch = [claim(key, now=None) for key in ("a", "b", "c")]
        place.insert(other, claim("b", now=None))
        with pytest.raises(BatchRefused, match="one by one"):
            do.many(batch)
        assert [do(lookup(op, now=None)).record for op in batch] == [None] * 3
        other.rollback()
        assert all(reply.granted for reply in do.many(batch))


# Sessions that are not as we would have them ------------------------------------------------------


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """A database of this test's own, to be set up strangely."""
    with temporary_database(postgres_url) as url:
        yield url


def alter(database: str, setting: str, value: str) -> None:
    with psycopg.connect(database, autocommit=True) as admin:
        name = database.rpartition("/")[2]
        text = sql.SQL("ALTER DATABASE {} SET {} = {}")
        admin.execute(text.format(sql.Identifier(name), sql.Identifier(setting), sql.Literal(value)))


@each_colour
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_any_isolation_level(database: str, colour: str, level: str) -> None:
    """Serialization failures are ours to repeat. Every operation, and a crowd on the same keys."""
    alter(database, "default_transaction_isolation", level)
    do = open_migrated(database, colour)
    try:
        for case in CASES:
            op = case.make(do, unique())
            check_truth(do, case, op, do(op))
        grants = crowd(do, [unique() for _ in range(20)])
        assert grants == [1] * 20
    finally:
        do.close()


REFUSE_BATCHES = """
    CREATE FUNCTION {function}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        IF (SELECT count(*) FROM added) > 1 THEN
            RAISE EXCEPTION 'could not serialize access' USING ERRCODE = '40001';
        END IF;
        RETURN NULL;
    END $$;
    CREATE TRIGGER refuse_batches AFTER INSERT ON {table} REFERENCING NEW TABLE AS added
        FOR EACH STATEMENT EXECUTE FUNCTION {function}()
"""
"""Stands for traffic that commits on one of a batch's keys again and again."""


@each_colour
def test_a_batch_that_meets_others_again_and_again_is_sent_one_by_one(place: Place, colour: str) -> None:
    """A batch is one transaction over many keys: it may never get through where each of its operations does."""
    with place.store(colour) as do:
        with psycopg.connect(place.plain, autocommit=True) as admin:
            names = {"function": sql.Identifier(unique("refuse_")), "table": sql.Identifier(f"{place.table}_keys")}
            admin.execute(sql.SQL(REFUSE_BATCHES).format(**names))
        batch = [claim(key, now=None) for key in ("a", "b", "c")]
        with pytest.raises(BatchRefused, match=r"serialization failures in a row to this batch; .* one by one"):
            do.many(batch)
        assert [do(lookup(op, now=None)).record for op in batch] == [None] * 3
        assert all(do(op).granted for op in batch)


def crowd(do: Do, keys: list[str], size: int = 4) -> list[int]:
    """How many of several claimers were granted each key; half of them ask in batches."""
    granted = dict.fromkeys(keys, 0)
    lock, together = threading.Lock(), threading.Barrier(size)
    failures: list[BaseException] = []

    def ask(number: int) -> None:
        try:
            together.wait(SLACK)
            ops = [claim(key, now=None) for key in keys]
            replies = [do(op) for op in ops] if number % 2 else in_one(do, ops)
            with lock:
                for key, reply in zip(keys, replies, strict=True):
                    granted[key] += reply.granted
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(2 * SLACK)
    assert not failures, failures
    return list(granted.values())


def in_one(do: Do, ops: list[Claim]) -> list[Any]:
    """In a batch; and if somebody holds one of the keys for too long, as on a slow machine, one by one, as it says."""
    try:
        return list(do.many(ops))
    except BatchRefused:
        return [do(op) for op in ops]


def test_a_pool_of_yours_without_autocommit(place: Place) -> None:
    """We commit each operation by itself, and give your connection back as it was."""
    with place.store("sync"):
        pass
    with ConnectionPool(place.plain, min_size=1, max_size=1, kwargs={"autocommit": False}, open=True) as pool:
        do = Do.sync(PostgresStore(pool, table=place.table))
        for case in CASES:
            with pool.connection() as connection:
                assert connection.autocommit is False
            op = case.make(do, unique())
            reply = do(op)
            with place.store("sync") as elsewhere:
                check_truth(elsewhere, case, op, reply)
        assert all(reply.granted for reply in do.many([claim(unique(), now=None) for _ in range(3)]))
        with pytest.raises(BatchRefused, match="one by one"):
            held_batch(place, do)
        do.close()
        with pool.connection() as connection:
            assert connection.autocommit is False
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE
            assert connection.execute("SELECT 1").fetchone() == (1,)


def held_batch(place: Place, do: Do) -> None:
    with place.transaction() as other:
        key = unique()
        place.insert(other, claim(key, now=None))
        do.many([claim(key, now=None)])


async def test_an_async_pool_of_yours_without_autocommit(place: Place) -> None:
    with place.store("sync"):
        pass
    async with AsyncConnectionPool(
        place.plain, min_size=1, max_size=1, kwargs={"autocommit": False}, open=False
    ) as pool:
        store = AsyncPostgresStore(pool, table=place.table)
        op = claim(unique(), now=None)
        assert (await store.execute(op)).granted is True
        with place.store("sync") as elsewhere:
            assert elsewhere.record(op, now=None).state is State.CLAIMED
        assert all(reply.granted for reply in await store.execute_many([claim(unique(), now=None) for _ in range(3)]))
        await store.aclose()
        async with pool.connection() as connection:
            assert connection.autocommit is False
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE


@each_colour
def test_a_read_only_session(database: str, colour: str) -> None:
    """A standby, or a database set to read-only: refused with what to do. Looking is still possible."""
    open_migrated(database, "sync").close()
    alter(database, "default_transaction_read_only", "on")
    do = open_do(database, colour)
    try:
        with pytest.raises(StoreUnavailable, match=r"read-only.*primary"):
            do(claim("k", now=None))
        with pytest.raises(StoreUnavailable, match=r"read-only.*primary"):
            do.many([claim("k", now=None)])
        assert do(lookup("k", now=None)).record is None
    finally:
        do.close()


# Tables -------------------------------------------------------------------------------------------


@each_colour
def test_missing_tables_name_the_command(place: Place, colour: str) -> None:
    do = open_do(place.url, colour)
    try:
        for op in (claim("k", now=None), lookup("k", now=None)):
            with pytest.raises(SchemaMissing, match="retrysafe migrate"):
                do(op)
        with pytest.raises(SchemaMissing, match="retrysafe migrate"):
            do.many([claim("k", now=None)])
        assert do.migrate()
        assert do(claim("k", now=None)).granted is True
    finally:
        do.close()


MIGRATE = """
import json, sys
from retrysafe.stores.registry import open_store

store = open_store(sys.argv[1])
sys.stdin.readline()
print(json.dumps(store.migrate()))
store.close()
"""


@pytest.mark.parametrize("store", ["postgres", pytest.param("sqlite", marks=pytest.mark.store("sqlite"))])
def test_eight_processes_migrate_at_once(place: Place, sqlite_url: str, store: str) -> None:
    url = place.url if store == "postgres" else sqlite_url
    command = [sys.executable, "-W", "error", "-c", MIGRATE, url]
    pipe = subprocess.PIPE
    processes = [subprocess.Popen(command, cwd=ROOT, stdin=pipe, stdout=pipe, stderr=pipe, text=True) for _ in range(8)]
    try:
        ended = [process.communicate("go\n", timeout=300) for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    assert [errors for _, errors in ended] == [""] * 8
    applied = [json.loads(output) for output, _ in ended]
    everything = max(applied, key=len)
    assert everything
    assert sorted(applied, key=len) == [[]] * 7 + [everything], "each migration was applied by exactly one process"
    do = open_do(url, "sync")
    try:
        assert do.migrate() == []
        assert do(claim("k", now=None)).granted is True
    finally:
        do.close()
