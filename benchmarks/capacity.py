"""What stores carry beyond one machine: `python -m benchmarks.capacity [--measure] [--check]`.

`--measure` starts PostgreSQL and Valkey, measures what a pair of claim and completion costs there in processor time, on
the client and on the server, and writes benchmarks/capacity.json. Processor time can be measured on a machine
that others use as well. Without it, the model of queueing.py is run with these costs, and its tables are written into
docs/explanation/capacity.md; `--check` fails if they are stale.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from tests.servers import PostgresServer

from benchmarks.machines import Machines, machines
from benchmarks.noise import family
from benchmarks.ours import ANSWER, new_claim
from benchmarks.queueing import (
    Clock,
    Cost,
    LoopServer,
    Outcome,
    PartitionedServer,
    Server,
    Setup,
    SqlServer,
    fit_cost,
    simulate,
)
from benchmarks.results import RESULTS
from retrysafe.core.ops import Complete
from retrysafe.stores.registry import open_async_store

FILE = RESULTS.parent / "capacity.json"
QUIET = (RESULTS / "2026-11-16.json", RESULTS / "2026-11-19.json")
"""Runs of the benchmarks on a quiet machine, on a slow and on a fast day: what the model is checked against."""
PAGE = RESULTS.parent.parent / "docs" / "explanation" / "capacity.md"
BEGIN, END = "<!-- simulated: made by `python -m benchmarks.capacity` -->", "<!-- end of what is simulated -->"

CALLERS = (1, 8, 32, 128)
PAIRS = {1: 1_500, 8: 4_000, 32: 12_000, 128: 20_000}
ROUND_TRIP_SECONDS = 0.0005
"""Between two machines of one zone, with their network stacks. Chosen, not measured."""
LOOPBACK_SECONDS = 0.0001
LOCAL_FLUSH_SECONDS, NETWORK_FLUSH_SECONDS = 0.0005, 0.005
"""A flush to a local SSD, and to a volume of a cloud. Chosen, not measured."""
DYNAMODB_SECONDS = 0.005
"""A write of DynamoDB. Chosen, not measured."""
DYNAMODB_PARTITIONS, DYNAMODB_WRITES = 4, 1_000
PROCESSES = (1, 2, 4, 8, 16)
CALLERS_EACH = 64


@dataclass
class Point:
    """A measured slice: `client` and `server` are processor seconds, `seconds` is the time on the clock."""

    callers: int
    pairs: int
    batches: int
    client: float
    server: float
    seconds: float


@dataclass
class Measured:
    """What was measured of one store."""

    points: list[Point]

    @property
    def client(self) -> Cost:
        return fit_cost([(each.batches, 2 * each.pairs, each.client) for each in self.points])

    @property
    def server(self) -> Cost:
        return fit_cost([(each.batches, 2 * each.pairs, each.server) for each in self.points])


@dataclass
class Calibration:
    """Each store twice: as it is used, and without flushes. A process that sleeps until a flush is over finds its
    caches cold, and its costs rise: so the costs of clients are those without flushes."""

    when: str
    stores: dict[str, Measured]

    @property
    def postgres_server(self) -> Cost:
        return self.stores["postgres"].server

    @property
    def redis_server(self) -> Cost:
        """Redis flushes once in a turn, however many clients it serves there: that is not part of a batch's cost."""
        return Cost(self.stores["redis-memory"].server.batch, self.stores["redis"].server.op)

    @property
    def redis_turn(self) -> float:
        """Processor seconds of a turn's write and flush."""
        return max(0.0, self.stores["redis"].server.batch - self.stores["redis-memory"].server.batch)


# Measuring ----------------------------------------------------------------------------------------


NO_FLUSH = {"fsync": "off", "synchronous_commit": "off", "shared_buffers": "512MB", "max_wal_size": "4GB"}


def measure(at: Machines) -> dict[str, Any]:
    unflushed = PostgresServer(**NO_FLUSH)
    try:
        unflushed.start()
        assert unflushed.process is not None, "it was started"
        memory = measure_points(f"{unflushed.url}?table=capacity", unflushed.process.pid)
    finally:
        unflushed.stop()
    points = {
        "postgres-memory": memory,
        "redis-memory": measure_store(at, "redis, no AOF", at.redis_memory),
        "postgres": measure_store(at, "postgres", f"{at.postgres}?table=capacity"),
        "redis": measure_store(at, "redis, AOF always", at.redis),
    }
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d"),
        "servers": at.labels,
        "load": round(os.getloadavg()[0], 1),
        "stores": {name: [asdict(point) for point in found] for name, found in points.items()},
    }


def measure_store(at: Machines, name: str, url: str) -> list[Point]:
    server = at.servers[name].process
    assert server is not None, "it was started"
    return measure_points(url, server.pid)


def measure_points(url: str, server: int) -> list[Point]:
    return [asyncio.run(measure_point(url, server, callers)) for callers in CALLERS]


