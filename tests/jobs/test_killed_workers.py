"""Each queue with its real broker and real worker processes: jobs enqueued twice, workers killed meanwhile.

`RETRYSAFE_JOBS` and `RETRYSAFE_JOB_KILLS` set how many in the campaign; `make test` runs a small one of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit
from uuid import uuid4

import psycopg
import pytest
from psycopg import sql

from tests.conftest import shared_url
from tests.servers.valkey import ValkeyServer

ROOT = Path(__file__).parents[2]
ARQ = ROOT / ".tools" / "arq" / "bin" / "python"
"""arq pins an older redis-py than the rest of the suite uses: tools/bootstrap.py gives it an environment."""

QUEUES = ("celery", "dramatiq", "rq", "arq", "taskiq", "bullmq", "huey", "procrastinate")
ON_RABBITMQ = ("celery", "dramatiq", "taskiq")
"""The others have no broker for it: they are made for Redis, and Procrastinate for PostgreSQL."""
PATIENCE = 1800.0


@pytest.fixture
def database() -> Iterator[str]:
    """A database of this test's own: store, effects and, for Procrastinate, the queue."""
    server, name = shared_url("postgres"), f"jobs_{uuid4().hex[:12]}"
    with psycopg.connect(server, autocommit=True) as admin:
        admin.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        yield urlunsplit(urlsplit(server)._replace(path=f"/{name}"))
        admin.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def broker() -> Iterator[str]:
    """A broker of this test's own: queues know no prefixes, and some keep lists of all that is there."""
    server = ValkeyServer(appendfsync="everysec").start()
    yield server.url
    server.stop()


def drive(queue: str, jobs: int, kills: int, workers: int, *, database: str, broker: str) -> dict[str, Any]:
    python = str(ARQ) if queue == "arq" else sys.executable
    environment = {
        **os.environ,
        "JOBS_DATABASE": database,
        "JOBS_BROKER": broker,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    ended = subprocess.run(
        [python, "-m", "tests.jobs.drive", f"on_{queue}", str(jobs), str(kills), str(workers), "7"],
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-6000:]
    told: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(queue, told)
    return told


def check(told: dict[str, Any], jobs: int, kills: int) -> None:
    assert told["sent_first"] == jobs
    assert told["killed"] == kills
    assert told["rows"] == jobs // 2  # in a transaction: exactly one row each
    assert told["charges"] == jobs - jobs // 2  # at a provider that knows its keys: one charge each
    assert told["done"] == told["first_results"] == told["kept"] == jobs


@pytest.mark.parametrize("queue", QUEUES)
def test_jobs_enqueued_twice_run_once_while_workers_are_killed(queue: str, database: str, broker: str) -> None:
    check(drive(queue, 40, 1, 1, database=database, broker=broker), 40, 1)


@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.parametrize("queue", ON_RABBITMQ)
def test_jobs_on_rabbitmq_run_once_while_workers_are_killed(queue: str, database: str, rabbitmq_url: str) -> None:
    check(drive(queue, 20, 1, 1, database=database, broker=rabbitmq_url), 20, 1)


@pytest.mark.campaign
@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.parametrize("queue", ON_RABBITMQ)
def test_a_thousand_jobs_on_rabbitmq(queue: str, database: str, rabbitmq_url: str) -> None:
    jobs = int(os.environ.get("RETRYSAFE_JOBS", "1000"))
    kills = int(os.environ.get("RETRYSAFE_JOB_KILLS", "12"))
    check(drive(queue, jobs, kills, 2, database=database, broker=rabbitmq_url), jobs, kills)


@pytest.mark.campaign
@pytest.mark.parametrize("queue", QUEUES)
def test_a_thousand_jobs(queue: str, database: str, broker: str) -> None:
    jobs = int(os.environ.get("RETRYSAFE_JOBS", "1000"))
    kills = int(os.environ.get("RETRYSAFE_JOB_KILLS", "12"))
    check(drive(queue, jobs, kills, 2, database=database, broker=broker), jobs, kills)
