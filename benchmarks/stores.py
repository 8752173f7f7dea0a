"""Claim + complete pairs per second, against the raw driver one by one."""

from __future__ import annotations

from functools import partial

from benchmarks import floors, ours
from benchmarks.harness import Bench, LoopBench, Pace, ThreadBench, compare, titled
from benchmarks.machines import Machines
from benchmarks.pgbench import PgBench
from benchmarks.tables import Table, Target

OFF, ON = "ours, batching off", "ours"


def targets(one: float, many: float, most: float) -> list[Target]:
    return [(ON, 1, one), (ON, 32, many), (ON, 128, most)]


def own(url: str, mark: str) -> list[Bench]:
    """Ours among tasks, without and with batching, each in tables or keys of its own."""
    return [
        LoopBench(OFF, partial(ours.async_pairs, f"{url}{mark}off", False)),
        LoopBench(ON, partial(ours.async_pairs, f"{url}{mark}on", True)),
    ]


def own_threads(url: str, mark: str) -> list[Bench]:
    return [
        ThreadBench(OFF, partial(ours.thread_pairs, f"{url}{mark}off_t", False)),
        ThreadBench(ON, partial(ours.thread_pairs, f"{url}{mark}on_t", True)),
    ]


def measured(slug: str, title: str, benches: list[Bench], pace: Pace, wanted: list[Target]) -> Table:
    table = titled(slug, title, benches)
    table.targets = [each for each in wanted if each[1] in pace.callers]
    return compare(table, benches, pace.callers, pace)


def postgres(machines: Machines, pace: Pace) -> list[Table]:
    url = machines.postgres
    loop: list[Bench] = [
        LoopBench("asyncpg", partial(floors.asyncpg_pairs, url)),
        LoopBench("psycopg, async", partial(floors.psycopg_pairs, url)),
        PgBench("pgbench (C), the same statements", url),
        *own(url, "?table=bench_"),
    ]
    threads: list[Bench] = [
        ThreadBench("psycopg, threads", partial(floors.psycopg_threads, url)),
        *own_threads(url, "?table=bench_"),
    ]
    title = "PostgreSQL, async: pairs against asyncpg one by one"
    one = measured("postgres-async", title, loop, pace, targets(1.0, 4.0, 7.0))
    title = "PostgreSQL, threads: pairs against psycopg one by one"
    return [one, measured("postgres-threads", title, threads, pace, [(ON, 32, 3.0)])]


def sqlite(machines: Machines, pace: Pace) -> list[Table]:
    url = f"sqlite:///{machines.sqlite('bench')}"
    loop: list[Bench] = [
        LoopBench("aiosqlite", partial(floors.aiosqlite_pairs, machines.sqlite("floor"))),
        LoopBench("aiosqlite, execute, then commit", partial(floors.aiosqlite_documented, machines.sqlite("floor-d"))),
        *own(url, "-"),
    ]
    threads: list[Bench] = [
        ThreadBench("sqlite3, a lock", partial(floors.sqlite_threads, machines.sqlite("floor-t"))),
        *own_threads(url, "-"),
    ]
    title = "SQLite (synchronous=FULL), async: pairs against aiosqlite, a commit per write"
    one = measured("sqlite-async", title, loop, pace, targets(1.3, 3.2, 4.5))
    title = "SQLite (synchronous=FULL), threads: pairs against one connection behind a lock"
    return [one, measured("sqlite-threads", title, threads, pace, [])]


def redis(machines: Machines, pace: Pace) -> list[Table]:
    tables = []
    kinds = {"memory": ("no append-only file", machines.redis_memory), "aof": ("appendfsync always", machines.redis)}
    for slug, (label, url) in kinds.items():
        loop: list[Bench] = [LoopBench("redis-py", partial(floors.redis_pairs, url)), *own(url, "?prefix=")]
        title = f"Redis ({label}), async: pairs against redis-py one by one"
        tables.append(measured(f"redis-{slug}", title, loop, pace, targets(1.0, 4.0, 8.0)))
    url = machines.redis_memory
    threads: list[Bench] = [
        ThreadBench("redis-py, threads", partial(floors.redis_threads, url)),
        *own_threads(url, "?prefix="),
    ]
    title = "Redis (no append-only file), threads: pairs against redis-py one by one"
    return [*tables, measured("redis-threads", title, threads, pace, [])]


def mysql(machines: Machines, pace: Pace) -> list[Table]:
    return mysql_family("mysql", "MySQL", machines.mysql, pace)


def mariadb(machines: Machines, pace: Pace) -> list[Table]:
    return mysql_family("mariadb", "MariaDB", machines.mariadb, pace)


def mysql_family(slug: str, name: str, url: str, pace: Pace) -> list[Table]:
    loop: list[Bench] = [LoopBench("asyncmy", partial(floors.asyncmy_pairs, url)), *own(url, "?table=bench_")]
    threads: list[Bench] = [
        ThreadBench("PyMySQL, threads", partial(floors.pymysql_threads, url)),
        *own_threads(url, "?table=bench_"),
    ]
    title = f"{name}, async: pairs against asyncmy one by one"
    one = measured(f"{slug}-async", title, loop, pace, targets(0.9, 2.0, 3.5))
    title = f"{name}, threads: pairs against PyMySQL one by one"
    return [one, measured(f"{slug}-threads", title, threads, pace, [])]


def mongodb(machines: Machines, pace: Pace) -> list[Table]:
    url = machines.mongo
    mark = f"{'&' if '?' in url else '?'}collection=bench_"
    loop: list[Bench] = [LoopBench("pymongo, async", partial(floors.pymongo_pairs, url)), *own(url, mark)]
    threads: list[Bench] = [
        ThreadBench("pymongo, threads", partial(floors.pymongo_threads, url)),
        *own_threads(url, mark),
    ]
    title = "MongoDB (majority, journal), async: pairs against pymongo one by one"
    one = measured("mongodb-async", title, loop, pace, targets(0.95, 2.0, 4.0))
    title = "MongoDB (majority, journal), threads: pairs against pymongo one by one"
    return [one, measured("mongodb-threads", title, threads, pace, [])]


def dynamodb(machines: Machines, pace: Pace) -> list[Table]:
    """Batching is left out: DynamoDB has no batch of conditional writes."""
    url = machines.dynamodb
    loop: list[Bench] = [
        LoopBench("aiobotocore", partial(floors.aiobotocore_pairs, url)),
        LoopBench(ON, partial(ours.async_pairs, f"{url}&table=bench_on", True)),
    ]
    title = "DynamoDB (Dynoxide), async: pairs against aiobotocore one by one"
    return [measured("dynamodb-async", title, loop, pace, [(ON, 1, 0.9), (ON, 32, 1.0)])]
