from __future__ import annotations

from huey import RedisHuey

from retrysafe.jobs.huey import HueyJobs
from tests.jobs.apps import world

huey = RedisHuey("jobs", url=world.BROKER)
jobs = HueyJobs(world.safe, huey, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect, retries=10)(world.enter)
charge = jobs.task(name="charge", retries=10)(world.charge)

COMMAND = ["-m", "huey.bin.huey_consumer", "tests.jobs.apps.on_huey.huey", "-w", "2", "-q"]
