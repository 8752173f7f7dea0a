"""Requests per second of a small application behind retrysafe or another package, against the same application bare."""

from __future__ import annotations

import sys
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.environment import Environment, environment
from benchmarks.harness import Pace, compare, titled
from benchmarks.machines import Machines
from benchmarks.serving import Kind, Served, WebBench, served
from benchmarks.tables import Table, Target

BARE = "bare application"
CALLERS = (32,)
SMOKE = (BARE, "ours, Redis", "ours, PostgreSQL", "ours, SQLite")
OURS = ("ours", "ours at the edge")
"""As the README has it, and where most other packages stand: the same is asked of both."""

KINDS: tuple[Kind, ...] = ("new keys", "replays", "no key")


class App(NamedTuple):
    """A row: what to start, on which store, and which package it is (empty for ours and the bare ones)."""

    kind: str
    url: str
    package: str = ""


def fastapi(machines: Machines, pace: Pace) -> list[Table]:
    """The application the targets speak of: FastAPI, one uvicorn worker."""
    at = machines
    apps = {
        BARE: App("bare", "-"),
        "ours, Redis": App("ours", f"{at.redis_memory}?prefix=web:"),
        "ours at the edge, Redis": App("ours-edge", f"{at.redis_memory}?prefix=edge:"),
        "idemkit, Redis": App("idemkit-redis", at.redis_memory, "idemkit"),
        "fastapi-idempotency-key, Redis": App("fik-redis", at.redis_memory, "fastapi-idempotency-key"),
        "idempotency-kit, Redis": App("kit-redis", at.redis_memory, "idempotency-kit"),
        "bare, sync in the thread pool": App("bare-sync", "-"),
        "powertools, Redis (thread pool)": App("powertools-redis", at.redis_memory, "aws-lambda-powertools"),
        "ours, Redis AOF always": App("ours", f"{at.redis}?prefix=web:"),
        "ours, PostgreSQL": App("ours", f"{at.postgres}?table=web"),
        "ours at the edge, PostgreSQL": App("ours-edge", f"{at.postgres}?table=web_edge"),
        "idemkit, PostgreSQL": App("idemkit-postgres", at.postgres, "idemkit"),
        "fastapi-idempotency, PostgreSQL": App(
            "fastapi-idempotency-postgres", at.postgres.replace("postgresql:", "asyncpg:"), "fastapi-idempotency"
        ),
        "ours, SQLite": App("ours", f"sqlite:///{at.sqlite('web')}"),
        "ours at the edge, SQLite": App("ours-edge", f"sqlite:///{at.sqlite('web-edge')}"),
        "fastapi-idempotency-key, SQLite": App("fik-sqlite", at.sqlite("web-fik"), "fastapi-idempotency-key"),
    }
    return measured("fastapi", "FastAPI", "fastapi_app", apps, at, pace, TARGETS)


def asgi(machines: Machines, pace: Pace) -> list[Table]:
    """No framework at all: see benchmarks/apps/asgi_app.py. Nothing is asked of it."""
    at = machines
    apps = {
        BARE: App("bare", "-"),
        "ours, Redis": App("ours", f"{at.redis_memory}?prefix=raw:"),
        "ours, PostgreSQL": App("ours", f"{at.postgres}?table=raw"),
        "ours, SQLite": App("ours", f"sqlite:///{at.sqlite('raw')}"),
        "ours, memory": App("ours", "memory://"),
    }
    return measured("asgi", "Raw ASGI", "asgi_app", apps, at, pace, {})


def django(machines: Machines, pace: Pace) -> list[Table]:
    """Django REST framework, one gunicorn worker with eight threads."""
    at = machines
    apps = {
        BARE: App("bare", "-"),
        "ours, Redis": App("ours", f"{at.redis_memory}?prefix=drf:"),
        "drf-idempotency, Redis": App("peer-redis", at.redis_memory, "drf-idempotency"),
        "ours, PostgreSQL": App("ours", at.postgres),
        "drf-idempotency, PostgreSQL": App("peer-database", at.postgres, "drf-idempotency"),
        "ours, SQLite": App("ours", f"sqlite:///{at.sqlite('drf')}"),
    }
    return measured("django", "Django REST framework", "django_app", apps, at, pace, {})


WANTED: dict[Kind, dict[str, float]] = {
    "new keys": {"Redis": 0.70, "PostgreSQL": 0.60, "SQLite": 0.60},
    "replays": {"Redis": 0.85, "PostgreSQL": 0.85, "SQLite": 0.85},
}
TARGETS: dict[Kind, list[Target]] = {
    kind: [(f"{ours}, {store}", 32, least) for ours in OURS for store, least in wanted.items()]
    for kind, wanted in WANTED.items()
}


def measured(
    slug: str,
    label: str,
    module: str,
    apps: dict[str, App],
    machines: Machines,
    pace: Pace,
    targets: dict[Kind, list[Target]],
) -> list[Table]:
    env = Environment(sys.executable) if pace.label == "quick" else machines.once("peers", environment)
    if pace.label == "quick":  # nobody else's package is installed for a smoke run
        apps = {name: app for name, app in apps.items() if name in SMOKE}
    with ExitStack() as stack:
        running, notes = started(env, module, apps, stack)
        return [requests(slug, label, kind, apps, running, pace, targets.get(kind, []), notes) for kind in KINDS]


def requests(
    slug: str,
    label: str,
    kind: Kind,
    apps: dict[str, App],
    running: dict[str, Served],
    pace: Pace,
    targets: list[Target],
    notes: list[str],
) -> Table:
    benches = [WebBench(name, at, kind, bool(apps[name].package)) for name, at in running.items()]
    title = f"{label}, {kind}: requests against the bare application"
    table = titled(f"{slug}-{kind.replace(' ', '-')}", title, benches)
    table.targets = targets
    table.notes += notes
    compare(table, benches, CALLERS, pace)
    table.wrong = [bench.name for bench in benches if bench.wrong()]
    return table


def started(
    env: Environment, module: str, apps: dict[str, App], stack: ExitStack
) -> tuple[dict[str, Served], list[str]]:
    """The applications that could be started; why the others could not."""
    running, notes = {}, env.notes()
    for name, app in apps.items():
        if app.package in env.missing:
            continue
        try:
            running[name] = stack.enter_context(served(env.python, module, app.kind, app.url))
        except RuntimeError as error:
            if not app.package:
                raise
            notes.append(f"{name}: {error}")
            print(f"  {notes[-1]}", file=sys.stderr)
    return running, notes
