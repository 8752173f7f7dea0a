"""Slices of work, taken in turns."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from benchmarks.noise import Watch
from benchmarks.tables import Measure, Row, Sample, Table, sample, shown


@dataclass(frozen=True)
class Pace:
    """How long and how often. An odd number of rounds has a middle one."""

    callers: tuple[int, ...] = (1, 8, 32, 128)
    seconds: float = 0.8
    rounds: int = 3
    label: str = "default"


QUICK = Pace((1, 32), 0.15, 1, "quick")
FULL = Pace(seconds=1.5, rounds=7, label="full")


class Bench(Protocol):
    """A way of doing one piece of work, opened once and measured in many slices."""

    name: str
    optional: bool
    """A failure drops it from the table with a note instead of ending the run: other people's code."""

    def open(self) -> None: ...
    def slice(self, callers: int, seconds: float) -> Sample: ...
    def close(self) -> None: ...
    def remarks(self) -> list[str]: ...


AsyncWork = Callable[[], Awaitable[Any]]
Work = Callable[[], Any]


class LoopBench:
    """Callers are tasks of one event loop. `make` opens what the work needs and gives the work."""

    optional = False

    def __init__(
        self,
        name: str,
        make: Callable[[], AbstractAsyncContextManager[AsyncWork]],
        loop: Callable[[], asyncio.AbstractEventLoop] | None = None,
    ) -> None:
        self.name = name
        self._make = make
        self._runner = asyncio.Runner(loop_factory=loop)

    def open(self) -> None:
        self._context = self._make()
        self._work = self._runner.run(_entered(self._context))

    def slice(self, callers: int, seconds: float) -> Sample:
        return self._runner.run(self._slice(callers, seconds))

    async def _slice(self, callers: int, seconds: float) -> Sample:
        latencies: list[float] = []
        # As many as will come: connections are opened and caches filled before the clock starts.
        await asyncio.gather(*(self._work() for _ in range(callers)))
        began, cpu = time.perf_counter(), self.cpu()
        deadline = began + seconds

        async def caller() -> None:
            now = time.perf_counter()
            while now < deadline:
                await self._work()
                after = time.perf_counter()
                latencies.append(after - now)
                now = after

        await asyncio.gather(*(caller() for _ in range(callers)))
        return sample(latencies, time.perf_counter() - began, self.cpu() - cpu)

    def cpu(self) -> float:
        return time.process_time()

    def close(self) -> None:
        self._runner.run(_left(self._context))
        self._runner.close()

    def remarks(self) -> list[str]:
        return []


async def _entered(context: AbstractAsyncContextManager[AsyncWork]) -> AsyncWork:
    return await context.__aenter__()


async def _left(context: AbstractAsyncContextManager[AsyncWork]) -> None:
    await context.__aexit__(None, None, None)


class ThreadBench:
    """Callers are threads."""

    optional = False

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[Work]]) -> None:
        self.name = name
        self._make = make

    def open(self) -> None:
        self._context = self._make()
        self._work = self._context.__enter__()

    def slice(self, callers: int, seconds: float) -> Sample:
        parts: list[list[float]] = [[] for _ in range(callers)]
        errors: list[Exception] = []
        ready, start = threading.Barrier(callers + 1), threading.Barrier(callers + 1)
        deadline = float("inf")

        def caller(latencies: list[float]) -> None:
            try:
                self._work()  # a connection for each thread, before the clock starts
                ready.wait()
                start.wait()
                now = time.perf_counter()
                while now < deadline:
                    self._work()
                    after = time.perf_counter()
                    latencies.append(after - now)
                    now = after
            except Exception as error:
                errors.append(error)
                ready.abort()

        threads = [threading.Thread(target=caller, args=(part,), daemon=True) for part in parts]
        for thread in threads:
            thread.start()
        try:
            ready.wait()
        except threading.BrokenBarrierError:
            start.abort()
        began, cpu = time.perf_counter(), time.process_time()
        deadline = began + seconds
        if not start.broken:
            start.wait()
        for thread in threads:
            thread.join()
        if errors:
            raise errors[0]
        every = [latency for part in parts for latency in part]
        return sample(every, time.perf_counter() - began, time.process_time() - cpu)

    def close(self) -> None:
        self._context.__exit__(None, None, None)

    def remarks(self) -> list[str]:
        return []


def compare(table: Table, benches: Sequence[Bench], callers: Iterable[int], pace: Pace) -> Table:
    """Measure the modes in turns into the table; the first is the baseline."""
    assert table.baseline == benches[0].name, f"{table.title}: the first mode is {benches[0].name}"
    living: list[Bench] = []
    try:
        for bench in benches:
            try:
                bench.open()
            except Exception as error:
                _drop(table, bench, error)
            else:
                living.append(bench)
        for count in callers:
            taken: dict[str, list[Sample]] = {bench.name: [] for bench in living}
            for number in range(pace.rounds):
                # Every second round backwards, so that nobody always runs behind the same neighbour.
                for bench in list(living) if number % 2 == 0 else list(reversed(living)):
                    watch = Watch()
                    try:
                        got = bench.slice(count, pace.seconds)
                    except Exception as error:
                        _drop(table, bench, error)
                        living.remove(bench)
                        del taken[bench.name]
                    else:
                        taken[bench.name].append(got._replace(foreign=watch.foreign()))
            added = [Row(name, count, samples) for name, samples in taken.items()]
            table.rows += added
            print(*shown(table, added), sep="\n", file=sys.stderr, flush=True)
        table.notes += [remark for bench in living for remark in bench.remarks()]
    finally:
        for bench in living:
            bench.close()
    return table


def _drop(table: Table, bench: Bench, error: Exception) -> None:
    if not bench.optional:
        raise error
    why = f"{bench.name} was dropped: {type(error).__name__}: {error}"
    print(f"  {why}", file=sys.stderr, flush=True)
    table.notes.append(why)


def titled(slug: str, title: str, benches: Sequence[Bench], measure: Measure = "rate") -> Table:
    return Table(slug, title, benches[0].name, measure)
