"""The link to MongoDB is cut at every message of every operation, on both sides of the message (I11).

As test_cut_postgres.py: whoever is told StoreUnclear sends the same operation again, as the engine does, and must learn
the truth. Also what an open transaction does to a claim, and a server that falls silent.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.mongo.settings import parse_url
from retrysafe.testing import Do
from retrysafe.testing.builders import claim
from tests.faults.mongo_proxy import MongoProxy
from tests.faults.proxy import Side
from tests.faults.story import CASES, LEASE, Case, asked, check_truth, resend, sent, stored, warm
from tests.faults.test_cut_postgres import Calls, both, cut_batch
from tests.opening import COLOURS, open_do, open_migrated, unique, with_option
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
def healthy(table_url: str) -> Iterator[Do]:
    do = open_migrated(table_url, "sync")
    yield do
    do.close()


@pytest.fixture
def proxy(table_url: str) -> Iterator[MongoProxy]:
    proxy = MongoProxy(table_url)
    yield proxy
    proxy.close()


def through(proxy: MongoProxy, colour: str) -> Do:
    return open_do(with_option(proxy.url, "maxPoolSize", "1"), colour)


def points(messages: list[str]) -> list[tuple[int, Side]]:
    """Every message, from both sides; and every request that is carried out while its answer is swallowed."""
    numbered = list(enumerate(messages, start=1))
    cuts: list[tuple[int, Side]] = [(number, side) for number, _ in numbered for side in ("before", "after")]
    return cuts + [(number, "swallow") for number, message in numbered if message == ">"]


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
def test_cut_at_every_message(proxy: MongoProxy, healthy: Do, colour: str, case: Case) -> None:
    do = through(proxy, colour)
    told: dict[str, set[str]] = {"before": set(), "after": set(), "swallow": set()}
    try:
        op = case.make(healthy, unique())
        warm(do)
        proxy.count()
        do(op)
        assert proxy.seen == [">", "<"], "one command, one reply"
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
def test_cut_a_batch(proxy: MongoProxy, healthy: Do, colour: str) -> None:
    """Three claims in one command: each of them once, however often they are sent."""
    do = through(proxy, colour)
    try:
        warm(do)
        proxy.count()
        do.many([asked(unique()) for _ in range(3)])
        assert proxy.seen == [">", "<", ">", "<"], "one to write them all, and one to read"
        for number, side in points(list(proxy.seen)):
            batch = [asked(unique()) for _ in range(3)]
            warm(do)
            proxy.cut_at(number, side)
            cut_batch(do, healthy, batch)
            assert proxy.was_cut()
    finally:
        do.close()


def test_a_rival_between_the_cut_and_the_resending(proxy: MongoProxy, healthy: Do) -> None:
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
def test_once_through_every_cut(proxy: MongoProxy, healthy: Do, table_url: str, colour: str) -> None:
    """A caller that got a result has had exactly one effect, and nobody ever has two."""
    calls = Calls(with_option(proxy.url, "maxPoolSize", "1"), colour)
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
def test_a_reset_is_noticed(proxy: MongoProxy, healthy: Do, colour: str) -> None:
    do = through(proxy, colour)
    try:
        warm(do)
        proxy.raw("reset")
        proxy.raw("")
        op = asked(unique())
        reply, how = sent(do, op, healthy)
        assert how in ("told", "unclear", "unavailable")  # whoever notices first: the driver's watch, or we
        check_truth(healthy, CASES[0], op, reply)
    finally:
        do.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_key_that_a_transaction_holds_is_busy_in_time(table_url: str, healthy: Do, colour: str) -> None:
    """I28: a claim meets a document that an open transaction has written; it is told to come back, and nothing was
    done. What is committed can still be read."""
    at = parse_url(table_url)
    op = claim(unique(), lease=0.0, on_lapse="rerun", now=None)
    assert healthy(op).granted
    do = open_do(with_option(table_url, "patience", "0.2"), colour)
    client: MongoClient[Any] = MongoClient(at.url)
    try:
        with client.start_session() as session, session.start_transaction():
            keys = client[at.database][at.names.keys]
            assert keys.update_one({"_id": op.id}, {"$set": {"note": "held"}}, session=session).modified_count == 1
            refused = do(claim(op.key, lease=LEASE, on_lapse="rerun", now=None))
            assert (refused.granted, refused.record) == (False, None)
            assert stored(do, op).note == ""
            session.abort_transaction()
        again = open_do(table_url, colour)
        assert again(claim(op.key, lease=LEASE, on_lapse="rerun", now=None)).granted
        again.close()
    finally:
        do.close()
        client.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_a_server_that_falls_silent_does_not_hold_its_caller(proxy: MongoProxy, healthy: Do, colour: str) -> None:
    """I27: connected, and not a word: an error after a while, and the truth when it is sent again."""
    do = open_do(with_option(with_option(proxy.url, "maxPoolSize", "1"), "socketTimeoutMS", "300"), colour)
    try:
        warm(do)
        proxy.raw("stall")
        op = asked(unique())
        with pytest.raises(StoreUnclear):
            do(op)
        proxy.raw("reset")
        proxy.raw("")
        check_truth(healthy, CASES[0], op, resend(lambda: do(op)))
    finally:
        do.close()


def test_nobody_there_means_unavailable() -> None:
    for colour in COLOURS:
        do = open_do(f"mongodb://127.0.0.1:{free_port()}/test?serverSelectionTimeoutMS=200", colour)
        with pytest.raises(StoreUnavailable, match="is it up") as told:
            do(asked("k"))
        assert not isinstance(told.value, StoreUnclear)
        do.close()
