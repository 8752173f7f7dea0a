"""MySQL and MariaDB: a batch is one packet, a birth one statement; and no batch waits for a row that it only reads."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pymysql
import pytest

from retrysafe.core.ops import Op
from retrysafe.core.records import Answer
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused, follow
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.mysql import batches
from retrysafe.stores.mysql.dialect import DIALECT, MysqlLocation, parse_url
from retrysafe.stores.mysql.pool import open_connection
from retrysafe.stores.mysql.renewals import plan_renewals
from retrysafe.stores.mysql.sync import MysqlStore, _send_packet
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup, record_of, release, renew, withdraw
from tests.faults.mysql_proxy import MysqlProxy
from tests.opening import COLOURS, open_do, open_migrated, store_url

SERVERS = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")]
ROWS = 2_000
STRANGE = ("it's", 'say "no"', "back\\slash", "nul\0byte", "a;b", "100 %s %(id)s", "trailing  ", "{rows}", "ключ 🔑")
"""What would break a literal that is not escaped, or a template that is filled twice."""


@pytest.fixture(params=SERVERS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path, request.param)


@pytest.fixture(params=COLOURS)
def do(request: pytest.FixtureRequest, url: str) -> Iterator[Do]:
    opened = open_migrated(url, request.param)
    yield opened
    opened.close()


@pytest.fixture
def at(url: str) -> MysqlLocation:
    return parse_url(url)


def lock_row(cursor: Any, at: MysqlLocation, record_id: bytes) -> None:
    cursor.execute(f"SELECT 1 FROM `{at.names.bare}_keys` WHERE id = %s FOR UPDATE", [record_id])
    assert cursor.fetchall()


def claims(prefix: str, number: int = 5, **more: Any) -> list[Op[Any]]:
    return [claim(f"{prefix}{each}", now=None, **more) for each in range(number)]


# Round trips ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_round_trips(url: str, colour: str) -> None:
    """A birth and a completion are one each, alone or in a batch of many kinds. Replays learn to read first."""
    open_migrated(url, colour).close()
    proxy = MysqlProxy(url)
    do = open_do(proxy.url, colour)

    def count(work: Any) -> tuple[int, Any]:
        before = proxy.seen.count(">Q")
        done = work()
        return proxy.seen.count(">Q") - before, done

    try:
        do.many(claims("warm"))
        trips, held = count(lambda: do(claim("alone", now=None)))
        assert (trips, held.granted) == (1, True)
        assert count(lambda: do(complete(held, now=None))) == (1, True)
        trips, born = count(lambda: do.many(claims("many")))
        assert (trips, [reply.granted for reply in born]) == (1, [True] * 5)
        kinds: list[Op[Any]] = [renew(born[0], now=None), complete(born[1], now=None), release(born[2], now=None)]
        trips, replies = count(lambda: do.many([*kinds, withdraw(born[3], now=None), *claims("more")]))
        assert (trips, replies[:4]) == (1, [True] * 4)
        assert all(reply.granted for reply in replies[4:])
        assert count(lambda: do(renew(born[0], now=None))) == (1, True)
        assert count(lambda: do.many([renew(reply, now=None) for reply in replies[4:]])) == (1, [True] * 5)
        replays = claims("more")
        assert [count(lambda: do.many(replays))[0] for _ in range(3)] == [2, 1, 1], "the second one reads first"
        assert count(lambda: do(claim("alone", now=None)))[0] == 1, "a replay after replays is one read"
        assert count(lambda: do(claim("new", now=None)))[0] == 2
        assert count(lambda: do(claim("newer", now=None)))[0] == 1
    finally:
        do.close()
        proxy.close()


# Values ---------------------------------------------------------------------------------------------


def test_strange_texts_and_bytes_arrive_as_they_are(do: Do) -> None:
    reference = MemoryStore()
    blobs = [bytes(range(256)), b"", b"'\\\0;%s"]
    asked: list[Op[Any]] = [
        claim(text, target=text, scope=text, input=blobs[each % 3], now=5) for each, text in enumerate(STRANGE)
    ]
    held = do.many(asked)
    assert held == [reference.execute(op) for op in asked]
    notes: list[Op[Any]] = [
        complete(reply, blobs[each % 3], now=6) if each % 2 else release(reply, note=STRANGE[each], now=6)
        for each, reply in enumerate(held)
    ]
    assert do.many(notes) == [reference.execute(op) for op in notes]
    for reply in held:
        assert do(lookup(reply, now=7)) == reference.execute(lookup(reply, now=7))


def test_each_answer_of_a_batch_is_that_of_its_own_key(do: Do) -> None:
    """Statuses, headers, attempts and tokens differ, and contain what stands for them in the statement."""
    reference = MemoryStore()

    def both(ops: list[Op[Any]]) -> list[Any]:
        replies = do.many(ops)
        assert replies == [reference.execute(op) for op in ops]
        return replies

    held = both([claim(f"own{each}", lease=1, on_lapse="rerun", now=0) for each in range(9)])
    again = both([claim(f"own{each}", lease=9, on_lapse="rerun", now=5) for each in range(4)])
    owners = [*again, *held[4:]]
    words = [f"{{{name}}}" for name in ("ids", "body", "status", "token", "attempt", "gone", "headers", "rows", "note")]
    assert (
        both(
            [
                complete(
                    owner, Answer(200 + each, words[each].encode(), ((words[each], words[-each]),), "x" * each), now=6
                )
                for each, owner in enumerate(owners[:6])
            ]
        )
        == [True] * 6
    )
    assert both([release(owner, note=words[each], now=6) for each, owner in enumerate(owners[6:])]) == [True] * 3
    for owner in owners:
        assert do(lookup(owner, now=7)) == reference.execute(lookup(owner, now=7))


def test_large_answers_go_statement_by_statement(do: Do) -> None:
    held = do.many(claims("large"))
    body = b"x" * batches.MAX_BATCH_BYTES
    assert do.many([complete(reply, body, now=None) for reply in held]) == [True] * 5
    found = do(lookup("large4", now=None)).record
    assert found is not None
    assert found.answer is not None
    assert found.answer.body == body


# Outcomes -------------------------------------------------------------------------------------------


def test_one_that_lost_its_fence_spoils_no_other(do: Do) -> None:
    held = do.many(claims("fence"))
    zombie = complete(record_of(held[2])._replace(attempt=7), b"zombie", now=None)
    good: list[Op[Any]] = [complete(held[0], b"a", now=None), release(held[1], now=None), renew(held[3], now=None)]
    assert do.many([good[0], zombie, good[1], good[2]]) == [True, False, True, True]
    assert do.many([good[0], good[1]]) == [True, True], "what was done before is recognised"
    assert do.many([complete(held[0], b"other", now=None), renew(held[4], now=None)]) == [False, True]


@pytest.mark.parametrize("settle", [complete, release, withdraw])
def test_the_fence_of_another_key_in_the_batch_opens_nothing(do: Do, settle: Any) -> None:
    """Its token is in the statement, but for another row."""
    one, other, third = (record_of(reply) for reply in do.many(claims("swap", 3)))
    thief = settle(one._replace(token=other.token), now=None)
    assert do.many([thief, settle(other, now=None)]) == [False, True]
    assert do.many([settle(one._replace(token=third.token), now=None), settle(third, now=None)]) == [False, True]
    assert do(lookup("swap0", now=None)).record == one


def test_takeovers_and_rebirths_in_a_batch(do: Do) -> None:
    first = do.many([claim(f"over{each}", lease=1, on_lapse="rerun", now=0) for each in range(3)])
    again = do.many([claim(f"over{each}", lease=9, on_lapse="rerun", now=5) for each in range(4)])
    assert [(reply.granted, record_of(reply).attempt) for reply in again] == [(True, 2)] * 3 + [(True, 1)]
    assert do.many([complete(reply, now=6) for reply in first]) == [False] * 3


class FailsAlone(MysqlStore):
    """A store to which a single operation cannot be sent at present: no connection is free."""

    def execute(self, op: Op[Any]) -> Any:
        raise StoreUnavailable("no connection within the pool's timeout")


def test_a_batch_of_which_a_part_is_committed_is_unclear(at: MysqlLocation, do: Do) -> None:
    """A takeover goes alone, after the batch. If it fails, nobody may say that the new keys were not claimed."""
    do(claim("lapsed", lease=0, on_lapse="rerun", now=0))
    ops: list[Op[Any]] = [claim("fresh", now=1), claim("lapsed", now=1)]
    store = FailsAlone.from_url(at)
    with pytest.raises(StoreUnclear):
        store.execute_many(ops)
    store.close()
    assert [reply.granted for reply in do.many(ops)] == [True, True]


# Locks ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("reads_first", [False, True])
def test_a_batch_waits_for_no_row_that_exists(do: Do, at: MysqlLocation, reads_first: bool) -> None:
    """A retry comes while a local step of the user's transaction holds the record: busy at once, for it and the
    others."""
    held = do(claim("held", now=None))
    if reads_first:
        assert not do(claim("held", now=None)).granted
    with pymysql.connect(**at.connect) as holder, holder.cursor() as cursor:
        lock_row(cursor, at, record_of(held).id)
        replies = do.many([claim("held", now=None), *claims("beside")])
        assert [reply.granted for reply in replies] == [False] + [True] * 5
        assert record_of(replies[0]).token == record_of(held).token
        assert not do(claim("held", now=None)).granted
        holder.rollback()


def test_a_batch_that_cannot_write_a_row_does_nothing(do: Do, at: MysqlLocation) -> None:
    held = do(claim("held", now=None))
    with pymysql.connect(**at.connect) as holder, holder.cursor() as cursor:
        lock_row(cursor, at, record_of(held).id)
        with pytest.raises(BatchRefused):
            do.many([complete(held, now=None), *claims("with")])
        holder.rollback()
    assert do(lookup("with0", now=None)).record is None
    assert do.many([complete(held, now=None), *claims("with")])[0] is True


# Plans ----------------------------------------------------------------------------------------------


def test_batches_read_only_their_own_rows(at: MysqlLocation, url: str) -> None:
    """A planner that knows a table as small would read, and lock, all of it."""
    store = open_migrated(url, "sync")
    texts = SqlPlans(DIALECT, at.names).texts
    connection = open_connection(lambda **settings: pymysql.connect(**{**at.connect, **settings}))
    quoted = batches.Quoted(connection.escape)

    def send(packet: batches.Packet) -> Any:
        return _send_packet(connection, at.url, packet, batch=True)

    def run(ops: list[Op[Any]]) -> list[Any]:
        return follow(batches.plan_batch(texts, ops, quoted, False), send)[0]

    try:
        with connection.cursor() as cursor:
            for start in range(0, ROWS, 100):
                store.many(claims(f"grown{start}-", 100))
            cursor.execute("FLUSH STATUS")
            held = run(claims("mine"))
            kinds = [renew(held[0], now=None), complete(held[1], now=None), release(held[2], now=None)]
            assert run([*kinds, withdraw(held[3], now=None)]) == [True] * 4
            run(claims("mine"))
            beats = [renew(held[0], now=None), renew(held[4], now=None), renew(held[1], now=None)]
            assert follow(plan_renewals(texts, beats, quoted), send) == [True, True, False]
            cursor.execute("SHOW SESSION STATUS LIKE 'Handler_read%'")
            read = {name: int(value) for name, value in cursor.fetchall()}
        assert sum(read.values()) < ROWS / 4, read
    finally:
        connection.close()
        store.close()
