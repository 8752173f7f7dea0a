"""Claim + complete pairs per second, against the raw driver one by one."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from urllib.parse import urlsplit

from benchmarks import floors, ours
from benchmarks.harness import Bench, LoopBench, Table, ThreadBench, compare
from benchmarks.machines import Machines

OFF, ON = "ours, batching off", "ours"


@dataclass(frozen=True)
class Pace:
    """How long and how often."""

    callers: tuple[int, ...] = (1, 8, 32, 128)
    seconds: float = 1.5
    rounds: int = 5


QUICK = Pace((1, 32), 0.15, 1)


def targets(one: float, many: float, most: float) -> dict[tuple[str, int], float]:
    return {(ON, 1): one, (ON, 32): many, (ON, 128): most}


def postgres(machines: Machines, pace: Pace) -> list[Table]:
    url = machines.postgres
    loop: list[Bench] = [
        LoopBench("asyncpg", lambda: floors.asyncpg_pairs(url)),
        LoopBench("psycopg, async", lambda: floors.psycopg_pairs(url)),
        LoopBench(OFF, lambda: ours.async_pairs(f"{url}?table=bench_off", False)),
        LoopBench(ON, lambda: ours.async_pairs(f"{url}?table=bench_on", True)),
    ]
    threads: list[Bench] = [
        ThreadBench("psycopg, threads", lambda: floors.psycopg_threads(url)),
        ThreadBench(OFF, lambda: ours.thread_pairs(f"{url}?table=bench_off_t", False)),
        ThreadBench(ON, lambda: ours.thread_pairs(f"{url}?table=bench_on_t", True)),
    ]
    one = compare("PostgreSQL, async, against asyncpg one by one", loop, pace.callers, pace.seconds, pace.rounds)
    one.targets = targets(1.0, 4.0, 7.0)
    two = compare("PostgreSQL, threads, against psycopg one by one", threads, pace.callers, pace.seconds, pace.rounds)
    two.targets = {(ON, 32): 3.0}
    note = pgbench(url, pace)
    if note:
        one.notes.append(note)
    return [one, two]


def pgbench(url: str, pace: Pace) -> str:
    """The same two statements from C, where pgbench is at hand: how much of the floor is Python's."""
    program = shutil.which("pgbench")
    if program is None:
        return "pgbench is not installed here; the C client was not measured"
    at = urlsplit(url)
    script = (
        "\\set a random(1, 1000000000)\n\\set b random(1, 1000000000)\n"
        "INSERT INTO floor VALUES (sha256((:a::text || '-' || :b::text)::bytea), '\\x00', 'claimed', NULL)"
        " ON CONFLICT DO NOTHING RETURNING key;\n"
        "UPDATE floor SET state = 'completed', body = repeat('x', 200)::bytea"
        " WHERE key = sha256((:a::text || '-' || :b::text)::bytea) AND token = '\\x00' RETURNING 1;\n"
    )
    found = []
    for callers in pace.callers:
        pace_words = ("-c", str(callers), "-j", "1", "-M", "prepared", "-T", str(max(1, int(pace.seconds))))
        where = ("-h", at.hostname or "", "-p", str(at.port), "-U", at.username or "postgres", at.path.lstrip("/"))
        command = [program, "-n", "-f", "-", *pace_words, *where]
        done = subprocess.run(command, input=script, capture_output=True, text=True, check=False)
        rate = [line.split()[2] for line in done.stdout.splitlines() if line.startswith("tps")]
        found.append(f"{callers}: {float(rate[0]):.0f}/s" if rate else f"{callers}: failed")
    return "pgbench, the same two statements, pairs by callers: " + ", ".join(found)


def sqlite(machines: Machines, pace: Pace) -> list[Table]:
    loop: list[Bench] = [
        LoopBench("aiosqlite", lambda: floors.aiosqlite_pairs(machines.sqlite("floor"))),
        LoopBench(OFF, lambda: ours.async_pairs(f"sqlite:///{machines.sqlite('off')}", False)),
        LoopBench(ON, lambda: ours.async_pairs(f"sqlite:///{machines.sqlite('on')}", True)),
    ]
    threads: list[Bench] = [
        ThreadBench("sqlite3, a lock", lambda: floors.sqlite_threads(machines.sqlite("floor-t"))),
        ThreadBench(OFF, lambda: ours.thread_pairs(f"sqlite:///{machines.sqlite('off-t')}", False)),
        ThreadBench(ON, lambda: ours.thread_pairs(f"sqlite:///{machines.sqlite('on-t')}", True)),
    ]
    title = "SQLite (synchronous=FULL), async, against aiosqlite with a commit per write"
    one = compare(title, loop, pace.callers, pace.seconds, pace.rounds)
    one.targets = targets(1.3, 3.0, 4.0)
    title = "SQLite (synchronous=FULL), threads, against one connection behind a lock"
    return [one, compare(title, threads, pace.callers, pace.seconds, pace.rounds)]


def redis(machines: Machines, pace: Pace) -> list[Table]:
    tables = []
    for label, url in (("appendfsync always", machines.redis), ("no append-only file", machines.redis_memory)):
        loop: list[Bench] = [
            LoopBench("redis-py", lambda url=url: floors.redis_pairs(url)),  # type: ignore[misc]
            LoopBench(OFF, lambda url=url: ours.async_pairs(f"{url}?prefix=off:", False)),  # type: ignore[misc]
            LoopBench(ON, lambda url=url: ours.async_pairs(f"{url}?prefix=on:", True)),  # type: ignore[misc]
        ]
        title = f"Redis ({label}), async, against redis-py one by one"
        table = compare(title, loop, pace.callers, pace.seconds, pace.rounds)
        table.targets = targets(1.0, 4.0, 8.0)
        tables.append(table)
    url = machines.redis
    threads: list[Bench] = [
        ThreadBench("redis-py, threads", lambda: floors.redis_threads(url)),
        ThreadBench(OFF, lambda: ours.thread_pairs(f"{url}?prefix=offt:", False)),
        ThreadBench(ON, lambda: ours.thread_pairs(f"{url}?prefix=ont:", True)),
    ]
    title = "Redis (appendfsync always), threads, against redis-py one by one"
    return [*tables, compare(title, threads, pace.callers, pace.seconds, pace.rounds)]
