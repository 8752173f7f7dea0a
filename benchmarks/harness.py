"""Slices of work, taken in turns, and what their numbers say about each other."""

from __future__ import annotations

import asyncio
import statistics
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any, NamedTuple, Protocol


class Sample(NamedTuple):
    """One slice. Latencies in milliseconds, CPU in microseconds of this process per piece of work."""

    rate: float
    p50: float
    p99: float
    cpu: float


def sample(latencies: list[float], seconds: float, cpu: float) -> Sample:
    if not latencies:
        return Sample(0.0, 0.0, 0.0, 0.0)
    latencies.sort()
    place = min(len(latencies) - 1, int(len(latencies) * 0.99))
    return Sample(
        len(latencies) / seconds,
        1e3 * latencies[len(latencies) // 2],
        1e3 * latencies[place],
        1e6 * cpu / len(latencies),
    )


class Bench(Protocol):
    """A way of doing one piece of work, opened once and measured in many slices."""

    name: str

    def open(self) -> None: ...
    def slice(self, callers: int, seconds: float) -> Sample: ...
    def close(self) -> None: ...


class LoopBench:
    """Callers are tasks of one event loop. `make` opens what the work needs and gives the work."""

    def __init__(
        self, name: str, make: Callable[[], AbstractAsyncContextManager[Callable[[], Awaitable[Any]]]]
    ) -> None:
        self.name = name
        self._make = make
        self._runner = asyncio.Runner()

    def open(self) -> None:
        self._context = self._make()
        self._work = self._runner.run(self._context.__aenter__())

    def slice(self, callers: int, seconds: float) -> Sample:
        return self._runner.run(self._slice(callers, seconds))

    async def _slice(self, callers: int, seconds: float) -> Sample:
        latencies: list[float] = []
        await self._work()  # connections, caches
        began, cpu = time.perf_counter(), time.process_time()
        deadline = began + seconds

        async def caller() -> None:
            now = time.perf_counter()
            while now < deadline:
                await self._work()
                after = time.perf_counter()
                latencies.append(after - now)
                now = after

        await asyncio.gather(*(caller() for _ in range(callers)))
        return sample(latencies, time.perf_counter() - began, time.process_time() - cpu)

    def close(self) -> None:
        self._runner.run(self._context.__aexit__(None, None, None))
        self._runner.close()


class ThreadBench:
    """Callers are threads."""

    def __init__(self, name: str, make: Callable[[], AbstractContextManager[Callable[[], Any]]]) -> None:
        self.name = name
        self._make = make

    def open(self) -> None:
        self._context = self._make()
        self._work = self._context.__enter__()

    def slice(self, callers: int, seconds: float) -> Sample:
        parts: list[list[float]] = [[] for _ in range(callers)]
        self._work()
        began, cpu = time.perf_counter(), time.process_time()
        deadline = began + seconds

        def caller(latencies: list[float]) -> None:
            now = time.perf_counter()
            while now < deadline:
                self._work()
                after = time.perf_counter()
                latencies.append(after - now)
                now = after

        threads = [threading.Thread(target=caller, args=(part,)) for part in parts]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        every = [latency for part in parts for latency in part]
        return sample(every, time.perf_counter() - began, time.process_time() - cpu)

    def close(self) -> None:
        self._context.__exit__(None, None, None)


@dataclass
class Row:
    """One mode at one number of callers, against the baseline."""

    name: str
    callers: int
    ratio: float
    least: float
    most: float
    samples: list[Sample] = field(default_factory=list)

    def median(self, what: str) -> float:
        return statistics.median(getattr(each, what) for each in self.samples)

    def plain(self) -> dict[str, Any]:
        return {**asdict(self), "samples": [each._asdict() for each in self.samples]}


@dataclass
class Table:
    """A part's figures. `target` names what DESIGN.md asks for, by mode and callers."""

    title: str
    baseline: str
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    targets: dict[tuple[str, int], float] = field(default_factory=dict)

    def plain(self) -> dict[str, Any]:
        wanted = [{"mode": mode, "callers": callers, "ratio": ratio} for (mode, callers), ratio in self.targets.items()]
        rows = [row.plain() for row in self.rows]
        return {"title": self.title, "baseline": self.baseline, "rows": rows, "notes": self.notes, "targets": wanted}


def compare(
    title: str, benches: Sequence[Bench], callers: Iterable[int], seconds: float, rounds: int, settle: float = 0.0
) -> Table:
    """The modes in turns; the first is the baseline. Each round gives one ratio."""
    table = Table(title, benches[0].name)
    opened: list[Bench] = []
    try:
        for bench in benches:
            bench.open()
            opened.append(bench)
        for count in callers:
            taken: dict[str, list[Sample]] = {bench.name: [] for bench in benches}
            for number in range(rounds):
                # Every second round backwards, so that nobody always runs behind the same neighbour.
                for bench in benches if number % 2 == 0 else reversed(benches):
                    taken[bench.name].append(bench.slice(count, seconds))
                    time.sleep(settle)
            table.rows += rows_of(taken, benches[0].name, count)
            show(table.rows[-len(benches) :])
    finally:
        for bench in opened:
            bench.close()
    return table


def rows_of(taken: dict[str, list[Sample]], baseline: str, callers: int) -> list[Row]:
    base = taken[baseline]
    rows = []
    for name, samples in taken.items():
        ratios = [mine.rate / theirs.rate if theirs.rate else 0.0 for mine, theirs in zip(samples, base, strict=True)]
        rows.append(Row(name, callers, statistics.median(ratios), min(ratios), max(ratios), samples))
    return rows


def show(rows: Iterable[Row]) -> None:
    for row in rows:
        print(
            f"  {row.callers:>4} callers  {row.name:<34} {row.ratio:6.2f} [{row.least:.2f}..{row.most:.2f}]"
            f"  {row.median('rate'):8.0f}/s  p50 {row.median('p50'):7.2f}  p99 {row.median('p99'):7.2f} ms"
            f"  cpu {row.median('cpu'):6.0f} us",
            file=sys.stderr,
            flush=True,
        )
