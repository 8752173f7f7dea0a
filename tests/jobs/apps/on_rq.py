from __future__ import annotations

from redis import Redis
from rq import Queue, Retry, Worker

from retrysafe.jobs.rq import RqJobs
from tests.jobs.apps import world

queue = Queue("jobs", connection=Redis.from_url(world.BROKER))
jobs = RqJobs(world.safe, queue, policy=world.POLICY, enqueue_options={"retry": Retry(max=10)})
enter = jobs.task(name="enter", tx=world.connect)(world.enter)
charge = jobs.task(name="charge")(world.charge)
# RQ finds functions by module and name, and these are defined in another module than the one that declares them.
for function, name in ((enter, "enter"), (charge, "charge")):
    function.__module__, function.__qualname__, function.__name__ = __spec__.name, name, name

COMMAND = ["-c", "from tests.jobs.apps.on_rq import work; work()"]


def work() -> None:
    Worker([queue], connection=queue.connection).work(logging_level="WARNING")
