"""The link to MongoDB is cut at every message of every operation, on both sides of the message (I11).

What is done at each cut is told in cutting.py. Also what an open transaction does to a claim, and a server that falls
silent.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.mongo.settings import parse_url
from retrysafe.testing.builders import claim
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
from tests.faults.mongo_proxy import MongoProxy
from tests.faults.story import CASES, LEASE, Case, asked, check_truth, resend, stored, warm
from tests.opening import COLOURS, open_do, unique, with_option
from tests.servers.ports import free_port

pytestmark = [
    pytest.mark.store("mongodb"),
    # pymongo's async client drops a socket when it is closed while it opens one again, as it does after each cut.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]


@pytest.fixture(autouse=True)
def dropped_sockets_are_collected_here() -> Iterator[None]:
    """And not in the middle of somebody else's test."""
    yield
    gc.collect()


@pytest.fixture(scope="module")
def table_url(mongodb_url: str) -> str:
    return with_option(mongodb_url, "collection", unique("cut_"))


@pytest.fixture
def cut(table_url: str) -> Iterator[Cutting]:
    proxy = MongoProxy(table_url)
    with cutting(proxy, table_url, with_option(proxy.url, "maxPoolSize", "1"), points) as made:
        yield made


def points(messages: list[str]) -> Points:
    """Every message."""
    numbers = range(1, len(messages) + 1)
    return both_sides(list(numbers), [number for number in numbers if messages[number - 1] == ">"])


WAYS = [
    # The colours differ in how they wait, not in what they send; after each cut the driver waits half a second.
    pytest.param(
        colour,
        case,
        id=f"{colour}-{case.name}",
        marks=[pytest.mark.campaign] if colour == "async" and case.name not in ("claim", "complete") else [],
    )
    for colour in COLOURS
    for case in CASES
]


@pytest.mark.parametrize(("colour", "case"), WAYS)
def test_cut_at_every_message(cut: Cutting, colour: str, case: Case) -> None:
    """One command, one reply."""
    cut_a_case(cut, colour, case, messages=[">", "<"])


@pytest.mark.parametrize("colour", COLOURS)
def test_cut_a_batch(cut: Cutting, colour: str) -> None:
    """One command to read the clock, and one to write them all."""
    cut_a_batch(cut, colour, messages=[">", "<", ">", "<"])


def test_a_rival_between_the_cut_and_the_resending(cut: Cutting) -> None:
    cut_between_rivals(cut)


@pytest.mark.parametrize("colour", COLOURS)
def test_once_through_every_cut(cut: Cutting, colour: str) -> None:
    cut_under_once(cut, colour)


@pytest.mark.parametrize("colour", COLOURS)
def test_a_reset_is_noticed(cut: Cutting, colour: str) -> None:
    """Whoever comes first: the driver's watch, or we."""
    after_a_reset(cut, colour, ["told", "unclear", "unavailable"])


@pytest.mark.parametrize("colour", COLOURS)
def test_a_key_that_a_transaction_holds_is_busy_in_time(cut: Cutting, colour: str) -> None:
    """I28: a claim meets a document that an open transaction has written; it is told to come back, and nothing was
    done. What is committed can still be read."""
    at = parse_url(cut.beside)
    op = claim(unique(), lease=0.0, on_lapse="rerun", now=None)
    assert cut.healthy(op).granted
    do = open_do(with_option(cut.beside, "patience", "0.2"), colour)
    client: MongoClient[Any] = MongoClient(at.url)
    try:
        with client.start_session() as session, session.start_transaction():
            keys = client[at.database][at.names.keys]
            assert keys.update_one({"_id": op.id}, {"$set": {"note": "held"}}, session=session).modified_count == 1
            refused = do(claim(op.key, lease=LEASE, on_lapse="rerun", now=None))
            assert (refused.granted, refused.record) == (False, None)
            assert stored(do, op).note == ""
            session.abort_transaction()
        again = open_do(cut.beside, colour)
        assert again(claim(op.key, lease=LEASE, on_lapse="rerun", now=None)).granted
        again.close()
    finally:
        do.close()
        client.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_falls_silent_does_not_hold_its_caller(cut: Cutting, colour: str) -> None:
    """I27: connected, and not a word: an error after a while, and the truth when it is sent again."""
    do = open_do(with_option(cut.through, "socketTimeoutMS", "300"), colour)
    try:
        warm(do)
        cut.proxy.raw("stall")
        op = asked(unique())
        with pytest.raises(StoreUnclear):
            do(op)
        cut.proxy.raw("reset")
        cut.proxy.raw("")
        check_truth(cut.healthy, CASES[0], op, resend(lambda: do(op)))
    finally:
        do.close()


def test_nobody_there_means_unavailable() -> None:
    for colour in COLOURS:
        do = open_do(f"mongodb://127.0.0.1:{free_port()}/test?serverSelectionTimeoutMS=200", colour)
        with pytest.raises(StoreUnavailable, match="is it up") as told:
            do(asked("k"))
        assert not isinstance(told.value, StoreUnclear)
        do.close()
