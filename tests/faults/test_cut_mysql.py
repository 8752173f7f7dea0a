"""The link to MySQL and to MariaDB is cut around the messages of every operation, on both sides of the message (I11).

As test_cut_postgres.py. A claim's answer is some thirty messages, most of them the names of columns: of those only the
first and the last are cut.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.mysql import aio, pool
from retrysafe.testing import Do
from retrysafe.testing.builders import claim
from tests.faults.mysql_proxy import MysqlProxy
from tests.faults.proxy import Side
from tests.faults.story import CASES, LEASE, Case, asked, check_truth, resend, sent, stored, warm
from tests.faults.test_cut_postgres import Calls, both, cut_batch
from tests.opening import COLOURS, open_do, open_migrated, unique, with_option

SERVERS = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")]
EDGE = 3
"""Messages at the beginning and at the end of an exchange that are cut."""


@pytest.fixture(scope="module", params=SERVERS)
def table_url(request: pytest.FixtureRequest) -> str:
    return with_option(request.getfixturevalue(f"{request.param}_url"), "table", unique("cut_"))


@pytest.fixture
def healthy(table_url: str) -> Iterator[Do]:
    do = open_migrated(table_url, "sync")
    yield do
    do.close()


@pytest.fixture
def proxy(table_url: str) -> Iterator[MysqlProxy]:
    proxy = MysqlProxy(table_url)
    yield proxy
    proxy.close()


def through(proxy: MysqlProxy, colour: str) -> Do:
    return open_do(with_option(proxy.url, "pool", "1"), colour)


def points(messages: list[str]) -> list[tuple[int, Side]]:
    numbered = list(enumerate(messages, start=1))
    requests = [number for number, message in numbered if message == ">Q"]
    kept = sorted({*(number for number, _ in (*numbered[:EDGE], *numbered[-EDGE:])), *requests})
    cuts: list[tuple[int, Side]] = [(number, side) for number in kept for side in ("before", "after")]
    return cuts + [(number, "swallow") for number in requests]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("colour", COLOURS)
def test_cut_around_the_messages(proxy: MysqlProxy, healthy: Do, colour: str, case: Case) -> None:
    do = through(proxy, colour)
    told: dict[str, set[str]] = {"before": set(), "after": set(), "swallow": set()}
    try:
        op = case.make(healthy, unique())
        warm(do)
        proxy.count()
        do(op)
        for number, side in points(list(proxy.seen)):
            op = case.make(healthy, unique())
            warm(do)
            proxy.cut_at(number, side)
            reply, how = sent(do, op, healthy)
            assert proxy.was_cut(), f"message {number} never came"
            check_truth(healthy, case, op, reply)
            told[side].add(how)
    finally:
        do.close()
    # Not vacuous: a request or a reply that was cut off is never taken for one; a whole reply is believed.
    assert told == {"before": {"unclear"}, "after": {"unclear", "told"}, "swallow": {"unclear"}}


@pytest.mark.parametrize("colour", COLOURS)
def test_cut_a_batch(proxy: MysqlProxy, healthy: Do, colour: str) -> None:
    """Three claims in one transaction: all of them or none, however often they are sent."""
    do = through(proxy, colour)
    try:
        warm(do)
        proxy.count()
        do.many([asked(unique()) for _ in range(3)])
        for number, side in points(list(proxy.seen)):
            batch = [asked(unique()) for _ in range(3)]
            warm(do)
            proxy.cut_at(number, side)
            cut_batch(do, healthy, batch)
            assert proxy.was_cut()
    finally:
        do.close()


def test_a_rival_between_the_cut_and_the_resending(proxy: MysqlProxy, healthy: Do) -> None:
    """Exactly one of two claimers is told that the key is its own, whoever comes first after the cut."""
    do = through(proxy, "sync")
    try:
        warm(do)
        proxy.count()
        do(asked(unique()))
        for number, side in points(list(proxy.seen)):
            mine = asked(unique())
            warm(do)
            proxy.cut_at(number, side)
            first, theirs = both(do, healthy, mine, claim(mine.key, lease=LEASE, now=None))
            assert [first.granted, theirs.granted].count(True) == 1
            assert first.record is not None
            assert stored(healthy, mine).fence == first.record.fence
            assert (first.record.token == mine.token) is first.granted
    finally:
        do.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_once_through_every_cut(proxy: MysqlProxy, healthy: Do, table_url: str, colour: str) -> None:
    """A caller that got a result has had exactly one effect, and nobody ever has two."""
    calls = Calls(with_option(proxy.url, "pool", "1"), colour)
    fresh = Calls(table_url, colour)
    try:
        calls.warm()
        proxy.count()
        assert calls(unique()) == 1
        for number, side in points(list(proxy.seen)):
            calls.warm()
            proxy.cut_at(number, side)
            key = unique()
            assert calls(key) == 1
            assert proxy.was_cut()
            assert calls.effects[key] == 1
            assert fresh(key) == 1, "a replay gives the first result"
            assert key not in fresh.effects
    finally:
        calls.close()
        fresh.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_reset_is_noticed(proxy: MysqlProxy, healthy: Do, colour: str) -> None:
    """An idle connection that was reset is not used at all: the pool looks before it gives one out."""
    do = through(proxy, colour)
    try:
        warm(do)
        proxy.raw("reset")
        proxy.raw("")
        op = asked(unique())
        reply, how = sent(do, op, healthy)
        assert how in ("told", "unclear")  # the reset may still be on its way
        check_truth(healthy, CASES[0], op, reply)
    finally:
        do.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_key_whose_row_is_held_is_busy_in_time(table_url: str, healthy: Do, colour: str) -> None:
    """I28: a claim meets a row that an open transaction holds; it is told to come back, and nothing was done."""
    import pymysql

    from retrysafe.stores.mysql.dialect import parse_url

    at = parse_url(table_url)
    op = claim(unique(), lease=0.0, on_lapse="rerun", now=None)
    assert healthy(op).granted
    do = open_do(table_url, colour)
    try:
        with pymysql.connect(**at.connect) as holder, holder.cursor() as cursor:
            cursor.execute(f"SELECT * FROM `{at.names.bare}_keys` WHERE id = %s FOR UPDATE", [op.id])
            refused = do(claim(op.key, lease=LEASE, on_lapse="rerun", now=None))
            assert (refused.granted, refused.record) == (False, None)
            holder.rollback()
        assert do(claim(op.key, lease=LEASE, on_lapse="rerun", now=None)).granted
    finally:
        do.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_falls_silent_does_not_hold_its_caller(
    proxy: MysqlProxy, healthy: Do, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I27: connected, and not a word: unclear after a while, and the next connection is a fresh one."""
    monkeypatch.setattr(aio, "SILENCE", 0.3)
    monkeypatch.setattr(pool, "SILENCE", 0.3)
    do = through(proxy, colour)
    try:
        warm(do)
        proxy.raw("stall")
        op = asked(unique())
        with pytest.raises(StoreUnclear):
            do(op)
        proxy.raw("")
        check_truth(healthy, CASES[0], op, resend(lambda: do(op)))
    finally:
        do.close()


def test_nobody_there_means_unavailable() -> None:
    from tests.servers.ports import free_port

    for colour in COLOURS:
        do = open_do(f"mysql://root@127.0.0.1:{free_port()}/test", colour)
        with pytest.raises(StoreUnavailable, match="is it up"):
            do(asked("k"))
        do.close()
