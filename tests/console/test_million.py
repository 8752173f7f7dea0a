"""On a million records every page answers in the time and the memory of a page on a thousand, within a factor. A
campaign: `pytest -m campaign tests/console/test_million.py -s` prints the table. RETRYSAFE_CONSOLE_RECORDS is another
size."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.testing.builders import claim, complete, suspect

SMALL = 1_000
LARGE = int(os.environ.get("RETRYSAFE_CONSOLE_RECORDS", "1000000"))
ROUNDS = 60
PATHS = (
    "/", "/keys", "/keys?state=completed", "/keys?state=uncertain", "/keys?target=none", "/keys?older_than=99999999",
    "/keys?key=k1&scope=t1", "/operations", "/outbox", "/audit", "/doctor",
)  # fmt: skip

MEASURE = """
import json, sys, time
from pathlib import Path
from retrysafe import RetrySafe
from retrysafe.console import Console, Operator, Request

url, rounds, paths = sys.argv[1], int(sys.argv[2]), json.loads(sys.argv[3])
safe = RetrySafe(url)
console = Console(safe, authenticate=lambda request: Operator("ann"))
found = {}
for path in paths:
    times = []
    for _ in range(rounds):
        place, _, query = path.partition("?")
        began = time.perf_counter()
        response = console.handle(Request("GET", place, query))
        times.append(time.perf_counter() - began)
        assert response.status == 200, response.body[-300:]
    found[path] = sorted(times)[min(len(times) - 1, int(len(times) * 0.99))]
# Not getrusage: a child that was forked starts from the peak of its parent.
(peak,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM")]
print(json.dumps({"p99": found, "rss": int(peak.split()[1])}))
"""


def grow(path: Path, count: int) -> str:
    """A store with so many records. One of them was completed; most are copies of it with other ids."""
    url = f"sqlite:///{path}"
    with RetrySafe(url) as safe:
        safe.migrate()
        safe.store.execute(complete(safe.store.execute(claim("done", now=None, target="POST /pay")), now=None))
        for number in range(50):
            safe.store.execute(suspect(safe.store.execute(claim(f"odd-{number}", now=1)), now=2))
    with sqlite3.connect(path) as database:
        columns = [row[1] for row in database.execute("PRAGMA table_info(retrysafe_keys)")]
        others = ", ".join(f'"{name}"' for name in columns if name != "id")
        database.execute(
            f"""WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {count - 51})
            INSERT INTO retrysafe_keys (id, {others}) SELECT randomblob(32), {others} FROM retrysafe_keys, n
            WHERE state = 'completed'"""
        )
    return url


def measure(url: str) -> Any:
    command = [sys.executable, "-c", MEASURE, url, str(ROUNDS), json.dumps(PATHS)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.campaign
def test_pages_are_bounded(tmp_path: Path) -> None:
    small, large = (measure(grow(tmp_path / f"{count}.db", count)) for count in (SMALL, LARGE))
    (tmp_path / f"{LARGE}.db").unlink()
    print(f"\nRSS {small['rss']:,} KB at {SMALL:,}, {large['rss']:,} KB at {LARGE:,}")
    for path in PATHS:
        print(f"{path:28} p99 {small['p99'][path] * 1000:8.1f} ms {large['p99'][path] * 1000:8.1f} ms")
    assert large["rss"] < small["rss"] * 1.5
    for path in PATHS:
        assert large["p99"][path] < max(1.0, 10 * small["p99"][path]), path
