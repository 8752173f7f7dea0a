"""How slices are taken and compared. No clock is looked at: the figures are given."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest
from benchmarks.harness import LoopBench, Pace, ThreadBench, compare
from benchmarks.tables import Ratio, Row, Table, ratio, sample

from tests.bench.builders import Scripted, row
from tests.bench.builders import sample as scripted_sample

PACE = Pace((1,), 0.001, 3)


def test_modes_take_turns_and_every_second_round_goes_backwards() -> None:
    diary: list[str] = []
    benches = [Scripted("a", [1] * 6, diary), Scripted("b", [2] * 6, diary)]
    compare(Table("t", "t", "a"), benches, (1, 8), PACE)
    opened, turns = diary[:2], diary[2:]
    assert opened == ["open a", "open b"]
    assert turns == [f"{name}@{callers}" for callers in (1, 8) for name in "abbaab"]
    assert [bench.closed for bench in benches] == [1, 1]


def test_a_ratio_is_the_median_of_the_rounds_with_least_and_most() -> None:
    found = ratio(row("b", 1, 30, 20, 80), row("a", 1, 10, 20, 20))
    assert found == Ratio(3.0, 1.0, 4.0)
    assert str(found) == "3.00 [1.00..4.00]"


def test_where_less_is_better_the_ratio_is_turned_round() -> None:
    fast, slow = Row("a", 1, [scripted_sample(100, p99=2)]), Row("b", 1, [scripted_sample(50, p99=3)])
    assert ratio(slow, fast, "time").middle == 2.0
    assert ratio(slow, fast, "p99").middle == 1.5
    costly = Row("c", 1, [scripted_sample(100)._replace(cpu=40.0)])
    assert ratio(costly, fast, "cpu").middle == 4.0
    assert ratio(slow, fast, "rate").middle == 0.5


def test_a_target_is_at_least_or_at_most() -> None:
    more = Table("t", "t", "a", "rate", [row("a", 1, 10), row("b", 1, 15)], targets=[("b", 1, 2.0)])
    less = Table("t", "t", "a", "time", [row("a", 1, 10), row("b", 1, 15)], targets=[("b", 1, 2.0)])
    assert [more.met(each) for each in more.rows] == [None, False]
    assert [less.met(each) for each in less.rows] == [None, True]


def test_other_peoples_code_may_fail_and_is_named() -> None:
    diary: list[str] = []
    peer = Scripted("peer", [5, -1], diary, optional=True)
    table = compare(Table("t", "t", "a"), [Scripted("a", [1] * 3, diary), peer], (1,), PACE)
    assert table.names() == ["a"]
    assert table.notes == ["peer was dropped: ConnectionError: gone", "a has something to say"]


def test_our_own_failure_ends_the_run() -> None:
    diary: list[str] = []
    first = Scripted("a", [1] * 3, diary)
    with pytest.raises(ConnectionError):
        compare(Table("t", "t", "a"), [first, Scripted("ours", [-1], diary)], (1,), PACE)
    assert first.closed == 1


def test_percentiles_are_of_the_latencies() -> None:
    found = sample([n / 1000 for n in range(100, 0, -1)], seconds=2.0, cpu=0.001)
    assert (found.rate, found.p50, found.p99) == (50.0, 51.0, 100.0)
    assert found.cpu == pytest.approx(10.0)


def test_as_many_tasks_as_callers_work_at_once() -> None:
    most = inside = 0

    @asynccontextmanager
    async def make() -> AsyncIterator[Callable[[], Awaitable[Any]]]:
        async def work() -> None:
            nonlocal most, inside
            inside += 1
            most = max(most, inside)
            await asyncio.sleep(0)
            inside -= 1

        yield work

    bench = LoopBench("loop", make)
    bench.open()
    found = bench.slice(5, 0.2)
    bench.close()
    assert most == 5
    assert found.rate > 0


def test_as_many_threads_as_callers_work_at_once() -> None:
    together, seen = threading.Barrier(4), set()

    @contextmanager
    def make() -> Iterator[Callable[[], Any]]:
        def work() -> None:
            if threading.get_ident() not in seen:
                seen.add(threading.get_ident())
                together.wait(30)

        yield work

    bench = ThreadBench("threads", make)
    bench.open()
    assert bench.slice(4, 0.2).rate > 0
    bench.close()
    assert len(seen) == 4


def test_a_thread_that_fails_fails_the_slice() -> None:
    @contextmanager
    def make() -> Iterator[Callable[[], Any]]:
        def work() -> None:
            raise ConnectionError("refused")

        yield work

    bench = ThreadBench("threads", make)
    bench.open()
    with pytest.raises(ConnectionError, match="refused"):
        bench.slice(3, 0.2)
    bench.close()