async def measure_point(url: str, server: int, callers: int) -> Point:
    sizes: list[int] = []
    store = open_async_store(url, batching=True, on_batch=lambda batch: sizes.append(len(batch)))
    await store.migrate()

    async def call(pairs: int) -> None:
        for _ in range(pairs):
            op = new_claim()
            record = (await store.execute(op)).record
            assert record is not None
            assert await store.execute(Complete(op.id, record.fence, ANSWER))

    each = PAIRS[callers] // callers
    await asyncio.gather(*(call(5) for _ in range(callers)))  # connections, caches
    sizes.clear()
    reads = await count_reads(url)
    client, cpu, began = time.process_time(), family(server), time.perf_counter()
    await asyncio.gather(*(call(each) for _ in range(callers)))
    point = Point(
        callers,
        each * callers,
        len(sizes) + 2 * each * callers - sum(sizes),  # an operation that met nobody goes alone
        time.process_time() - client,
        family(server) - cpu,
        time.perf_counter() - began,
    )
    if reads is not None:
        point.batches = await count_reads(url) - reads  # type: ignore[operator]  # a number again
    await store.aclose()
    print(f"{url.partition(':')[0]}, {callers} callers: {point}", file=sys.stderr, flush=True)
    return point


async def count_reads(url: str) -> int | None:
    """How often a Redis has read from its connections: its clients' packets. None for other stores."""
    if not url.startswith("redis"):
        return None
    from redis.asyncio import Redis

    async with Redis.from_url(url) as asking:
        return int((await asking.info("stats"))["total_reads_processed"])


# The model ----------------------------------------------------------------------------------------


def load(path: Path = FILE) -> Calibration:
    found = json.loads(path.read_text())
    stores = {name: Measured([Point(**point) for point in points]) for name, points in found["stores"].items()}
    return Calibration(found["when"], stores)


Build = Callable[[Clock, random.Random], list[Server]]


@dataclass(frozen=True)
class Scenario:
    name: str
    client: Cost
    build: Build
    flights: int = 1
    pipelined: bool = True
    batch: int = 128
    round_trip: float = ROUND_TRIP_SECONDS

    def run(self, processes: int, callers: int = CALLERS_EACH, seconds: float = 0.5) -> Outcome:
        setup = Setup(processes, callers, self.client, self.round_trip, self.flights, self.batch, self.pipelined)
        return simulate(setup, self.build, seconds=seconds)


def build_scenarios(found: Calibration) -> list[Scenario]:
    client, redis_client = found.stores["postgres-memory"].client, found.stores["redis-memory"].client
    memory = found.stores["redis-memory"].server
    local, network = LOCAL_FLUSH_SECONDS, NETWORK_FLUSH_SECONDS

    def sql(cores: int, flush: float) -> Build:
        return lambda clock, _: [SqlServer(clock, found.postgres_server, cores, flush)]

    def redis(nodes: int, flush: float) -> Build:
        turn = found.redis_turn + flush
        return lambda clock, _: [LoopServer(clock, found.redis_server, turn) for _ in range(nodes)]

    return [
        Scenario("PostgreSQL, 4 cores, local SSD", client, sql(4, local), 2, False),
        Scenario("PostgreSQL, 4 cores, network disk", client, sql(4, network), 2, False),
        Scenario("Redis, `appendfsync always`, local SSD", redis_client, redis(1, local)),
        Scenario("Redis, `appendfsync always`, network disk", redis_client, redis(1, network)),
        Scenario("Redis cluster of three, `appendfsync always`, local SSD", redis_client, redis(3, local)),
        Scenario("Redis, no append-only file", redis_client, lambda clock, _: [LoopServer(clock, memory, 0)]),
        Scenario(
            "Redis cluster of three, no append-only file", redis_client,
            lambda clock, _: [LoopServer(clock, memory, 0) for _ in range(3)],
        ),
        Scenario(
            "DynamoDB, one table", redis_client,
            lambda clock, rng: [PartitionedServer(clock, DYNAMODB_PARTITIONS, DYNAMODB_WRITES, rng)],
            batch=1, round_trip=DYNAMODB_SECONDS,
        ),
    ]  # fmt: skip


class Check(NamedTuple):
    """One measured point and the model of it. `flush` was estimated from the point with one caller."""

    name: str
    callers: int
    measured: float
    modelled: float


def read_quiet(path: Path, slug: str) -> dict[int, tuple[float, float]]:
    """From the results of a benchmark on a quiet machine, by callers: pairs per second, and the client's processor
    seconds for a pair."""
    parts = json.loads(path.read_text())["parts"].values()
    rows = [row for part in parts for table in part["tables"] if table["slug"] == slug for row in table["rows"]]
    return {
        row["callers"]: (
            statistics.median(each["rate"] for each in row["samples"]),
            statistics.median(each["cpu"] for each in row["samples"]) / 1e6,
        )
        for row in rows
        if row["mode"] == "ours"
    }


def fit_quiet_client(measured: Measured, quiet: dict[int, tuple[float, float]]) -> Cost:
    """The client's costs on that day: its processor time, with the batches that were counted for as many callers."""
    sizes = {point.callers: point.batches / point.pairs for point in measured.points}
    scale = 1_000_000
    points = [(round(sizes[callers] * scale), 2 * scale, cpu * scale) for callers, (_, cpu) in quiet.items()]
    return fit_cost(points)


