"""What a run found, as values: samples, rows, tables. All of it can be written to a file and read back."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

Measure = Literal["rate", "time", "p99", "cpu"]
"""What a ratio compares: work per second (more is better); time per piece of work, its 99th percentile, its processor
time (less is better)."""

Target = tuple[str, int, float]
"""Mode, callers, the ratio that is asked for: at least it where more is better, else at most it."""


class Sample(NamedTuple):
    """One slice. Latencies in milliseconds; CPU in microseconds per piece of work, of this process or of the server
    that is measured; foreign is what everybody else on the machine used meanwhile, in cores."""

    rate: float
    p50: float
    p99: float
    cpu: float
    foreign: float = 0.0

    def plain(self) -> dict[str, float]:
        return {name: float(f"{value:.5g}") for name, value in self._asdict().items()}


def sample(latencies: list[float], seconds: float, cpu: float) -> Sample:
    if not latencies:
        return Sample(0.0, 0.0, 0.0, 0.0)
    latencies.sort()
    place = min(len(latencies) - 1, int(len(latencies) * 0.99))
    middle = latencies[len(latencies) // 2]
    return Sample(len(latencies) / seconds, 1e3 * middle, 1e3 * latencies[place], 1e6 * cpu / len(latencies))


class Ratio(NamedTuple):
    """The median of the rounds, with the least and the most."""

    middle: float
    least: float
    most: float

    def __str__(self) -> str:
        return f"{self.middle:.2f} [{self.least:.2f}..{self.most:.2f}]"


@dataclass
class Row:
    """One mode at one number of callers: a sample for each round."""

    name: str
    callers: int
    samples: list[Sample] = field(default_factory=list)

    def median(self, what: str) -> float:
        return statistics.median(getattr(each, what) for each in self.samples) if self.samples else 0.0


def ratio(mine: Row, base: Row, measure: Measure = "rate") -> Ratio:
    """One ratio for each round, both sides taken from the same one."""
    found = [_of(measure, *pair) for pair in zip(mine.samples, base.samples, strict=True)] or [0.0]
    return Ratio(statistics.median(found), min(found), max(found))


def _of(measure: Measure, mine: Sample, base: Sample) -> float:
    over, under = {
        "rate": (mine.rate, base.rate),
        "time": (base.rate, mine.rate),
        "p99": (mine.p99, base.p99),
        "cpu": (mine.cpu, base.cpu),
    }[measure]
    return over / under if under else 0.0


@dataclass
class Table:
    """Figures that belong together. `slug` is its name in files."""

    slug: str
    title: str
    baseline: str
    measure: Measure = "rate"
    rows: list[Row] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    """Modes that answered something else than they should have: fast or not, nobody is compared with them."""
    heads: list[str] = field(default_factory=list)
    cells: list[list[str]] = field(default_factory=list)
    """A table of words instead of rows, with the heads of its columns."""

    def row(self, name: str, callers: int) -> Row | None:
        return next((row for row in self.rows if (row.name, row.callers) == (name, callers)), None)

    def names(self) -> list[str]:
        return list(dict.fromkeys(row.name for row in self.rows))

    def callers(self) -> list[int]:
        return list(dict.fromkeys(row.callers for row in self.rows))

    def ratio(self, row: Row) -> Ratio:
        base = self.row(self.baseline, row.callers)
        assert base is not None, f"{self.title}: no {self.baseline} at {row.callers} callers"
        return ratio(row, base, self.measure)

    def target(self, row: Row) -> float | None:
        return next((wanted for *who, wanted in self.targets if who == [row.name, row.callers]), None)

    def met(self, row: Row) -> bool | None:
        """None where nothing was asked for."""
        wanted, found = self.target(row), self.ratio(row).middle
        if wanted is None:
            return None
        return found >= wanted if self.measure == "rate" else found <= wanted

    def foreign(self) -> float:
        """The median of what others used while this table was measured, in cores."""
        return statistics.median([each.foreign for row in self.rows for each in row.samples] or [0.0])

    def plain(self) -> dict[str, Any]:
        rows = [
            {
                "mode": row.name,
                "callers": row.callers,
                "ratio": {name: round(value, 3) for name, value in self.ratio(row)._asdict().items()},
                "samples": [each.plain() for each in row.samples],
            }
            for row in self.rows
        ]
        wanted = [{"mode": mode, "callers": callers, "ratio": value} for mode, callers, value in self.targets]
        about = {"slug": self.slug, "title": self.title, "baseline": self.baseline, "measure": self.measure}
        words = {"heads": self.heads, "cells": self.cells} if self.cells else {}
        return {**about, "rows": rows, "notes": self.notes, "targets": wanted, "wrong": self.wrong, **words}


def table_from(plain: dict[str, Any]) -> Table:
    rows = [Row(row["mode"], row["callers"], [Sample(**each) for each in row["samples"]]) for row in plain["rows"]]
    targets = [(each["mode"], each["callers"], each["ratio"]) for each in plain["targets"]]
    names = (plain["slug"], plain["title"], plain["baseline"], plain["measure"])
    words = {"heads": plain.get("heads", []), "cells": plain.get("cells", [])}
    return Table(*names, rows=rows, notes=plain["notes"], targets=targets, wrong=plain["wrong"], **words)


def shown(table: Table, rows: Iterable[Row]) -> Iterator[str]:
    """For whoever watches the run."""
    for row in rows:
        found = table.ratio(row)
        yield (
            f"  {row.callers:>4} callers  {row.name:<38} {found.middle:6.2f} [{found.least:.2f}..{found.most:.2f}]"
            f"  {row.median('rate'):8.0f}/s  p50 {row.median('p50'):7.2f}  p99 {row.median('p99'):7.2f} ms"
            f"  cpu {row.median('cpu'):6.0f} us  others {row.median('foreign'):.1f}"
        )
