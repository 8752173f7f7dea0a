"""The straight way of a request against the flows, on every store: the same traffic with faults and cancellations must
tell and leave the same (both_ways.py). A few histories here; `make proof-straight` plays 100,000 exchanges
per store."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any
from unittest import mock
from uuid import uuid4

import pytest

from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.web.sync_async import AsyncExchange
from tests.opening import store_url
from tests.web.both_ways import REQUESTS, by_flows_only, draw_history, explain, play, play_wsgi

STORES = ("memory", "sqlite", "postgres", "redis")
HISTORIES = int(os.environ.get("RETRYSAFE_STRAIGHT_HISTORIES", "6"))
EXCHANGES = int(os.environ.get("RETRYSAFE_STRAIGHT_EXCHANGES", "100000"))
FIRST = int(os.environ.get("RETRYSAFE_FIRST_SEED", "0"))
WAYS = ("plain", "cancelled", "wsgi")
CASES = [(store, way) for store in STORES for way in WAYS if store == "memory" or way != "cancelled"]
"""After a cancellation the request and a background task may both release the claim. Which of them comes first is not
decided by a seed where a store has threads or sockets, and the record's note tells. So cancellations are compared on
the memory store."""


def open_both(url: str) -> tuple[Any, Any]:
    if url.startswith("memory"):
        memory = MemoryStore()
        return memory, AsyncMemoryStore(memory)
    store = open_store(url)
    store.migrate()
    return store, open_async_store(url)


async def compare(seed: int, way: str, store: Any, async_store: Any, seen: Counter[str]) -> str:
    """What differs between the two ways for one seed; empty: nothing."""
    history, name = draw_history(seed, cancels=way == "cancelled"), uuid4().hex[:12]
    if way == "wsgi":
        straight = play_wsgi(history, seed, f"s{name}", store)
        with by_flows_only():
            flows = play_wsgi(history, seed, f"f{name}", store)
    else:
        straight = await play(history, seed, f"s{name}", store, async_store)
        with by_flows_only():
            flows = await play(history, seed, f"f{name}", store, async_store)
    seen["exchanges"] += REQUESTS
    seen["calls of the store"] += len(straight.calls)
    seen["events"] += len(straight.events)
    seen["log lines"] += len(straight.logs)
    seen["cancelled"] += sum(1 for each in straight.answers if len(each) == 4 and each[3] is True)
    return explain(straight, flows)


async def compare_seeds(seeds: range, way: str, url: str) -> Counter[str]:
    seen: Counter[str] = Counter()
    store, async_store = open_both(url)
    try:
        for seed in seeds:
            difference = await compare(seed, way, store, async_store, seen)
            assert not difference, f"seed {seed}, {way}: {difference}"
    finally:
        await async_store.aclose()
        store.close()
    return seen


@pytest.mark.parametrize(("store", "way"), CASES)
async def test_both_ways_tell_and_leave_the_same(
    store: str, way: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """I1, I3, I5, I7, I8, I29: whatever the flows guarantee, the straight way does."""
    seen = await compare_seeds(range(HISTORIES), way, store_url(request, tmp_path, store))
    assert way != "cancelled" or seen["cancelled"] > HISTORIES


@pytest.mark.campaign
@pytest.mark.timeout(0)
@pytest.mark.parametrize(("store", "way"), CASES)
async def test_a_hundred_thousand_exchanges(
    store: str, way: str, request: pytest.FixtureRequest, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A third of them each way of traffic. `RETRYSAFE_FIRST_SEED` and `RETRYSAFE_STRAIGHT_EXCHANGES` split it."""
    histories = -(-EXCHANGES // (REQUESTS * len(WAYS)))
    seen = await compare_seeds(range(FIRST, FIRST + histories), way, store_url(request, tmp_path, store))
    with capsys.disabled():
        print(f"\n{store}, {way}, seeds from {FIRST}: 0 differences; {dict(seen)}")


@pytest.mark.parametrize("way", ["plain", "cancelled"])
async def test_the_comparison_notices_a_difference(way: str) -> None:
    """A straight way that replays to other requests, and one that forgets what a cancelled claim was granted."""

    def take(self: Any, task: Any, claim: Any, reply: Any) -> Any:
        if not reply.granted and reply.record is not None and reply.record.answer is not None:
            self._set_replay(task, reply.record)
            return None
        return original(self, task, claim, reply)

    original, different = AsyncExchange.take_plain_reply, 0
    memory = MemoryStore()
    for seed in range(20):
        history = draw_history(seed, cancels=way == "cancelled")
        with mock.patch.object(AsyncExchange, "take_plain_reply", take):
            straight = await play(history, seed, f"s{seed}", memory, AsyncMemoryStore(memory))
        with by_flows_only():
            different += bool(
                explain(straight, await play(history, seed, f"f{seed}", memory, AsyncMemoryStore(memory)))
            )
    assert different
