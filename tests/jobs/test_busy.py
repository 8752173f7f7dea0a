"""A delivery of a job that another worker runs, on every queue (busy.py)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
QUEUES = ("celery", "dramatiq", "rq", "taskiq", "bullmq", "huey", "procrastinate")
"""Without arq, which pins an older redis-py; test_arq.py runs the same with it in its own environment."""

pytestmark = pytest.mark.xdist_group("jobs-busy")


@pytest.fixture(scope="module")
def outcomes(redis_url: str) -> dict[str, str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT)))}
    ended = subprocess.run(
        [sys.executable, "-m", "tests.jobs.busy", redis_url],
        check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1800,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr[-4000:]
    printed: dict[str, str] = json.loads(ended.stdout.splitlines()[-1])
    return printed


@pytest.mark.parametrize("queue", QUEUES)
def test_a_busy_job_comes_back_and_uses_up_no_try(queue: str, outcomes: dict[str, str]) -> None:
    assert outcomes[queue] == ""
