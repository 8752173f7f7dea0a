"""On a million finished records every page costs as much as on twenty thousand: no page passes over more than ten
thousand. So it takes at most ten times the rows of a page on a thousand. With a million open keys it is bounded, too.

Judged is the CPU time of the console and the server of its store: the time on the clock depends on what else runs. That
time is printed, as p99 and median.

A campaign: `pytest -m campaign tests/console/test_million.py -s` prints the table. RETRYSAFE_CONSOLE_RECORDS is another
size."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import pytest
import redis

from retrysafe import RetrySafe
from retrysafe.testing.builders import claim, complete, suspect

SMALL = 1_000
MIDDLE = 20_000
"""Twice what the store passes over for one page."""
LARGE = int(os.environ.get("RETRYSAFE_CONSOLE_RECORDS", "1000000"))
ROUNDS = 60
ODD = 50
ODD_ID = claim("odd-0").id.hex()
BATCH = 1_000
PATHS = (
    "/", "/keys", "/keys?state=completed", "/keys?state=uncertain", "/keys?target=none", "/keys?older_than=99999999",
    "/keys?key=k1&scope=t1", "/keys?scope=nobody", "/keys?kind=webhook", "/keys?state=released", "/operations",
    "/operations?state=completed", "/outbox", "/audit", "/audit?days=400", "/doctor", f"/keys/{ODD_ID}",
)  # fmt: skip
OTHER_PATHS = ("/", "/keys", "/keys?state=uncertain", "/operations", "/outbox", "/audit")
"""Of an application that has nothing in a store that is full of others'."""

ALL_PATHS = (*PATHS, *(f"other {path}" for path in OTHER_PATHS))

MEASURE = """
import json, sys, time
from pathlib import Path
from retrysafe import RetrySafe
from retrysafe.console import Console, ConsoleRequest, Operator

url, rounds, paths, server = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3]), int(sys.argv[4])
consoles = [
    Console(RetrySafe(url, namespace=name), authenticate=lambda request: Operator("ann"))
    for name in ("default", "other")
]


def read_server_cpu():
    # The server and its children, in nanoseconds on a processor.
    total = 0
    for each in Path("/proc").glob("[0-9]*") if server else ():
        try:
            if int(each.name) == server or int((each / "stat").read_text().rpartition(")")[2].split()[1]) == server:
                total += int((each / "schedstat").read_text().split()[0])
        except (OSError, IndexError):
            continue
    return total / 1e9


p99, medians, cpu = {}, {}, {}
for path in paths:
    times = []
    console, named = consoles[path.startswith("other ")], path.removeprefix("other ")
    place, _, query = named.partition("?")
    console.handle(ConsoleRequest("GET", place, query))  # connections, templates
    served, worked = read_server_cpu(), time.process_time()
    for _ in range(rounds):
        began = time.perf_counter()
        response = console.handle(ConsoleRequest("GET", place, query))
        times.append(time.perf_counter() - began)
        assert response.status == 200, response.body[-300:]
    cpu[path] = (time.process_time() - worked + read_server_cpu() - served) / rounds
    times.sort()
    p99[path] = times[min(len(times) - 1, int(len(times) * 0.99))]
    medians[path] = times[len(times) // 2]
# Not getrusage: a child that was forked starts from the peak of its parent.
(peak,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(json.dumps({"p99": p99, "median": medians, "cpu": cpu, "rss": int(peak.split()[1])}))
"""


def plant(url: str) -> None:
    """One record that is completed, which `grow` copies, and fifty that need a person."""
    with RetrySafe(url) as safe:
        safe.migrate()
        safe.store.execute(complete(safe.store.execute(claim("done", now=None, target="POST /pay")), now=None))
        for number in range(ODD):
            safe.store.execute(suspect(safe.store.execute(claim(f"odd-{number}", now=1)), now=2))


def grow_sqlite(url: str, count: int) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(retrysafe_keys)")]
        others = ", ".join(f'"{name}"' for name in columns if name != "id")
        database.execute(
            f"""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count})
            INSERT INTO retrysafe_keys (id, {others}) SELECT randomblob(32), {others}
            FROM (SELECT * FROM retrysafe_keys WHERE key = 'done' LIMIT 1), n"""
        )


