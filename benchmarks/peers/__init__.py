"""Other packages on the same tiny application, in an environment of their own (`.tools/peers`), made on demand.

They are not in the test lock: what they depend on must not decide what we are tested with. A package that cannot be had
is named in the results, and nothing is claimed about it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from tests.servers.ports import free_port

from benchmarks.harness import Bench, LoopBench, Table, compare
from benchmarks.machines import Machines
from benchmarks.stores import Pace
from benchmarks.web import BARE, CALLERS, ROOT, new_keys, replays, served

HOME = ROOT / ".tools" / "peers"
PYTHON = HOME / "bin" / "python"
COMMON = ("fastapi", "uvicorn", "uvloop", "httptools", "redis", "hiredis", "psycopg[binary]", "psycopg-pool", "asyncpg")
PACKAGES = ("idemkit", "fastapi-idempotency-key", "aiosqlite")
NOT_WIRED = "not wired up yet: aws-lambda-powertools, fastapi-idempotency, idempotency-kit, drf-idempotency"


def installed() -> str:
    """Make the environment; the reason if that is impossible."""
    sys.path.insert(0, str(ROOT / "tools"))
    import bootstrap

    uv, env = str(bootstrap.UV), bootstrap.environment()
    steps = [[uv, "pip", "install", "-q", "--python", str(PYTHON), *COMMON, *PACKAGES]]
    if not PYTHON.exists():
        steps.insert(0, [uv, "venv", "-q", "--python", sys.executable, str(HOME)])
    for step in steps:
        done = subprocess.run(step, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.stderr.strip()[-500:] or f"{step[0]} ended with {done.returncode}"
    return ""


def peers(machines: Machines, pace: Pace) -> list[Table]:
    why = installed()
    if why:
        print(f"PEERS WERE NOT RUN: {why}", file=sys.stderr)
        return [Table("Peers", BARE, notes=[f"not run, their packages could not be installed: {why}"])]
    applications = {
        BARE: ("bare", "-"),
        "ours, Redis": ("ours", f"{machines.redis_memory}?prefix=ours:"),
        "idemkit, Redis": ("idemkit-redis", machines.redis_memory),
        "fastapi-idempotency-key, Redis": ("fik-redis", machines.redis_memory),
        "ours, PostgreSQL": ("ours", f"{machines.postgres}?table=peers_ours"),
        "idemkit, PostgreSQL": ("idemkit-postgres", machines.postgres),
        "ours, SQLite": ("ours", f"sqlite:///{machines.sqlite('peers-ours')}"),
        "fastapi-idempotency-key, SQLite": ("fik-sqlite", machines.sqlite("peers-fik")),
    }
    ports: dict[str, int] = {}
    notes = [NOT_WIRED, "fastapi-idempotency-key answers its replays with 422: a wrong answer, measured all the same"]
    for name, (kind, url) in applications.items():
        port = free_port()
        try:
            command = [str(PYTHON), str(Path(__file__).parent / "serve.py"), kind, str(port), url]
            machines.stack.enter_context(served(command, port))
            ports[name] = port
        except RuntimeError as error:
            notes.append(f"{name} did not start: {error}")
    tables = []
    for title, make in (("new keys", new_keys), ("replays", replays)):
        benches: list[Bench] = [
            LoopBench(name, lambda name=name, port=port, make=make: make(port, right(name)))  # type: ignore[misc]
            for name, port in ports.items()
        ]
        title = f"FastAPI, {title}: ours and others, against the bare application"
        tables.append(compare(title, benches, CALLERS, pace.seconds, pace.rounds))
        tables[-1].targets = TARGETS[len(tables) - 1]
        tables[-1].notes += notes
    return tables


def right(name: str) -> int | None:
    """The status to insist on. fastapi-idempotency-key answers a replay with 422; its speed at that is still shown."""
    return None if name.startswith("fastapi-idempotency-key") else 201


TARGETS: list[dict[tuple[str, int], float]] = [
    {("ours, Redis", 32): 0.70, ("ours, PostgreSQL", 32): 0.60, ("ours, SQLite", 32): 0.60},
    {("ours, Redis", 32): 0.85, ("ours, PostgreSQL", 32): 0.85, ("ours, SQLite", 32): 0.85},
]
