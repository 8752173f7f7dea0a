"""Requests per second of a small application behind retrysafe or another package, against the same application bare."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from benchmarks.environment import Environment, environment
from benchmarks.harness import Pace, compare, titled
from benchmarks.machines import Machines
from benchmarks.serving import Kind, Served, WebBench, served
from benchmarks.tables import Table, Target

BARE = "bare application"
CALLERS = (64,)
STORES = ("Redis", "PostgreSQL", "SQLite")
SMOKE = (BARE, *(f"ours, {store}" for store in STORES))

KINDS: tuple[Kind, ...] = ("new keys", "replays", "one hot key", "no key")


class App(NamedTuple):
    """A row: what to start, on which store, and which package it is (empty for ours and the bare ones)."""

    kind: str
    url: str
    package: str = ""
    speedups: bool = False
    """With our compiled extra, which is not installed by default."""
    tuned: bool = False
    """With the settings of Python's collector that docs/howto/speedups.md shows."""


def fastapi(machines: Machines, pace: Pace) -> list[Table]:
    """The application the targets speak of: FastAPI, one uvicorn worker. In front of it, and inside of it; each package
    is compared where it stands."""
    return [*fastapi_edge(machines, pace), *fastapi_inside(machines, pace)]


def fastapi_edge(at: Machines, pace: Pace) -> list[Table]:
    apps = {
        BARE: App("bare-plain", "-"),
        "bare, collector tuned": App("bare-plain", "-", tuned=True),
        "ours, Redis": App("ours-edge-plain", f"{at.redis_memory}?prefix=edge:"),
        "ours with speedups, Redis": App("ours-edge-plain", f"{at.redis_memory}?prefix=edge-c:", speedups=True),
        "ours, collector tuned, Redis": App("ours-edge-plain", f"{at.redis_memory}?prefix=edge-gc:", tuned=True),
        "idemkit, Redis": App("idemkit-redis", at.redis_memory, "idemkit"),
        "fastapi-idempotency-key, Redis": App("fik-redis", at.redis_memory, "fastapi-idempotency-key"),
        "ours, Redis AOF always": App("ours-edge-plain", f"{at.redis}?prefix=edge:"),
        "ours, PostgreSQL": App("ours-edge-plain", f"{at.postgres}?table=web_edge"),
        "idemkit, PostgreSQL": App("idemkit-postgres", at.postgres, "idemkit"),
        "fastapi-idempotency, PostgreSQL": App(
            "fastapi-idempotency-postgres", at.postgres.replace("postgresql:", "asyncpg:"), "fastapi-idempotency"
        ),
        "ours, SQLite": App("ours-edge-plain", f"sqlite:///{at.sqlite('web-edge')}"),
        "fastapi-idempotency-key, SQLite": App("fik-sqlite", at.sqlite("web-fik"), "fastapi-idempotency-key"),
    }
    return measured("fastapi-edge", "FastAPI, in front of the application", "fastapi_app", apps, at, pace, EDGE_TARGETS)


def fastapi_inside(at: Machines, pace: Pace) -> list[Table]:
    apps = {
        BARE: App("bare-model", "-"),
        "bare, collector tuned": App("bare-model", "-", tuned=True),
        "ours, Redis": App("ours-model", f"{at.redis_memory}?prefix=web:"),
        "ours as a dependency, Redis": App("ours-dependency", f"{at.redis_memory}?prefix=dependency:"),
        "ours with speedups, Redis": App("ours-model", f"{at.redis_memory}?prefix=web-c:", speedups=True),
        "ours, collector tuned, Redis": App("ours-model", f"{at.redis_memory}?prefix=web-gc:", tuned=True),
        "idemkit's route class, Redis": App("idemkit-route-redis", at.redis_memory, "idemkit"),
        "idempotency-kit, Redis": App("kit-redis", at.redis_memory, "idempotency-kit"),
        "bare, sync in the thread pool": App("bare-sync", "-"),
        "powertools, Redis (thread pool)": App("powertools-redis", at.redis_memory, "aws-lambda-powertools"),
        "ours, PostgreSQL": App("ours-model", f"{at.postgres}?table=web"),
        "idemkit's route class, PostgreSQL": App("idemkit-route-postgres", at.postgres, "idemkit"),
        "ours, SQLite": App("ours-model", f"sqlite:///{at.sqlite('web')}"),
    }
    return measured("fastapi-inside", "FastAPI, inside", "fastapi_app", apps, at, pace, INSIDE_TARGETS)


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


def targets(new: Sequence[float], replay: float, hot: float, none: float) -> dict[Kind, list[Target]]:
    """What is asked of each kind of request, at least this share of the bare application's rate. `new` has one for each
    of STORES; 0 asks nothing."""
    wanted: dict[Kind, Sequence[float]] = {
        "new keys": new,
        "replays": [replay] * len(STORES),
        "one hot key": [hot] * len(STORES),
        "no key": [none] * len(STORES),
    }
    return {
        kind: [(f"ours, {store}", *CALLERS, least) for store, least in zip(STORES, asked, strict=True) if least]
        for kind, asked in wanted.items()
    }


EDGE_TARGETS = targets((0.70, 0.65, 0.60), replay=0.85, hot=1.5, none=0.0)
INSIDE_TARGETS = targets((0.70, 0.62, 0.62), replay=0.85, hot=0.85, none=0.93)


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
            running[name] = stack.enter_context(
                served(env.python, module, app.kind, app.url, speedups=app.speedups, tuned=app.tuned)
            )
        except RuntimeError as error:
            if not app.package:
                raise
            notes.append(f"{name}: {error}")
            print(f"  {notes[-1]}", file=sys.stderr)
    return running, notes
