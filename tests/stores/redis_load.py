"""A load of callers that claim a key, complete it, and go on with the next. They record what was acknowledged.

Like the engine, they send an operation again if it was refused or unclear. A test then compares what was acknowledged
with what the store has.
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
TIMEOUT_SECONDS = 120.0


class Acknowledged(NamedTuple):
    """An operation that was acknowledged: the record's id, and the state that it must have since then."""

    id: bytes
    state: State


class Load:
    """The load starts when the object is made, and ends with `stop`."""

    def __init__(self, url: str, colour: str, workers: int = WORKERS) -> None:
        self.acknowledged: list[Acknowledged] = []
        self.errors: Counter[str] = Counter()
        self._stopped = threading.Event()
        self._failed: list[BaseException] = []
        self._url = url
        self._threads = [
            threading.Thread(
                target=self._run_in_thread if colour == "sync" else self._run_in_loop, args=(count,), daemon=True
            )
            for count in ([1] * workers if colour == "sync" else [workers])
        ]
        self._store: Store | None = None
        if colour == "sync":
            self._store = open_store(url)
        for thread in self._threads:
            thread.start()

    @property
    def completed(self) -> int:
        return sum(each.state is State.COMPLETED for each in self.acknowledged)

    def wait_for_more(self, keys: int = 20) -> None:
        """Wait until this many more keys were completed."""
        before = self.completed
        until(lambda: self.completed >= before + keys or bool(self._failed), TIMEOUT_SECONDS, f"{keys} more keys")
        assert not self._failed, self._failed

    def stop(self) -> list[Acknowledged]:
        self._stopped.set()
        for thread in self._threads:
            thread.join(TIMEOUT_SECONDS)
            assert not thread.is_alive()
        if self._store is not None:
            self._store.close()
        assert not self._failed, self._failed
        return self.acknowledged

    def _run_in_thread(self, _: int) -> None:
        assert self._store is not None
        try:
            while not self._stopped.is_set():
                steps = _claim_and_complete()
                op = next(steps)
                while op is not None and not self._stopped.is_set():
                    try:
                        op = self._send_reply(steps, self._store.execute(op))
                    except StoreOutage as error:
                        self.errors[type(error).__name__] += 1
                        self._stopped.wait(0.005)
        except BaseException as error:
            self._failed.append(error)

    def _run_in_loop(self, workers: int) -> None:
        async def run_all() -> None:
            store = open_async_store(self._url)
            await asyncio.gather(*(self._run_task(store) for _ in range(workers)))
            await store.aclose()

        try:
            asyncio.run(run_all())
        except BaseException as error:
            self._failed.append(error)

    async def _run_task(self, store: Any) -> None:
        while not self._stopped.is_set():
            steps = _claim_and_complete()
            op = next(steps)
            while op is not None and not self._stopped.is_set():
                try:
                    op = self._send_reply(steps, await store.execute(op))
                except StoreOutage as error:
                    self.errors[type(error).__name__] += 1
                    await asyncio.sleep(0.005)

    def _send_reply(self, steps: Any, reply: Any) -> Any:
        acknowledged, op = steps.send(reply)
        if acknowledged is not None:
            self.acknowledged.append(acknowledged)
        return op


def _claim_and_complete() -> Any:
    """The steps of one key. Yields an operation, is sent its reply, yields what was acknowledged and the next
    operation."""
    claim = asked(unique())
    reply = yield claim
    assert reply.granted, "no other caller uses this key"
    done = yield Acknowledged(claim.id, State.CLAIMED), complete(reply, claim.id, now=None)
    # The fence is refused only if the claim was lost meanwhile. `find_lost` finds that.
    yield (Acknowledged(claim.id, State.COMPLETED) if done else None), None


def find_lost(store: Store, acknowledged: list[Acknowledged]) -> list[Acknowledged]:
    """Acknowledged operations whose record is missing, or in an earlier state than was acknowledged."""
    return [each for each in acknowledged if not _is_kept(store, each)]


def _is_kept(store: Store, acknowledged: Acknowledged) -> bool:
    found = eventually(lambda: store.execute(Lookup(acknowledged.id)), StoreOutage).record
    if found is None:
        return False
    assert found.attempt == 1, "the key was granted a second time"
    if found.state is State.COMPLETED:
        assert found.answer.body == acknowledged.id
    return acknowledged.state is State.CLAIMED or found.state is State.COMPLETED
