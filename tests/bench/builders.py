"""Tables with known figures, and benches that measure nothing."""

from __future__ import annotations

from benchmarks.tables import Measure, Row, Sample, Table


def sample(rate: float, p99: float = 1.0) -> Sample:
    return Sample(rate, p99 / 2, p99, 10.0)


def row(name: str, callers: int, *rates: float) -> Row:
    return Row(name, callers, [sample(rate) for rate in rates])


def table(slug: str, rows: list[Row], measure: Measure = "rate", **more: object) -> Table:
    return Table(slug, f"{slug} & <figures>: against {rows[0].name}", rows[0].name, measure, rows, **more)  # type: ignore[arg-type]  # fields by name


class Scripted:
    """A mode whose rates are given, and which writes down when it was asked."""

    def __init__(self, name: str, rates: list[float], diary: list[str], optional: bool = False) -> None:
        self.name = name
        self.optional = optional
        self._rates = iter(rates)
        self._diary = diary
        self.closed = 0

    def open(self) -> None:
        self._diary.append(f"open {self.name}")

    def slice(self, callers: int, seconds: float) -> Sample:
        self._diary.append(f"{self.name}@{callers}")
        rate = next(self._rates)
        if rate < 0:
            raise ConnectionError("gone")
        return sample(rate)

    def close(self) -> None:
        self.closed += 1

    def remarks(self) -> list[str]:
        return [f"{self.name} has something to say"]
