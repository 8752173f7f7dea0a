"""busy.py for arq, which has its own environment.

.tools/arq/bin/python -m tests.jobs.busy_arq REDIS_URL
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any
from uuid import uuid4

from arq.connections import RedisSettings
from arq.worker import Worker

from retrysafe import RetrySafe
from retrysafe.core.ops import Release
from retrysafe.jobs import JobMessage
from retrysafe.jobs.arq import ArqJobs
from retrysafe.jobs.task import BUSY_PAUSES_SECONDS

TIMEOUT_SECONDS = 300.0


async def main(redis_url: str) -> dict[str, Any]:
    queue, id = f"arq:{uuid4().hex}", f"job-{uuid4().hex}"
    safe = RetrySafe("memory://")
    settings = RedisSettings.from_dsn(redis_url)
    jobs = ArqJobs(safe, settings, queue_name=queue, keep_result=60)
    runs: list[int] = []

    @jobs.task(name="charge", context=True, max_tries=2)
    async def charge(ctx: dict[str, Any], name: str) -> int:
        runs.append(ctx["job_try"])
        return 7

    reply = safe.execute(jobs.find(charge).build_task(id, ("ada",), {}).build_claim())
    assert reply.record is not None
    worker = Worker(jobs.functions, queue_name=queue, redis_settings=settings, handle_signals=False, poll_delay=0.05)
    working = asyncio.ensure_future(worker.async_run())
    await jobs.asend(JobMessage(id, "charge", ("ada",), {}))
    # Three deliveries go back to the queue: more than the job's tries, if they counted as tries.
    await condition(lambda: safe.counters.get("busy", 0) >= 3 * (len(BUSY_PAUSES_SECONDS) + 1))
    held = list(runs)
    assert safe.execute(Release(reply.record.id, reply.record.fence))
    result = await jobs.aresult(id, wait=TIMEOUT_SECONDS)
    again = await jobs.aenqueue(charge, ("ada",), key=id)
    working.cancel()
    await asyncio.wait([working])
    return {"held": held, "runs": runs, "result": result, "again": [again.state, again.sent, again.result]}


async def condition(holds: Any) -> None:
    async with asyncio.timeout(TIMEOUT_SECONDS):
        while not holds():
            await asyncio.sleep(0.02)


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(sys.argv[1]))), flush=True)
