from __future__ import annotations

from arq import run_worker
from arq.connections import RedisSettings

from retrysafe.jobs.arq import ArqJobs
from tests.jobs.apps import world

settings = RedisSettings.from_dsn(world.BROKER)
jobs = ArqJobs(world.safe, settings, policy=world.POLICY, job_timeout=3)
enter = jobs.task(name="enter", tx=world.connect)(world.enter)
charge = jobs.task(name="charge")(world.acharge)


class WorkerSettings:
    functions = jobs.functions
    redis_settings = settings
    max_jobs = 4
    max_tries = 100
    poll_delay = 0.1
    job_timeout = 3


COMMAND = ["-c", "from tests.jobs.apps.on_arq import work; work()"]


def work() -> None:
    run_worker(WorkerSettings)  # type: ignore[arg-type]  # arq's own protocol asks for less than it says
