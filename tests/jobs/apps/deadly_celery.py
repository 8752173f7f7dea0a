"""A Celery job that kills its process, with its own broker and store."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from celery import Celery

from retrysafe import RetrySafe
from retrysafe.jobs import JOB
from retrysafe.jobs.celery import CeleryJobs

DATABASE = os.environ["DEADLY_DATABASE"]
LIMIT = 3

app = Celery("deadly", broker=os.environ["DEADLY_BROKER"], backend="disabled://")
app.conf.update(worker_prefetch_multiplier=1, task_default_queue="deadly")
jobs = CeleryJobs(RetrySafe(f"sqlite:///{DATABASE}"), app, max_attempts=LIMIT, policy=JOB.replace(lease=1.0))


@jobs.task(name="charge")
def charge(order: str) -> None:
    with Path(f"{DATABASE}.runs").open("a") as runs:
        runs.write("run\n")
    os.kill(os.getpid(), signal.SIGKILL)


COMMAND = [
    "-m",
    "celery",
    "-A",
    "tests.jobs.apps.deadly_celery",
    "worker",
    "-c",
    "1",
    "-l",
    "ERROR",
    "--without-mingle",
]
