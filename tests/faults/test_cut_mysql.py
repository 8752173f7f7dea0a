"""The link to MySQL and to MariaDB is cut around the messages of every operation, on both sides of the message (I11).

What is done at each cut is told in cutting.py. A claim's answer is some thirty messages, most of them the names of
columns: of those only the first and the last are cut.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pymysql
import pytest

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.mysql import aio, pool
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.testing.builders import claim, complete
from tests.faults.cutting import (
    Cutting,
    Points,
    after_a_reset,
    both_sides,
    cut_a_batch,
    cut_a_case,
    cut_between_rivals,
    cut_under_once,
    cutting,
)
from tests.faults.mysql_proxy import MysqlProxy
from tests.faults.story import CASES, LEASE, Case, asked, check_truth, resend, warm
from tests.opening import COLOURS, open_do, unique, with_option
from tests.servers.ports import free_port

SERVERS = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("mysql", "mariadb")]
EDGE = 3
"""Messages at the beginning and at the end of an exchange that are cut."""


@pytest.fixture(scope="module", params=SERVERS)
def table_url(request: pytest.FixtureRequest) -> str:
    return with_option(request.getfixturevalue(f"{request.param}_url"), "table", unique("cut_"))


@pytest.fixture
def cut(table_url: str) -> Iterator[Cutting]:
    proxy = MysqlProxy(table_url)
    with cutting(proxy, table_url, with_option(proxy.url, "pool", "1"), points) as made:
        yield made


def points(messages: list[str]) -> Points:
    numbers = range(1, len(messages) + 1)
    requests = [number for number in numbers if messages[number - 1] == ">Q"]
    return both_sides(sorted({*numbers[:EDGE], *numbers[-EDGE:], *requests}), requests)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("colour", COLOURS)
def test_cut_around_the_messages(cut: Cutting, colour: str, case: Case) -> None:
    cut_a_case(cut, colour, case)


@pytest.mark.parametrize("colour", COLOURS)
def test_cut_a_batch(cut: Cutting, colour: str) -> None:
    """In one transaction: all of them or none."""
    cut_a_batch(cut, colour)


@pytest.mark.parametrize("colour", COLOURS)
def test_cut_a_batch_of_two_kinds(cut: Cutting, colour: str) -> None:
    """The completions and the claims of a batch are one transaction in one packet."""

    def mixed() -> list[Op[Any]]:
        held = cut.healthy.many([asked(unique()) for _ in range(3)])
        return [*(complete(reply, b"done", now=None) for reply in held), *(asked(unique()) for _ in range(3))]

    with cut.opened(colour) as do:
        for _ in cut.cuts(lambda: do.many(mixed()), lambda: warm(do)):
            batch = mixed()
            try:
                replies = do.many(batch)
            except StoreUnclear:
                replies = resend(lambda batch=batch: do.many(batch))  # type: ignore[misc]
            assert replies[:3] == [True] * 3
            assert [reply.record.fence for reply in replies[3:]] == [(1, op.token) for op in batch[3:]]  # type: ignore[attr-defined]
            assert all(reply.granted for reply in replies[3:])


def test_a_rival_between_the_cut_and_the_resending(cut: Cutting) -> None:
    cut_between_rivals(cut)


@pytest.mark.parametrize("colour", COLOURS)
def test_once_through_every_cut(cut: Cutting, colour: str) -> None:
    cut_under_once(cut, colour)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_reset_is_noticed(cut: Cutting, colour: str) -> None:
    """An idle connection that was reset is not used at all: the pool looks before it gives one out. Unless the reset is
    still on its way."""
    after_a_reset(cut, colour, ["told", "unclear"])


@pytest.mark.parametrize("colour", COLOURS)
def test_a_key_whose_row_is_held_is_busy_in_time(cut: Cutting, colour: str) -> None:
    """I28: a claim meets a row that an open transaction holds; it is told to come back, and nothing was done."""
    at = parse_url(cut.beside)
    op = claim(unique(), lease=0.0, on_lapse="rerun", now=None)
    assert cut.healthy(op).granted
    do = open_do(cut.beside, colour)
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
    cut: Cutting, colour: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """I27: connected, and not a word: unclear after a while, and the next connection is a fresh one."""
    monkeypatch.setattr(aio, "READ_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(pool, "READ_TIMEOUT_SECONDS", 0.3)
    with cut.opened(colour) as do:
        warm(do)
        cut.proxy.raw("stall")
        op = asked(unique())
        with pytest.raises(StoreUnclear):
            do(op)
        cut.proxy.raw("")
        check_truth(cut.healthy, CASES[0], op, resend(lambda: do(op)))


def test_nobody_there_means_unavailable() -> None:
    for colour in COLOURS:
        do = open_do(f"mysql://root@127.0.0.1:{free_port()}/test", colour)
        with pytest.raises(StoreUnavailable, match="is it up"):
            do(asked("k"))
        do.close()
