from __future__ import annotations

from taskiq import AsyncBroker
from taskiq_aio_pika import AioPikaBroker, Exchange, Queue
from taskiq_redis import RedisAsyncResultBackend, RedisStreamBroker

from retrysafe.jobs.taskiq import TaskiqJobs
from tests.jobs.apps import world

broker: AsyncBroker
if world.ON_RABBITMQ:
    broker = AioPikaBroker(
        world.BROKER, qos=4, exchange=Exchange(name=world.QUEUE), task_queues=[Queue(name=world.QUEUE)]
    )
else:
    results: RedisAsyncResultBackend[object] = RedisAsyncResultBackend(world.BROKER, result_ex_time=60)
    broker = RedisStreamBroker(
        world.BROKER, consumer_id="0", idle_timeout=3000, unacknowledged_lock_timeout=5, xread_count=4, xread_block=200
    ).with_result_backend(results)
jobs = TaskiqJobs(world.safe, broker, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect)(world.enter)
charge = jobs.task(name="charge")(world.acharge)

COMMAND = ["-m", "taskiq", "worker", "tests.jobs.apps.on_taskiq:broker", "-w", "1", "--max-async-tasks", "4"]
