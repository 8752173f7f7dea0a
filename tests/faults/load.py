"""Load to kill a server under: pairs of rivals, a thread and a task each, that want the same keys and complete what
they were granted; and what must be true of everything they were told.

Both rivals of a pair walk the same keys at their own pace. A key that the store forgot would be granted to the second
of them, too: so a lost claim is seen as a double grant, and a lost answer as a key that is not completed.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Generator, Iterable, Sequence
from itertools import count
from typing import Any, NamedTuple

from retrysafe.core.ops import Op
from retrysafe.core.states import State
from retrysafe.errors import StoreOutage
from retrysafe.stores.base import AsyncStore
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup, record_of
from tests.faults.story import LEASE, eventually

PAIRS = 3
BREATH = 0.01
"""Seconds between two attempts to reach a server that is not there."""


class Told(NamedTuple):
    """What the store acknowledged about a key: `claimed`, `completed` or `refused`, and the token that has it."""

    what: str
    key: str
    token: str


Walk = Generator[Op[Any], Any, None]


class Load:
    """Runs from its making until `stop`. `tell` is called by several threads, for each thing that was acknowledged."""

    def __init__(self, url: str, tell: Callable[[Told], object], *, first: int = 0) -> None:
        self._tell = tell
        self._over = threading.Event()
        self.interrupted = 0
        self.broken: list[BaseException] = []
        self._store, self._url = open_store(url), url
        walks = [self._walk(pair, first) for pair in range(PAIRS)]
        self._threads = [threading.Thread(target=self._run, args=(self._follow, walk), daemon=True) for walk in walks]
        tasks = [self._walk(pair, first) for pair in range(PAIRS)]
        self._threads.append(threading.Thread(target=self._run, args=(self._follow_all, tasks), daemon=True))
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join(120)
            assert not thread.is_alive(), "a caller hangs"
        self._store.close()
        if self.broken:
            raise self.broken[0]

    def _run(self, rival: Callable[[Any], object], walk: Any) -> None:
        try:
            rival(walk)
        except BaseException as error:
            self.broken.append(error)

    def _walk(self, pair: int, first: int) -> Walk:
        """One rival's way, without a colour: operations out, replies in."""
        for number in count(first):
            key = f"p{pair}-{number}"
            asked = claim(key, lease=LEASE, now=None)
            reply = yield asked
            holder = record_of(reply).token.hex()
            if not reply.granted:
                self._tell(Told("refused", key, holder))
                continue
            self._tell(Told("claimed", key, holder))
            done = yield complete(reply, key.encode(), now=None)
            assert done is True, f"{key} was somebody else's"
            self._tell(Told("completed", key, holder))

    def _follow(self, walk: Walk) -> None:
        """As the engine does: what is unclear is sent again."""
        op = next(walk)
        while not self._over.is_set():
            try:
                reply = self._store.execute(op)
            except StoreOutage:
                self.interrupted += 1
                time.sleep(BREATH)
            else:
                op = walk.send(reply)

    def _follow_all(self, walks: Sequence[Walk]) -> None:
        async def together() -> None:
            store = open_async_store(self._url)
            try:
                await asyncio.gather(*(self._afollow(store, walk) for walk in walks))
            finally:
                await store.aclose()

        asyncio.run(together())

    async def _afollow(self, store: AsyncStore, walk: Walk) -> None:
        op = next(walk)
        while not self._over.is_set():
            try:
                reply = await store.execute(op)
            except StoreOutage:
                self.interrupted += 1
                await asyncio.sleep(BREATH)
            else:
                op = walk.send(reply)


def completed(told: Iterable[Told]) -> int:
    return sum(one.what == "completed" for one in list(told))


def check(told: Iterable[Told], do: Do) -> None:
    """Nobody was granted a key that another had; what was acknowledged is there."""
    tokens: dict[str, set[str]] = defaultdict(set)
    for one in told:
        tokens[one.key].add(one.token)
    assert {key: found for key, found in tokens.items() if len(found) > 1} == {}, "a key had two owners"
    done = {one.key for one in told if one.what == "completed"}
    assert done
    for key, (token,) in tokens.items():
        record = eventually(lambda each=key: do(lookup(each, now=None)), StoreOutage).record
        assert record is not None, f"{key} was acknowledged and is lost"
        assert (record.attempt, record.token.hex()) == (1, token)
        if key in done:
            assert record.state is State.COMPLETED, f"the answer of {key} was acknowledged and is lost"
            assert record.answer.body == key.encode()
