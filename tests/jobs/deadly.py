"""A worker process whose job kills it.

    python -m tests.jobs.deadly sync|async DATABASE LIMIT

It takes the job once, as a queue would deliver it, and writes each begin into a file. It exits normally if the job was
not begun, and with 9 if it was.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import NoReturn

from retrysafe import RetrySafe
from retrysafe.jobs import JOB, FencedTask, QueueAdapter

KEY = "charge-7"
LEASE = 0.2


def declared(
    database: str, limit: int | None, *, colour: str = "sync", dies: bool = True
) -> tuple[QueueAdapter, FencedTask]:
    jobs = QueueAdapter(RetrySafe(f"sqlite:///{database}"), max_attempts=limit, policy=JOB.replace(lease=LEASE))

    def charge(order: str) -> str:
        with Path(f"{database}.runs").open("a") as runs:
            runs.write("run\n")
        return die() if dies else order

    async def acharge(order: str) -> str:
        return charge(order)

    return jobs, jobs.fence(charge if colour == "sync" else acharge, name="charge")


def die() -> NoReturn:
    os._exit(9)


if __name__ == "__main__":
    colour, database, limit = sys.argv[1:]
    _, task = declared(database, int(limit) or None, colour=colour)
    if colour == "sync":
        task.run(KEY, ("o-7",), {})
    else:
        asyncio.run(task.arun(KEY, ("o-7",), {}))
