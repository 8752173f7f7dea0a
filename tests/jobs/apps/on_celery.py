from __future__ import annotations

from celery import Celery

from retrysafe.jobs.celery import CeleryJobs
from tests.jobs.apps import world

app = Celery("jobs", broker=world.BROKER, backend="rpc://" if world.ON_RABBITMQ else world.BROKER)
app.conf.update(worker_prefetch_multiplier=1, task_default_queue=world.QUEUE)
if not world.ON_RABBITMQ:
    app.conf.broker_transport_options = {"visibility_timeout": 20}
jobs = CeleryJobs(world.safe, app, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect)(world.enter)
charge = jobs.task(name="charge")(world.charge)

COMMAND = ["-m", "celery", "-A", "tests.jobs.apps.on_celery", "worker", "-c", "2", "-l", "WARNING", "--without-mingle"]