def grow_postgres(url: str, count: int) -> None:
    """And what autovacuum does after a while."""
    with psycopg.connect(url, autocommit=True) as database:
        found = database.execute("SELECT * FROM retrysafe_keys LIMIT 0")
        others = ", ".join(f'"{each.name}"' for each in found.description or () if each.name != "id")
        database.execute(
            f"""INSERT INTO retrysafe_keys (id, {others})
            SELECT sha256(convert_to('{count} ' || n, 'UTF8')), {others}
            FROM (SELECT * FROM retrysafe_keys WHERE key = 'done' LIMIT 1) AS done, generate_series(1, {count}) AS n"""  # type: ignore[arg-type]
        )
        database.execute("VACUUM ANALYZE retrysafe_keys")


def grow_redis(url: str, count: int) -> None:
    """By claims and completions: a record is in several indexes."""
    with RetrySafe(url) as safe:
        for first in range(0, count, BATCH):
            numbers = range(first, min(first + BATCH, count))
            claims = [claim(f"k-{count}-{n}", now=None, target="POST /pay") for n in numbers]
            granted = safe.store.execute_many(claims)
            safe.store.execute_many([complete(each, now=None) for each in granted])


GROW: dict[str, Callable[[str, int], None]] = {
    "sqlite": grow_sqlite, "postgres": grow_postgres, "redis": grow_redis,
}  # fmt: skip


def find_server(url: str) -> int:
    """The process whose CPU time counts besides the console's own. 0: the store has no server."""
    if url.startswith("postgres"):
        with psycopg.connect(url) as database:
            backend = database.info.backend_pid
            return int(Path(f"/proc/{backend}/stat").read_text().rpartition(")")[2].split()[1])
    if url.startswith("redis"):
        with redis.Redis.from_url(url) as server:
            return int(server.info("server")["process_id"])
    return 0


def measure(url: str) -> Any:
    command = [sys.executable, "-c", MEASURE, url, str(ROUNDS), json.dumps(ALL_PATHS), str(find_server(url))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


def open_sqlite(url: str) -> None:
    with sqlite3.connect(url.removeprefix("sqlite:///")) as database:
        database.execute(ALL_OPEN)


def open_postgres(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as database:
        database.execute(ALL_OPEN)
        database.execute("VACUUM ANALYZE retrysafe_keys")


ALL_OPEN = "UPDATE retrysafe_keys SET state = 'uncertain', lease_until = 1, status = NULL WHERE kind <> 'audit'"
OPEN: dict[str, Callable[[str], None]] = {"sqlite": open_sqlite, "postgres": open_postgres}
"""What an incident leaves behind: every key is uncertain."""

GROWTH = 3.0
"""How much more CPU time a page may take on a million finished records than on twenty thousand. It reads no more rows,
but they are not in a cache any more; and beside other work each instruction takes up to twice as long."""
NOISE_SECONDS = 0.01
MAX_CPU_SECONDS = 0.2
"""Of one page, with a million that are open."""


@pytest.mark.campaign
@pytest.mark.parametrize("store", GROW)
def test_pages_are_bounded(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    url = f"sqlite:///{tmp_path}/app.db" if store == "sqlite" else request.getfixturevalue(f"{store}_url")
    plant(url)
    measured = {}
    before = ODD + 1
    for size in (SMALL, MIDDLE, LARGE):
        GROW[store](url, size - before)
        measured[f"{size:,}"] = measure(url)
        before = size
    if store in OPEN:
        OPEN[store](url)
        measured["all open"] = measure(url)
    print(f"\n{store}: RSS " + ", ".join(f"{found['rss']:,} KB at {name}" for name, found in measured.items()))
    for path in ALL_PATHS:
        figures = (
            f"{each['p99'][path] * 1000:8.1f} ({each['median'][path] * 1000:6.1f}; {each['cpu'][path] * 1000:6.1f})"
            for each in measured.values()
        )
        print(f"{path[:34]:34} p99 (median; CPU), ms: {' '.join(figures)}")
    small, middle, large, *opened = measured.values()
    for found in (large, *opened):
        assert found["rss"] < small["rss"] * 1.5
    grown = {
        path: (middle["cpu"][path], large["cpu"][path])
        for path in ALL_PATHS
        if large["cpu"][path] > GROWTH * middle["cpu"][path] + NOISE_SECONDS
    }
    assert grown == {}, "what is finished costs no more than the bound of a page"
    dear = {
        path: found["cpu"][path]
        for found in (large, *opened)
        for path in ALL_PATHS
        if found["cpu"][path] > MAX_CPU_SECONDS
    }
    assert dear == {}
