"""Callers that claim a key and complete it, one after the other, and write down what they were told.

Like the engine they send again what was refused or unclear. What they were told is compared with what is there.
"""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from typing import Any, NamedTuple

from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.errors import StoreOutage
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing.builders import complete
from tests.faults.story import asked, eventually
from tests.opening import unique
from tests.waiting import until

WORKERS = 4
PATIENCE = 120.0


class Told(NamedTuple):
    """An operation that was acknowledged: the record it is about, and in which state it is since."""

    id: bytes
    state: State


class Load:
    """Begins when it is made, ends with `stop`."""

    def __init__(self, url: str, colour: str, workers: int = WORKERS) -> None:
        self.told: list[Told] = []
        self.troubles: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._failed: list[BaseException] = []
        self._url = url
        self._threads = [
            threading.Thread(target=self._threaded if colour == "sync" else self._looped, args=(count,), daemon=True)
            for count in ([1] * workers if colour == "sync" else [workers])
        ]
        self._store: Store | None = None
        if colour == "sync":
            self._store = open_store(url)
        for thread in self._threads:
            thread.start()

    @property
    def completed(self) -> int:
        return sum(each.state is State.COMPLETED for each in self.told)

    def go_on(self, keys: int = 20) -> None:
        """Until so many more keys were completed."""
        before = self.completed
        until(lambda: self.completed >= before + keys or bool(self._failed), PATIENCE, f"{keys} more keys")
        assert not self._failed, self._failed

    def stop(self) -> list[Told]:
        self._stopped.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()
        if self._store is not None:
            self._store.close()
        assert not self._failed, self._failed
        return self.told

    def _threaded(self, _: int) -> None:
        assert self._store is not None
        try:
            while not self._stopped.is_set():
                pair = _pair()
                op = next(pair)
                while op is not None and not self._stopped.is_set():
                    try:
                        op = self._heard(pair, self._store.execute(op))
                    except StoreOutage as error:
                        self.troubles[type(error).__name__] += 1
                        self._stopped.wait(0.005)
        except BaseException as error:
            self._failed.append(error)

    def _looped(self, workers: int) -> None:
        async def crowd() -> None:
            store = open_async_store(self._url)
            await asyncio.gather(*(self._task(store) for _ in range(workers)))
            await store.aclose()

        try:
            asyncio.run(crowd())
        except BaseException as error:
            self._failed.append(error)

    async def _task(self, store: Any) -> None:
        while not self._stopped.is_set():
            pair = _pair()
            op = next(pair)
            while op is not None and not self._stopped.is_set():
                try:
                    op = self._heard(pair, await store.execute(op))
                except StoreOutage as error:
                    self.troubles[type(error).__name__] += 1
                    await asyncio.sleep(0.005)

    def _heard(self, pair: Any, reply: Any) -> Any:
        told, op = pair.send(reply)
        if told is not None:
            self.told.append(told)
        return op


def _pair() -> Any:
    """One key's life: yields operations, is sent replies, yields what was told and the next operation."""
    claim = asked(unique())
    reply = yield claim
    assert reply.granted, "nobody else wants this key"
    done = yield Told(claim.id, State.CLAIMED), complete(reply, claim.id, now=None)
    # Its own fence is refused only if the claim was lost in between; `lost` finds that.
    yield (Told(claim.id, State.COMPLETED) if done else None), None


def lost(store: Store, told: list[Told]) -> list[Told]:
    """What was acknowledged and is not there, or less far than it was said to be."""
    return [each for each in told if not _kept(store, each)]


def _kept(store: Store, told: Told) -> bool:
    found = eventually(lambda: store.execute(Lookup(told.id)), StoreOutage).record
    if found is None:
        return False
    assert found.attempt == 1, "somebody was granted it a second time"
    if found.state is State.COMPLETED:
        assert found.answer.body == told.id
    return told.state is State.CLAIMED or found.state is State.COMPLETED
