"""The story of a link that is cut around every message of an operation (I11), told once for the stores behind a proxy.

A first pass counts the messages on a healthy connection; then each is cut, on a pool of one. Whoever is told
StoreUnclear sends the same operation again, as the engine does, and must learn the truth.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

from retrysafe import RetrySafe
from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.errors import StoreOutage, StoreUnclear
from retrysafe.testing import Do, LoopThread
from retrysafe.testing.builders import claim
from tests.faults.proxy import PostgresProxy, Side
from tests.faults.story import CASES, LEASE, Case, asked, check_truth, eventually, resend, rival, sent, stored, warm
from tests.opening import open_do, open_migrated, unique

Points = list[tuple[int, Side]]


def both_sides(numbers: list[int], requests: list[int]) -> Points:
    """Messages that are cut before and after; and requests that are carried out while their answer is swallowed."""
    cuts: Points = [(number, side) for number in numbers for side in ("before", "after")]
    return cuts + [(number, "swallow") for number in requests]


@dataclass
class Cutting:
    """A store through a proxy, on a pool of one, and the same store beside it."""

    proxy: PostgresProxy
    healthy: Do
    through: str
    """The URL that leads through the proxy."""
    beside: str
    points: Callable[[list[str]], Points]
    """Where to cut, by the messages that passed when nothing was."""

    @contextmanager
    def opened(self, colour: str) -> Iterator[Do]:
        do = open_do(self.through, colour)
        try:
            yield do
        finally:
            do.close()

    def cuts(
        self, once: Callable[[], Any], ready: Callable[[], Any], messages: list[str] | None = None
    ) -> Iterator[Side]:
        """Count what passes while it is done once; then, for each point, a connection that is ready and will be cut
        there. `messages` is what must pass, where the test knows it."""
        ready()
        self.proxy.count()
        once()
        seen = list(self.proxy.seen)
        assert messages is None or seen == messages
        for number, side in self.points(seen):
            ready()
            self.proxy.cut_at(number, side)
            yield side
            assert self.proxy.was_cut(), f"message {number} never came"


@contextmanager
def cutting(proxy: PostgresProxy, url: str, through: str, points: Callable[[list[str]], Points]) -> Iterator[Cutting]:
    """What the fixtures of the files beside this one give; `url` leads straight to the store."""
    healthy = open_migrated(url, "sync")
    try:
        yield Cutting(proxy, healthy, through, url, points)
    finally:
        proxy.close()
        healthy.close()


# One operation ------------------------------------------------------------------------------------


def cut_a_case(
    cut: Cutting,
    colour: str,
    case: Case,
    ready: Callable[[Do], None] = warm,
    messages: list[str] | None = None,
) -> None:
    told: dict[str, set[str]] = {"before": set(), "after": set(), "swallow": set()}
    with cut.opened(colour) as do:

        def once() -> None:
            do(case.make(cut.healthy, unique()))

        for side in cut.cuts(once, lambda: ready(do), messages):
            op = case.make(cut.healthy, unique())
            reply, how = sent(do, op, cut.healthy)
            check_truth(cut.healthy, case, op, reply)
            told[side].add(how)
    # Not vacuous: a request or a reply that was cut off is never taken for one; a whole reply is believed.
    assert told == {"before": {"unclear"}, "after": {"unclear", "told"}, "swallow": {"unclear"}}


def after_a_reset(cut: Cutting, colour: str, hows: Container[str]) -> None:
    """The truth is told, and how the first sending ended is one of what the store may notice."""
    with cut.opened(colour) as do:
        warm(do)
        cut.proxy.raw("reset")
        cut.proxy.raw("")
        op = asked(unique())
        reply, how = sent(do, op, cut.healthy)
        assert how in hows
        check_truth(cut.healthy, CASES[0], op, reply)


# Several ------------------------------------------------------------------------------------------


def cut_a_batch(cut: Cutting, colour: str, messages: list[str] | None = None) -> None:
    """Three claims: each of them once, however often they are sent."""

    def three() -> list[Claim]:
        return [asked(unique()) for _ in range(3)]

    with cut.opened(colour) as do:
        for _ in cut.cuts(lambda: do.many(three()), lambda: warm(do), messages):
            batch = three()
            try:
                replies = do.many(batch)
            except StoreUnclear:  # and nothing else: the request had left, or begun to
                replies = resend(partial(do.many, batch))
            for op, reply in zip(batch, replies, strict=True):
                assert reply.granted is True
                assert stored(cut.healthy, op).fence == (1, op.token) == reply.record.fence
                rival(cut.healthy, stored(cut.healthy, op))


def cut_between_rivals(cut: Cutting) -> None:
    """Exactly one of two claimers is told that the key is its own, whoever comes first after the cut."""
    with cut.opened("sync") as do:
        for _ in cut.cuts(lambda: do(asked(unique())), lambda: warm(do)):
            mine = asked(unique())
            first, theirs = both(do, cut.healthy, mine, claim(mine.key, lease=LEASE, now=None))
            assert [first.granted, theirs.granted].count(True) == 1
            assert first.record is not None
            assert stored(cut.healthy, mine).fence == first.record.fence
            assert (first.record.token == mine.token) is first.granted


def both(do: Do, healthy: Do, mine: Claim, other: Claim) -> tuple[ClaimReply, ClaimReply]:
    """Mine through the cut, the other's right behind it, and then mine again if it is unclear how it ended."""
    try:
        first = do(mine)
    except StoreUnclear:
        theirs = healthy(other)
        return resend(lambda: do(mine)), theirs
    return first, healthy(other)


# The whole engine ---------------------------------------------------------------------------------


def cut_under_once(cut: Cutting, colour: str) -> None:
    """A caller that got a result has had exactly one effect, and nobody ever has two."""
    calls, fresh = Calls(cut.through, colour), Calls(cut.beside, colour)
    try:
        for _ in cut.cuts(lambda: calls(unique()), calls.warm):
            key = unique()
            assert calls(key) == 1
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
        eventually(lambda: self(unique("warm")), StoreOutage)

    def close(self) -> None:
        if self._loop is None:
            self.safe.close()
        else:
            self._loop.run(self.safe.aclose())
            self._loop.close()
