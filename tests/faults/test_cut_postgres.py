"""The link to PostgreSQL is cut at every message boundary of every operation, on both sides of the message (I11).

A first pass counts the boundaries on a healthy connection; then each is cut, on a pool of one. Whoever is told
StoreUnclear sends the same operation again, as the engine does, and must learn the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.testing import Do, LoopThread
from retrysafe.testing.builders import claim
from tests.faults.proxy import PostgresProxy, Side
from tests.faults.story import CASES, LEASE, Case, asked, check_truth, eventually, resend, rival, sent, stored, warm
from tests.opening import COLOURS, open_do, open_migrated, unique, with_option

pytestmark = pytest.mark.store("postgres")


@pytest.fixture(scope="module")
def table_url(postgres_url: str) -> str:
    return with_option(postgres_url, "table", unique("cut_"))


@pytest.fixture
def healthy(table_url: str) -> Iterator[Do]:
    do = open_migrated(table_url, "sync")
    yield do
    do.close()


@pytest.fixture
def proxy(table_url: str) -> Iterator[PostgresProxy]:
    proxy = PostgresProxy(table_url)
    yield proxy
    proxy.close()


def through(proxy: PostgresProxy, colour: str) -> Do:
    return open_do(with_option(proxy.url, "pool", "1"), colour)


def boundaries(proxy: PostgresProxy) -> list[str]:
    """What has passed since `count`; every exchange ends with the server's ReadyForQuery."""
    assert proxy.seen
    assert proxy.seen[-1] == "<Z"
    return list(proxy.seen)


def points(messages: list[str]) -> list[tuple[int, Side]]:
    """Every boundary, from both sides; and every request that is carried out while its answer is swallowed."""
    numbered = list(enumerate(messages, start=1))
    cuts: list[tuple[int, Side]] = [(number, side) for number, _ in numbered for side in ("before", "after")]
    return cuts + [(number, "swallow") for number, message in numbered if message in (">S", ">Q")]


WAYS = [
    pytest.param("sync", False, id="sync-first"),
    pytest.param("async", False, id="async-first"),
    pytest.param("sync", True, id="sync-prepared"),
    # The colours differ in how they wait, not in what they send: one of them shows the prepared statements.
    pytest.param("async", True, id="async-prepared", marks=pytest.mark.campaign),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("colour", "prepared"), WAYS)
def test_cut_at_every_message(proxy: PostgresProxy, healthy: Do, colour: str, prepared: bool, case: Case) -> None:
    """`prepared`: the statement has become a server-side prepared one, which takes other messages."""
    do = through(proxy, colour)

    def ready(key: str) -> Any:
        op = case.make(healthy, key)
        if prepared:
            for number in range(6):
                used = case.make(healthy, f"{key}-{number}")
                resend(partial(do, used))
        warm(do)
        return op

    told: dict[str, set[str]] = {"before": set(), "after": set(), "swallow": set()}
    try:
        op = ready(unique())
        proxy.count()
        do(op)
        for number, side in points(boundaries(proxy)):
            op = ready(unique())
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
def test_cut_a_batch(proxy: PostgresProxy, healthy: Do, colour: str) -> None:
    """Three claims in one transaction: all of them or none, however often they are sent."""
    do = through(proxy, colour)
    try:
        warm(do)
        proxy.count()
        do.many([asked(unique()) for _ in range(3)])
        for number, side in points(boundaries(proxy)):
            batch = [asked(unique()) for _ in range(3)]
            warm(do)
            proxy.cut_at(number, side)
            cut_batch(do, healthy, batch)
            assert proxy.was_cut()
    finally:
        do.close()


def cut_batch(do: Do, healthy: Do, batch: list[Claim]) -> None:
    try:
        replies = do.many(batch)
    except StoreUnclear:  # and nothing else: the request had left, or begun to
        replies = resend(lambda: do.many(batch))
    for op, reply in zip(batch, replies, strict=True):
        assert reply.granted is True
        assert stored(healthy, op).fence == (1, op.token) == reply.record.fence
        rival(healthy, stored(healthy, op))


def test_a_rival_between_the_cut_and_the_resending(proxy: PostgresProxy, healthy: Do) -> None:
    """Exactly one of two claimers is told that the key is its own, whoever comes first after the cut."""
    do = through(proxy, "sync")
    try:
        warm(do)
        proxy.count()
        do(asked(unique()))
        for number, side in points(boundaries(proxy)):
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


def both(do: Do, healthy: Do, mine: Claim, other: Claim) -> tuple[ClaimReply, ClaimReply]:
    """Mine through the cut, the other's right behind it, and then mine again if it is unclear how it ended."""
    try:
        first = do(mine)
    except StoreUnclear:
        theirs = healthy(other)
        return resend(lambda: do(mine)), theirs
    return first, healthy(other)


# The whole engine ---------------------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_once_through_every_cut(proxy: PostgresProxy, healthy: Do, table_url: str, colour: str) -> None:
    """A caller that got a result has had exactly one effect, and nobody ever has two."""
    calls = Calls(with_option(proxy.url, "pool", "1"), colour)
    fresh = Calls(table_url, colour)
    try:
        calls.warm()
        proxy.count()
        assert calls(unique()) == 1
        for number, side in points(boundaries(proxy)):
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


class Calls:
    """A function under `once`, in either colour, that counts its effects per key."""

    def __init__(self, url: str, colour: str) -> None:
        self.effects: dict[str, int] = {}
        self.safe = RetrySafe(url)
        self._loop = LoopThread() if colour == "async" else None
        once = self.safe.once("charge:{key}", scope="cut")

        @once
        def charge(key: str) -> int:
            self.effects[key] = self.effects.get(key, 0) + 1
            return self.effects[key]

        @once
        async def acharge(key: str) -> int:
            await asyncio.sleep(0)
            self.effects[key] = self.effects.get(key, 0) + 1
            return self.effects[key]

        self._charge, self._acharge = charge, acharge

    def __call__(self, key: str) -> int:
        return self._charge(key) if self._loop is None else self._loop.run(self._acharge(key))

    def warm(self) -> None:
        eventually(lambda: self(unique("warm")), StoreUnavailable)

    def close(self) -> None:
        if self._loop is None:
            self.safe.close()
        else:
            self._loop.run(self.safe.aclose())
            self._loop.close()


# Below the level of messages ----------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_a_reset_is_like_a_cut(proxy: PostgresProxy, healthy: Do, colour: str) -> None:
    do = through(proxy, colour)
    try:
        warm(do)
        proxy.raw("reset")
        proxy.raw("")
        op = asked(unique())
        reply, how = sent(do, op, healthy)
        assert how == "unclear"
        check_truth(healthy, CASES[0], op, reply)
    finally:
        do.close()


@pytest.mark.parametrize("colour", COLOURS)
def test_one_byte_at_a_time(proxy: PostgresProxy, healthy: Do, colour: str) -> None:
    proxy.raw("trickle")
    do = through(proxy, colour)
    try:
        op = asked(unique())
        reply = do(op)
        check_truth(healthy, CASES[0], op, reply)
        assert stored(healthy, op).state is State.CLAIMED
    finally:
        do.close()
