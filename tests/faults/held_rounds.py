"""Calls whose rows a stranger locks, calls that have nothing to do with them, and a rival that runs those if it can."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from retrysafe import RetrySafe, current_lease
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.errors import InProgress, LeaseLost, OutcomeUnrecorded
from retrysafe.policy import Policy
from tests.faults.row_holders import RowHolder
from tests.opening import unique
from tests.waiting import until

PATIENCE = 120.0
FREE = 4
LEASE = 2.0
POLICY = Policy.preset("function", lease=LEASE, abandoned="rerun", busy="conflict")


class Round:
    """Calls whose rows a stranger locks, and four that have nothing to do with them; another process, so to say, asks
    for those four all the time, and would run them if a lease lapsed."""

    def __init__(self, url: str, table: str, other: RowHolder, held: int, *, ending: bool) -> None:
        self.table, self.other = table, other
        self.held, self.free = range(held), range(held, held + FREE)
        self.ending = ending
        """Whether the held calls end while their rows are held: then it is their completions that wait."""
        self.safe, self.rival = RetrySafe(url), RetrySafe(url)
        self.name = unique("round")
        self.ids: dict[int, bytes] = {}
        self.runs: Counter[int] = Counter()
        self.locked, self.over = threading.Event(), threading.Event()

    def begin(self, n: int) -> bool:
        """Whether this is a call that is to be kept busy: a rival's run is only counted."""
        self.runs[n] += 1
        lease = current_lease()
        assert lease is not None
        self.ids.setdefault(n, lease.id)
        return self.runs[n] == 1

    def done(self, n: int, first: int) -> bool:
        """Whether a call has been at it for as long as it takes. A free one: two leases, by the store's clock; or until
        a rival ran it, too, because its lease was lost: the round has failed then, or the machine stood still."""
        if n in self.held:
            return self.locked.is_set() if self.ending else self.over.is_set()
        kept = self.locked.is_set() and self.lease_until(n) > first + 2 * LEASE * 1_000_000
        return kept or self.runs[n] > 1

    def lease_until(self, n: int) -> int:
        return find_record(self.rival, self.ids[n]).lease_until

    def lock_the_held(self) -> None:
        until(lambda: len(self.ids) == len(self.held) + len(self.free), PATIENCE, "all calls")
        self.other.lock(self.table, [self.ids[n] for n in self.held])
        self.locked.set()

    def compete(self) -> None:
        """Until the free ones are over: a claim that is granted is a lease that was not kept."""
        charge = self.charging(self.rival, "sync")
        while not self.over.is_set():
            for n in self.free:
                with suppress(InProgress):
                    charge(self.name, n)

    def play(self, colour: str) -> list[str]:
        """What the calls answered."""
        rival = threading.Thread(target=self.compete)
        with ThreadPoolExecutor(1) as main:
            try:
                playing = main.submit(self.sync_calls if colour == "sync" else lambda: asyncio.run(self.async_calls()))
                self.lock_the_held()
                rival.start()
                answers = playing.result(PATIENCE)
            finally:
                self.end()
        rival.join(PATIENCE)
        self.safe.close()
        self.rival.close()
        return answers

    def end(self) -> None:
        """The free ones are over, or something failed: let everybody go."""
        self.over.set()
        self.locked.set()

    def free_ones_are_over(self) -> None:
        self.other.let_go()
        self.over.set()

    def charging(self, safe: RetrySafe, colour: str) -> Any:
        """The same function for everybody: where it is written is part of the request."""

        def work(n: int) -> str:
            if self.begin(n):
                first = self.lease_until(n)
                until(lambda: self.done(n, first), PATIENCE, "its end")
            return "once"

        once = safe.once("held:{name}:{n}", scope="held", policy=POLICY)
        if colour == "sync":

            @once
            def charge(name: str, n: int) -> str:
                return work(n)

            return charge

        @once
        async def charge(name: str, n: int) -> str:  # type: ignore[no-redef]
            return await asyncio.to_thread(work, n)

        return charge

    def sync_calls(self) -> list[str]:
        charge = self.charging(self.safe, "sync")
        with ThreadPoolExecutor(len(self.held) + len(self.free)) as threads:
            calls = [threads.submit(charge, self.name, n) for n in (*self.held, *self.free)]
            free = [ended(lambda n=n: calls[n].result(PATIENCE)) for n in self.free]
            self.free_ones_are_over()
            return [ended(lambda n=n: calls[n].result(PATIENCE)) for n in self.held] + free

    async def async_calls(self) -> list[str]:
        charge = self.charging(self.safe, "async")
        threads = ThreadPoolExecutor(len(self.held) + len(self.free))
        asyncio.get_running_loop().set_default_executor(threads)
        try:
            calls = [asyncio.ensure_future(charge(self.name, n)) for n in (*self.held, *self.free)]
            await asyncio.wait(calls[self.free.start :])
            free = [ended(calls[n].result) for n in self.free]
            self.free_ones_are_over()
            await asyncio.wait(calls)
            return [ended(calls[n].result) for n in self.held] + free
        finally:
            await self.safe.aclose()


def ended(result: Callable[[], str]) -> str:
    """A completion that waits gives up with the lease, and says that it ran. A lost lease fails the round, unless the
    machine stood still in it."""
    try:
        return result()
    except OutcomeUnrecorded:
        return "once"
    except LeaseLost:
        return "lost"


@contextmanager
def longest_stall(session: RowHolder) -> Iterator[Callable[[], float]]:
    """The longest time for which neither this process nor the server got anything done."""
    over, gaps = threading.Event(), [0.0]

    def tick() -> None:
        last = time.monotonic()
        while not over.is_set():
            session.ask()
            last, before = time.monotonic(), last
            gaps.append(last - before)
            over.wait(0.02)

    ticking = threading.Thread(target=tick)
    ticking.start()
    try:
        yield lambda: max(gaps)
    finally:
        over.set()
        ticking.join(PATIENCE)


def find_record(safe: RetrySafe, record_id: bytes) -> Record:
    found = safe.execute(Lookup(record_id)).record
    assert found is not None
    return found
