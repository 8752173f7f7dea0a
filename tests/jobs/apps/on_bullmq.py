from __future__ import annotations

import asyncio

from retrysafe.jobs.bullmq import BullJobs
from tests.jobs.apps import world

jobs = BullJobs(world.safe, "jobs", {"connection": world.BROKER}, job_opts={"attempts": 10}, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect)(world.enter)
charge = jobs.task(name="charge")(world.acharge)

COMMAND = ["-c", "from tests.jobs.apps.on_bullmq import work; work()"]
QUICK = {"stalledInterval": 2000, "lockDuration": 4000, "maxStalledCount": 100, "concurrency": 4}


def work() -> None:
    async def forever() -> None:
        worker = jobs.worker(**QUICK, autorun=False)
        await worker.run()

    asyncio.run(forever())
