from __future__ import annotations

import procrastinate

from retrysafe.jobs.procrastinate import ProcrastinateJobs
from tests.jobs.apps import world

app = procrastinate.App(connector=procrastinate.SyncPsycopgConnector(conninfo=world.DATABASE))
jobs = ProcrastinateJobs(world.safe, app, policy=world.POLICY)
enter = jobs.task(name="enter", tx=world.connect, retry=10)(world.enter)
charge = jobs.task(name="charge", retry=10)(world.charge)

COMMAND = ["-c", "from tests.jobs.apps.on_procrastinate import work; work()"]


def prepare() -> None:
    app.open()
    app.schema_manager.apply_schema()


def work() -> None:
    connector = procrastinate.PsycopgConnector(conninfo=world.DATABASE)
    with app.replace_connector(connector) as other:
        other.run_worker(concurrency=2, fetch_job_polling_interval=0.2, install_signal_handlers=False)
