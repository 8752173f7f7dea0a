from __future__ import annotations

import dramatiq
from dramatiq.brokers.rabbitmq import RabbitmqBroker
from dramatiq.brokers.redis import RedisBroker

from retrysafe.jobs.dramatiq import DramatiqJobs
from tests.jobs.apps import world

broker: dramatiq.Broker
if world.ON_RABBITMQ:
    broker = RabbitmqBroker(url=world.BROKER, confirm_delivery=True)
else:
    broker = RedisBroker(url=world.BROKER, heartbeat_timeout=3000)
dramatiq.set_broker(broker)
jobs = DramatiqJobs(world.safe, broker, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect, min_backoff=100, queue_name=world.QUEUE)(world.enter)
charge = jobs.task(name="charge", min_backoff=100, queue_name=world.QUEUE)(world.charge)

COMMAND = ["-m", "dramatiq", "tests.jobs.apps.on_dramatiq", "-p", "1", "-t", "2"]
