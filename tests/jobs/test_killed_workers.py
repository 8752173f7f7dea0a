"""Each queue with its real broker and real worker processes: jobs are enqueued twice, and workers are killed meanwhile.

`RETRYSAFE_JOBS` and `RETRYSAFE_JOB_KILLS` set the numbers of the campaign; `make test` runs a small one of each.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import shared_url
from tests.servers.postgres import temporary_database
from tests.servers.valkey import ValkeyServer

ROOT = Path(__file__).parents[2]
ARQ = ROOT / ".tools" / "arq" / "bin" / "python"
"""arq pins an older redis-py than the rest of the suite uses, so tools/bootstrap.py makes an environment for it."""

QUEUES = ("celery", "dramatiq", "rq", "arq", "taskiq", "bullmq", "huey", "procrastinate")
ON_RABBITMQ = ("celery", "dramatiq", "taskiq")
"""The other queues have no broker for RabbitMQ: they use Redis, and Procrastinate uses PostgreSQL."""
TIMEOUT_SECONDS = 1800.0


@pytest.fixture
def database() -> Iterator[str]:
    """A database for this test alone: store, effects and, for Procrastinate, the queue."""
    with temporary_database(shared_url("postgres")) as url:
        yield url


@pytest.fixture
def broker() -> Iterator[str]:
    """A broker for this test alone: queues have no prefixes, and some list everything on the broker."""
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
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=TIMEOUT_SECONDS,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-6000:]
    counts: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    print(queue, counts)
    return counts


def check(counts: dict[str, Any], jobs: int, kills: int) -> None:
    assert counts["sent_first"] == jobs
    assert counts["killed"] == kills
    assert counts["rows"] == jobs // 2  # written in a transaction: exactly one row each
    assert counts["charges"] == jobs - jobs // 2  # at a provider that recognises keys: one charge each
    assert counts["done"] == counts["first_results"] == counts["kept"] == jobs


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
