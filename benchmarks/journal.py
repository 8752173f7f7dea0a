"""What a step of an operation costs as the operation grows: its journal is written whole with every step."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from itertools import pairwise
from typing import Any, Literal
from uuid import uuid4

from benchmarks.harness import Bench, Pace, compare, titled
from benchmarks.machines import Machines
from benchmarks.tables import Measure, Sample, Table, sample
from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import List
from retrysafe.operations import Operation

SIZES = {"quick": (10, 40), "default": (100, 1_600), "full": (100, 400, 1_600)}
TEXT = "x" * 40
"""What each step returns beside a number."""

Kind = Literal["local", "foreign"]
Open = Callable[[], RetrySafe]


class Steps:
    """Whole operations of so many steps, one after the other; a step is the piece of work."""

    optional = False

    def __init__(self, steps: int, kind: Kind, make: Open) -> None:
        self.name = f"{steps:,} steps"
        self._steps = steps
        self._kind = kind
        self._make = make

    def open(self) -> None:
        self._safe = self._make()
        self._safe.migrate()
        self._begun: list[float] = []
        """When each step of the operation that runs was called."""
        self._operation = declare(self._safe, self._kind, self._begun)
        self._operation(2, key=uuid4().hex)

    def slice(self, callers: int, seconds: float) -> Sample:
        latencies: list[float] = []
        began, cpu = time.perf_counter(), time.process_time()
        while not latencies or time.perf_counter() - began < seconds:
            self._begun.clear()
            self._operation(self._steps, key=uuid4().hex)
            moments = [*self._begun, time.perf_counter()]
            latencies += [after - before for before, after in pairwise(moments)]
        return sample(latencies, time.perf_counter() - began, time.process_time() - cpu)

    def close(self) -> None:
        self._safe.close()

    def remarks(self) -> list[str]:
        """What is written with the last step."""
        size = max(len(record.progress) for record in self._safe.execute(List()).records)
        return [f"{self.name}: the journal ends with {size:,} bytes"]


def declare(safe: RetrySafe, kind: Kind, begun: list[float]) -> Operation:
    operation = safe.operation("many")

    def result(number: int) -> dict[str, Any]:
        begun.append(time.perf_counter())
        return {"number": number, "text": TEXT}

    step: Any
    if kind == "local":

        @operation.local
        def step(tx: Any, number: int) -> dict[str, Any]:
            return result(number)

    else:

        @operation.foreign
        def step(number: int, *, key: str) -> dict[str, Any]:
            return result(number)

    @operation.body
    def body(count: int) -> Answer:
        for number in range(count):
            step(number)
        return Answer(200, {"count": count})

    return operation


def journal(machines: Machines, pace: Pace) -> list[Table]:
    """In memory a step costs nothing but our own code, so its CPU is compared; on a database also what is written."""
    pool = machines.once("journal pool", partial(open_pool, machines))
    kinds: list[tuple[str, Measure, Kind, Callable[[int], Open]]] = [
        ("memory", "cpu", "foreign", lambda size: lambda: RetrySafe(f"memory://{uuid4().hex}", forms="current")),
        ("SQLite", "time", "local", lambda size: partial(on_sqlite, machines.sqlite(f"journal_{size}"))),
        ("PostgreSQL", "time", "local", lambda size: partial(on_postgres, machines.postgres, size, pool)),
    ]
    found = []
    for store, measure, kind, make in kinds:
        sizes = SIZES[pace.label]
        benches: list[Bench] = [Steps(size, kind, make(size)) for size in sizes]
        what = "CPU" if measure == "cpu" else "time"
        title = f"{store}: {what} of a {kind} step in a long operation, against a short one"
        table = titled(f"journal-{store.lower()}", title, benches, measure)
        if measure == "cpu":
            table.targets = [(f"{sizes[-1]:,} steps", 1, 2.0)]
        found.append(compare(table, benches, (1,), pace))
    return found


def open_pool(machines: Machines) -> Any:
    import psycopg_pool

    return machines.stack.enter_context(psycopg_pool.ConnectionPool(machines.postgres, min_size=1, max_size=2))


def on_sqlite(path: str) -> RetrySafe:
    return RetrySafe(f"sqlite:///{path}", tx=path, forms="current")


def on_postgres(url: str, size: int, pool: Any) -> RetrySafe:
    return RetrySafe(f"{url}?table=journal_{size}", tx=pool, forms="current")
