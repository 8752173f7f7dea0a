"""A row that somebody else has locked, on a real PostgreSQL: its owner's writes give up in time and are tried again,
and nobody else's lease suffers (I28, I33)."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

import psycopg
import pytest
from psycopg import sql

from retrysafe import RetrySafe, current_lease
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import InProgress, LeaseLost, OutcomeUnrecorded, StoreUnavailable
from retrysafe.policy import Policy
from retrysafe.testing.builders import advance, claim, complete, record_of, release, renew, suspect
from tests.opening import COLOURS, open_migrated, patient, unique, with_option
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

PATIENCE = 120.0
IDLE = "120s"


@pytest.fixture
def table() -> str:
    return unique("held_")


@pytest.fixture
def url(postgres_url: str, table: str) -> str:
    return with_option(patient("postgres", postgres_url), "table", table)


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Somebody else's connection. The server ends its transaction when it is idle for too long: who would wait for it
    without a limit fails then instead of hanging."""
    with psycopg.connect(postgres_url, options=f"-c idle_in_transaction_session_timeout={IDLE}") as connection:
        yield connection
        connection.rollback()


def lock(connection: psycopg.Connection[tuple[object, ...]], table: str, record_id: bytes) -> None:
    query = sql.SQL("SELECT 1 FROM {} WHERE id = %s FOR UPDATE").format(sql.Identifier(f"{table}_keys"))
    assert connection.execute(query, [record_id]).fetchone() is not None


@pytest.mark.parametrize("colour", COLOURS)
def test_no_write_of_an_owner_waits_without_a_limit(
    url: str, table: str, other: psycopg.Connection[tuple[object, ...]], colour: str
) -> None:
    do = open_migrated(url, colour)
    held = record_of(do(claim("k", lease=600, now=None)))
    lock(other, table, held.id)
    for op in (renew(held, now=None), advance(held, now=None), suspect(held, now=None), release(held, now=None)):
        with pytest.raises(StoreUnavailable):
            do(op)
    with pytest.raises(StoreUnavailable):
        do(complete(held, now=None))
    other.rollback()
    assert do(complete(held, now=None)) is True
    do.close()


def test_a_held_row_costs_nobody_else_its_lease(
    url: str, table: str, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    """The heartbeat of the whole process stood behind one row; and the held call's own completion outlasts it."""
    safe = RetrySafe(url)
    safe.migrate()
    locked = threading.Event()
    ids: dict[int, bytes] = {}

    @safe.once("slow:{n}", policy=Policy(lease=2.0, failures="release"))
    def slow(n: int) -> str:
        lease = current_lease()
        assert lease is not None
        ids[n] = lease.id
        if n == 0:
            assert locked.wait(PATIENCE)
            return "held"
        before = record(safe, lease.id).lease_until
        until(lambda: record(safe, lease.id).lease_until > before + 2_500_000, PATIENCE, "beats beside the held row")
        # Not at once: a process that stood still has a lease again only after its next beat.
        until(lambda: lease.fits(0.0), PATIENCE, "a lease that is kept")
        return "free"

    answers: dict[int, str] = {}
    first = threading.Thread(target=lambda: answers.update({0: slow(0)}))
    first.start()
    until(lambda: 0 in ids, PATIENCE, "the first call")
    lock(other, table, ids[0])
    assert slow(1) == "free"
    locked.set()
    until(lambda: waits_for_a_lock(safe, url), PATIENCE, "a write of the first call that waits")
    other.rollback()
    first.join(PATIENCE)
    assert answers == {0: "held"}
    assert record(safe, ids[0]).state is State.COMPLETED
    safe.close()


# Many held rows -----------------------------------------------------------------------------------

HELD, FREE = range(24), range(24, 28)
# More held rows than the pool has connections and the heartbeat has threads.
LEASE = 2.0
ROUNDS = 5
STALL = LEASE / 4
"""Seconds in which nothing moved on this machine at all: then no lease can be kept, and the round does not count."""


class Round:
    """Calls whose rows a stranger locks, and four that have nothing to do with them; another process, so to say, asks
    for those four all the time, and would run them if a lease lapsed."""

    def __init__(
        self, url: str, table: str, other: psycopg.Connection[tuple[object, ...]], *, ending: bool = False
    ) -> None:
        self.table, self.other = table, other
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
        if n in HELD:
            return self.locked.is_set() if self.ending else self.over.is_set()
        kept = self.locked.is_set() and self.lease_until(n) > first + 2 * LEASE * 1_000_000
        return kept or self.runs[n] > 1

    def lease_until(self, n: int) -> int:
        return record(self.rival, self.ids[n]).lease_until

    def lock_the_held(self) -> None:
        until(lambda: len(self.ids) == len(HELD) + len(FREE), PATIENCE, "all calls")
        for n in sorted(HELD, key=lambda n: self.ids[n]):
            lock(self.other, self.table, self.ids[n])
        self.locked.set()

    def compete(self) -> None:
        """Until the free ones are over: a claim that is granted is a lease that was not kept."""
        charge = self.charging(self.rival, "sync")
        while not self.over.is_set():
            for n in FREE:
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
        self.other.rollback()
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
        with ThreadPoolExecutor(len(HELD) + len(FREE)) as threads:
            calls = [threads.submit(charge, self.name, n) for n in (*HELD, *FREE)]
            free = [ended(lambda n=n: calls[n].result(PATIENCE)) for n in FREE]
            self.free_ones_are_over()
            return [ended(lambda n=n: calls[n].result(PATIENCE)) for n in HELD] + free

    async def async_calls(self) -> list[str]:
        charge = self.charging(self.safe, "async")
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(len(HELD) + len(FREE)))
        try:
            calls = [asyncio.ensure_future(charge(self.name, n)) for n in (*HELD, *FREE)]
            await asyncio.wait(calls[FREE.start :])
            free = [ended(calls[n].result) for n in FREE]
            self.free_ones_are_over()
            await asyncio.wait(calls)
            return [ended(calls[n].result) for n in HELD] + free
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


POLICY = Policy.preset("function", lease=LEASE, abandoned="rerun", busy="conflict")


@contextmanager
def longest_stall(postgres_url: str) -> Iterator[Callable[[], float]]:
    """The longest time for which neither this process nor the server got anything done."""
    over, gaps = threading.Event(), [0.0]

    def tick() -> None:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            last = time.monotonic()
            while not over.is_set():
                connection.execute("SELECT 1")
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


@pytest.mark.parametrize("colour", COLOURS)
@pytest.mark.parametrize("ending", [False, True], ids=["at work", "ending"])
def test_many_held_rows_cost_nobody_else_its_lease(
    url: str, postgres_url: str, table: str, other: psycopg.Connection[tuple[object, ...]], colour: str, ending: bool
) -> None:
    open_migrated(url, "sync").close()
    for _ in range(ROUNDS):
        played = Round(url, table, other, ending=ending)
        with longest_stall(postgres_url) as stalled:
            answers = played.play(colour)
        if stalled() < STALL:
            break
    else:
        pytest.fail(f"this machine stood still for {STALL} s and more in each of {ROUNDS} rounds")
    assert answers == ["once"] * len(answers)
    assert played.runs == dict.fromkeys((*HELD, *FREE), 1)


def record(safe: RetrySafe, record_id: bytes) -> Record:
    found = safe.execute(Lookup(record_id)).record
    assert found is not None
    return found


def waits_for_a_lock(safe: RetrySafe, url: str) -> bool:
    plain = url.partition("?")[0]
    with psycopg.connect(plain, autocommit=True) as admin:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        (count,) = admin.execute(query).fetchone() or (0,)
        return bool(count)
