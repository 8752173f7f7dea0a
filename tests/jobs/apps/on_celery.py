from __future__ import annotations

from celery import Celery

from retrysafe.jobs.celery import CeleryJobs
from tests.jobs.apps import world

app = Celery("jobs", broker=world.BROKER, backend=world.BROKER if world.BROKER.startswith("redis") else "rpc://")
app.conf.update(worker_prefetch_multiplier=1)
if world.BROKER.startswith("redis"):
    app.conf.broker_transport_options = {"visibility_timeout": 20}
jobs = CeleryJobs(world.safe, app, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect)(world.enter)
charge = jobs.task(name="charge")(world.charge)

COMMAND = ["-m", "celery", "-A", "tests.jobs.apps.on_celery", "worker", "-c", "2", "-l", "WARNING", "--without-mingle"]
