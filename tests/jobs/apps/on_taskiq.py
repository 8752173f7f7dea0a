from __future__ import annotations

from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from retrysafe.jobs.taskiq import TaskiqJobs
from tests.jobs.apps import world

results: RedisAsyncResultBackend[object] = RedisAsyncResultBackend(world.BROKER, result_ex_time=60)
broker = RedisStreamBroker(
    world.BROKER, consumer_id="0", idle_timeout=3000, unacknowledged_lock_timeout=5, xread_count=4, xread_block=200
).with_result_backend(results)
jobs = TaskiqJobs(world.safe, broker, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect)(world.enter)
charge = jobs.task(name="charge")(world.acharge)

COMMAND = ["-m", "taskiq", "worker", "tests.jobs.apps.on_taskiq:broker", "-w", "1", "--max-async-tasks", "4"]
