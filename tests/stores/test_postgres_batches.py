"""How a batch is sent to PostgreSQL: packed by the store, in one transaction, prepared if possible."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.adapt import PyFormat, Transformer
from psycopg.types.numeric import Int4, Int8
from psycopg_pool import AsyncConnectionPool, ConnectionPool

from retrysafe.core.ops import Op
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.postgres import arrays, batches
from retrysafe.stores.postgres.aio import AsyncPostgresStore
from retrysafe.stores.postgres.dialect import parse_url
from retrysafe.stores.postgres.pipeline import number_parameters
from retrysafe.stores.postgres.sync import PostgresStore
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete, lookup, release, renew
from tests.opening import store_url
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")


@pytest.mark.parametrize(
    ("pack", "values", "typed"),
    [
        (arrays.pack_bytea, [b"", b"\x00\xff", b"abc"], bytes),
        (arrays.pack_text, ["", "ä€", "b", "b"], str),
        (arrays.pack_text, ["same", "same"], str),
        (arrays.pack_integer, [0, -1, 2**31 - 1], Int4),
        (arrays.pack_bigint, [0, -1, 2**63 - 1], Int8),
    ],
)
def test_arrays_are_written_as_the_driver_writes_them(
    pack: arrays.Pack, values: list[Any], typed: Callable[[Any], Any]
) -> None:
    elements = [typed(value) for value in values]
    dumper = Transformer().get_dumper(elements, PyFormat.BINARY)
    assert pack(values) == bytes(dumper.dump(elements) or b"")


def test_named_parameters_become_numbers() -> None:
    text = number_parameters("SELECT %(b)s, %(a)s, %(b)s, 7 %% 2")
    assert (text.sql, text.parameters) == (b"SELECT $1, $2, $1, 7 % 2", ("b", "a"))
    assert number_parameters("SELECT 1").name != text.name


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    found = store_url(request, tmp_path, "postgres")
    store = open_store(found)
    store.migrate()
    store.close()
    return found


@pytest.fixture
def admin(url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        yield connection


@pytest.fixture
def pool(url: str) -> Iterator[ConnectionPool[Any]]:
    """A pool with one connection: the next batch meets what the one before has left on it."""
    at_once = {"prepare_threshold": 0}
    with ConnectionPool(url.partition("?")[0], min_size=1, max_size=1, open=True, kwargs=at_once) as made:
        yield made


@pytest.fixture
async def async_pool(url: str) -> AsyncIterator[AsyncConnectionPool[Any]]:
    async with AsyncConnectionPool(url.partition("?")[0], min_size=1, max_size=1, open=False) as made:
        yield made


def store_on(pool: ConnectionPool[Any], url: str) -> PostgresStore:
    return PostgresStore(pool, table=parse_url(url).names.bare)


def mixed(store: PostgresStore, name: str) -> list[Op[Any]]:
    held = [store.execute(claim(f"{name}{number}", now=0)) for number in range(3)]
    fresh = [claim(f"{name}-new{number}", now=1) for number in range(3)]
    return [complete(held[0], now=1), fresh[0], renew(held[1], now=1), fresh[1], release(held[2], now=1), fresh[2]]


def test_several_kinds_are_one_transaction(pool: ConnectionPool[Any], url: str, admin: psycopg.Connection[Any]) -> None:
    store = store_on(pool, url)
    replies = store.execute_many(mixed(store, "k"))
    assert [reply if isinstance(reply, bool) else reply.granted for reply in replies] == [True] * 6
    written = admin.execute(f"SELECT xmin::text, count(*) FROM {parse_url(url).names.keys} GROUP BY 1").fetchall()
    assert [count for _, count in written] == [6]


def test_one_kind_that_fails_undoes_the_others(
    pool: ConnectionPool[Any], url: str, admin: psycopg.Connection[Any]
) -> None:
    """The packing accepts a NUL, and the server refuses it, in the claims, which are sent first."""
    store = store_on(pool, url)
    ops = [*mixed(store, "k"), claim("bad", target="POST /a\0b", now=1)]
    before = admin.execute(f"SELECT * FROM {parse_url(url).names.keys} ORDER BY id").fetchall()
    with pytest.raises(StoreError) as refused:
        store.execute_many(ops)
    assert not isinstance(refused.value, StoreUnavailable)
    assert admin.execute(f"SELECT * FROM {parse_url(url).names.keys} ORDER BY id").fetchall() == before
    assert all(store.execute_many(ops[:-1])), "and the connection is as good as before"


def prepared(pool: ConnectionPool[Any]) -> int:
    with pool.connection() as connection:
        row = connection.execute(
            "SELECT count(*) FROM pg_prepared_statements WHERE name LIKE 'retrysafe%'", prepare=False
        ).fetchone()
    assert row is not None
    return int(row[0])


def test_statements_are_prepared_once(pool: ConnectionPool[Any], url: str) -> None:
    store = store_on(pool, url)
    for name in "abc":
        store.execute_many(mixed(store, name))
    assert prepared(pool) == 5, "the settings and one for each kind"


def test_what_is_sent_now_and_then_is_not_prepared(url: str) -> None:
    with ConnectionPool(url.partition("?")[0], min_size=1, max_size=1, open=True) as pool:
        store = store_on(pool, url)
        for number in range(5):
            store.execute_many(mixed(store, f"a{number}"))
        assert prepared(pool) == 0
        store.execute_many(mixed(store, "b"))
        assert prepared(pool) == 5


def test_nothing_is_prepared_where_its_owner_says_so(url: str) -> None:
    """`prepare_threshold=None`: the setting for a pooler that does not know prepared statements."""
    bare = url.partition("?")[0]
    with ConnectionPool(bare, min_size=1, max_size=1, open=True, kwargs={"prepare_threshold": None}) as pool:
        store = store_on(pool, url)
        for name in "abc":
            store.execute_many(mixed(store, name))
        assert prepared(pool) == 0


@pytest.mark.parametrize("forget", ["DEALLOCATE ALL", "DISCARD ALL"])
def test_a_server_that_forgot_what_was_prepared(pool: ConnectionPool[Any], url: str, forget: str) -> None:
    """Another server session behind the same connection, as with a pooler in transaction mode."""
    store = store_on(pool, url)
    store.execute_many(mixed(store, "a"))
    with pool.connection() as connection:
        connection.autocommit = True
        connection.execute(forget)
        connection.autocommit = False
    replies = store.execute_many(mixed(store, "b"))
    assert [reply if isinstance(reply, bool) else reply.granted for reply in replies] == [True] * 6
    assert prepared(pool) == 0, "it is not tried again"


class FailsAlone(PostgresStore):
    """A store to which a single operation cannot be sent at present: no connection is free."""

    def execute(self, op: Op[Any]) -> Any:
        raise StoreUnavailable("no connection within the pool's timeout")


def test_a_batch_of_which_a_part_is_committed_is_unclear(pool: ConnectionPool[Any], url: str) -> None:
    """A takeover goes alone, after the batch. If it fails, nobody may say that the new keys were not claimed."""
    store = store_on(pool, url)
    store.execute(claim("lapsed", lease=0, on_lapse="rerun", now=0))
    ops = [claim("new", now=1), claim("lapsed", now=1)]
    with pytest.raises(StoreUnclear):
        FailsAlone(pool, table=parse_url(url).names.bare).execute_many(ops)
    assert [reply.granted for reply in store.execute_many(ops)] == [True, True]


class Rows:
    """The rows of a statement, as the store would read them."""

    def __init__(self, *rows: tuple[Any, ...]) -> None:
        self._rows = rows
        self.count = len(rows)

    def read_all(self) -> list[tuple[Any, ...]]:
        return list(self._rows)

    def read_bigint(self, row: int, column: int) -> int:
        return int(self._rows[row][column])


def test_births_and_refusals_must_add_up() -> None:
    """I1: a claim that is missing in the reply is not granted."""
    ops = [claim(f"k{number}") for number in range(3)]
    nothing: list[Any] = [None] * 26
    read: Any = batches.BATCHES[type(ops[0])].read
    assert [reply.granted for reply in read(ops, Rows((3, 5, None, *nothing)))] == [True] * 3
    for short in ((), ((2, 5, None, *nothing),), ((0, 5, None, *nothing),), ((1, 5, ops[0].id, *nothing),)):
        assert read(ops, Rows(*short)) == [batches.SEND_UNBATCHED] * 3


def test_only_who_is_named_was_born() -> None:
    """I1, for the claims that only insert."""
    ops = [claim(f"k{number}") for number in range(3)]
    read: Any = batches.SHORT_CLAIMS.read
    assert [reply.granted for reply in read(ops, Rows(*((op.id, 5) for op in ops)))] == [True] * 3
    assert read(ops, Rows()) == [batches.CLAIM_AGAIN] * 3
    first, second, third = read(ops, Rows((ops[1].id, 5)))
    assert (first, third) == (batches.CLAIM_AGAIN, batches.CLAIM_AGAIN)
    assert (second.granted, second.now) == (True, 5)


def test_a_claim_whose_record_was_not_found_is_not_decided() -> None:
    """I1, for the claims that only look: neither granted nor refused."""
    ops = [claim(f"k{number}") for number in range(3)]
    assert batches.LOOKED_UP_CLAIMS.read(ops, Rows()) == [batches.CLAIM_AGAIN] * 3  # type: ignore[arg-type]


def test_what_a_batch_met_decides_how_the_next_one_sends_its_claims(pool: ConnectionPool[Any], url: str) -> None:
    store = store_on(pool, url)
    first = [claim(f"k{number}", now=0) for number in range(4)]
    new = store.execute_many(first)
    assert store._claims is batches.SHORT_CLAIMS
    store.execute_many([claim(f"k{number}", now=1) for number in (0, 1, 7)])
    assert store._claims is batches.WHOLE_CLAIMS
    store.execute_many([claim(f"k{number}", now=1) for number in (0, 1)])
    assert store._claims is batches.LOOKED_UP_CLAIMS
    assert store.execute_many([complete(reply, now=1) for reply in new]) == [True] * 4
    assert store._claims is batches.LOOKED_UP_CLAIMS, "a batch without claims tells nothing"
    replies = store.execute_many([claim("k0", now=2), claim("k8", now=2), claim("k1", now=2, body=b"other")])
    assert [reply.granted for reply in replies] == [False, True, False], "a new key is claimed in the same call"
    assert replies[0].record.answer is not None
    again = [claim(f"k{number}", now=2) for number in (20, 21)]
    assert [reply.granted for reply in store.execute_many(again)] == [True, True]
    assert [reply.granted for reply in store.execute_many(again)] == [True, True], "its own claim is recognised"


@pytest.mark.parametrize("way", ["SHORT_CLAIMS", "WHOLE_CLAIMS", "LOOKED_UP_CLAIMS"])
def test_a_server_that_cannot_write_answers_no_claim(url: str, way: str) -> None:
    """A primary that was replaced may not know what became of a key since then. Its answer makes the pool connect
    anew."""
    address = url.partition("?")[0]
    ops = [claim(f"k{number}", now=0) for number in range(3)]
    with ConnectionPool(address, min_size=1, max_size=1, open=True) as pool:
        writable = store_on(pool, url)
        assert writable.execute_many([complete(reply, now=0) for reply in writable.execute_many(ops)]) == [True] * 3
    read_only = {"options": "-c default_transaction_read_only=on"}
    with ConnectionPool(address, min_size=1, max_size=1, open=True, kwargs=read_only) as pool:
        demoted = store_on(pool, url)
        demoted._claims = getattr(batches, way)
        with pytest.raises(StoreError, match="read-only"):
            demoted.execute_many(ops)


@pytest.mark.parametrize("way", ["SHORT_CLAIMS", "WHOLE_CLAIMS", "LOOKED_UP_CLAIMS"])
def test_a_late_copy_and_an_own_claim_each_way(pool: ConnectionPool[Any], url: str, way: str) -> None:
    store = store_on(pool, url)
    own, late = claim("own", now=0), claim("late", lease=0, on_lapse="rerun", now=0)
    store.execute_many([own, late])
    assert store.execute(claim("late", now=1)).granted
    store._claims = getattr(batches, way)
    assert [reply.granted for reply in store.execute_many([own, late])] == [True, False]


async def test_a_batch_that_is_cancelled_under_way_leaves_a_pool_that_works(
    async_pool: AsyncConnectionPool[Any], url: str, admin: psycopg.Connection[Any]
) -> None:
    """I29, with one connection: no caller may use a connection with half an exchange on it."""
    store = AsyncPostgresStore(async_pool, table=parse_url(url).names.bare)
    waits = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%%unnest%%'"

    def waiting() -> bool:
        row = watcher.execute(waits).fetchone()
        return row is not None and row[0] > 0

    with psycopg.connect(url.partition("?")[0], autocommit=True) as watcher:
        # First a plain statement, so that the pool has its connection; then the table is locked.
        await store.execute(claim("first", now=0))
        with admin.transaction():
            admin.execute(f"LOCK TABLE {parse_url(url).names.keys}")
            task = asyncio.create_task(store.execute_many([claim(f"k{number}", now=0) for number in range(3)]))
            # lock_timeout limits the wait. In each case the exchange has begun when it is cancelled.
            await asyncio.to_thread(until, lambda: task.done() or waiting(), 60, "the batch to wait for the table")
            task.cancel()
            await asyncio.wait({task})
    assert (await store.execute(lookup("first", now=1))).record is not None
    replies = await store.execute_many([claim(f"l{number}", now=0) for number in range(3)])
    assert all(reply.granted for reply in replies)