def estimate_flush(rate: float, client: Cost, server: Cost) -> float:
    """What is left of a lonely operation's time beside the processors and the loopback address."""
    return max(0.0, 1 / (2 * rate) - client.of(1) - server.of(1) - LOOPBACK_SECONDS)


def build_checks(found: Calibration, path: Path) -> Iterator[Check]:
    """The benchmarks' machine: a core for the process, one for the server, its disk, no network. One point gives the
    time of a flush, the others are predicted."""
    for name, store, slug in (("PostgreSQL", "postgres", "postgres-async"), ("Redis", "redis", "redis-aof")):
        quiet = read_quiet(path, slug)
        client = fit_quiet_client(found.stores[store], quiet)
        server = found.stores[store].server
        flush = estimate_flush(quiet[1][0], client, server)

        def build(clock: Clock, _: random.Random, sql: bool = store == "postgres") -> list[Server]:
            return [SqlServer(clock, server, 1, flush) if sql else LoopServer(clock, server, flush)]  # noqa: B023

        flights, pipelined = (2, False) if store == "postgres" else (1, True)
        scenario = Scenario(name, client, build, flights, pipelined, round_trip=LOOPBACK_SECONDS)
        for callers, (rate, _) in quiet.items():
            yield Check(name, callers, rate, scenario.run(1, callers, seconds=1.0).rate)


# The page -----------------------------------------------------------------------------------------


def build_tables(found: Calibration) -> Iterator[str]:
    yield f"Costs, measured as processor time on {found.when} while other programs used the machine too, in µs:"
    yield ""
    yield "| store | the process: a batch, an operation | the server: a batch, an operation |"
    yield "|---|---|---|"
    stores = found.stores
    yield f"| PostgreSQL | {micros(stores['postgres-memory'].client)} | {micros(found.postgres_server)} |"
    turn = f"; a turn of its loop with `appendfsync always` {found.redis_turn * 1e6:.0f}"
    yield f"| Redis | {micros(stores['redis-memory'].client)} | {micros(found.redis_server)}{turn} |"
    yield ""
    yield f"Pairs per second in the model, with {CALLERS_EACH} callers in each application process, and the 99th"
    yield "percentile of a pair:"
    yield ""
    yield f"| store | {' | '.join(map(str, PROCESSES))} processes | limit |"
    yield "|---|" + "---|" * (len(PROCESSES) + 1)
    for each in build_scenarios(found):
        outcomes = [each.run(count) for count in PROCESSES]
        shown = " | ".join(f"{round_rate(one.rate)} ({one.p99 * 1e3:.0f} ms)" for one in outcomes)
        yield f"| {each.name} | {shown} | {name_limit(outcomes[-1])} |"
    yield ""
    yield "The model of one machine against two runs of the benchmarks on a quiet machine, on a slow and on a fast day."
    yield "The time of a flush is estimated from the point with one caller. The client's costs are those of the run,"
    yield "the server's are the ones above:"
    yield ""
    yield f"| store, callers | {' | '.join(f'{path.stem}: measured | modelled | ratio' for path in QUIET)} |"
    yield "|---|" + "---|---|---|" * len(QUIET)
    for checks in zip(*(build_checks(found, path) for path in QUIET), strict=True):
        shown = " | ".join(format_check(each) for each in checks)
        yield f"| {checks[0].name}, {checks[0].callers} | {shown} |"


def format_check(check: Check) -> str:
    return f"{round_rate(check.measured)} | {round_rate(check.modelled)} | {check.modelled / check.measured:.2f}"


def micros(cost: Cost) -> str:
    return f"{cost.batch * 1e6:.0f}, {cost.op * 1e6:.1f}"


def round_rate(rate: float) -> str:
    """Two digits: the model knows no more."""
    digits = max(0, len(str(int(rate))) - 2)
    return f"{round(rate / 10**digits) * 10**digits:,}"


def name_limit(outcome: Outcome) -> str:
    if outcome.server_busy > 0.9:
        return "the server"
    return "the processes" if outcome.client_busy > 0.9 else "waiting for the network and the disk"


def fill_page(page: str, text: str) -> str:
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n{text}\n{END}{tail}"


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser("python -m benchmarks.capacity", description=__doc__)
    parser.add_argument("--measure", action="store_true", help="measure the costs on this machine first")
    parser.add_argument("--check", action="store_true", help="fail if the page is stale")
    given = parser.parse_args(words)
    if given.measure:
        with machines() as at:
            FILE.write_text(json.dumps(measure(at), indent=1) + "\n")
    page = PAGE.read_text()
    fresh = fill_page(page, "\n".join(["", *build_tables(load()), ""]))
    if given.check:
        sys.exit(0 if fresh == page else f"{PAGE.name} is stale: run python -m benchmarks.capacity")
    PAGE.write_text(fresh)


if __name__ == "__main__":
    main()
