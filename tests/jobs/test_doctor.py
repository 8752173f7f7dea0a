"""How each adapter reads its queue's settings, and what the command prints about them."""

from __future__ import annotations

import sys
import types
from datetime import timedelta
from typing import Any

import procrastinate
import pytest
from celery import Celery
from dramatiq.brokers.stub import StubBroker
from dramatiq.results import Results
from dramatiq.results.backends import StubBackend
from huey import MemoryHuey
from procrastinate.testing import InMemoryConnector
from redis import Redis
from rq import Queue, Retry
from taskiq import InMemoryBroker

from retrysafe import RetrySafe
from retrysafe.cli.main import main
from retrysafe.jobs import JOB, QueueAdapter
from retrysafe.jobs.bullmq import BullJobs
from retrysafe.jobs.celery import CeleryJobs
from retrysafe.jobs.dramatiq import DramatiqJobs
from retrysafe.jobs.huey import HueyJobs
from retrysafe.jobs.procrastinate import ProcrastinateJobs
from retrysafe.jobs.rq import RqJobs
from retrysafe.jobs.taskiq import TaskiqJobs


@pytest.fixture
def safe() -> RetrySafe:
    return RetrySafe("memory://")


def verdicts(jobs: QueueAdapter) -> dict[str, bool]:
    return {finding.setting: finding.fine for finding in jobs.diagnose().findings}


def nothing() -> None:
    pass


def celery(safe: RetrySafe, **conf: Any) -> CeleryJobs:
    app = Celery(broker="redis://127.0.0.1:1/0", set_as_current=False)
    app.conf.update(conf)
    return CeleryJobs(safe, app)


def test_celery(safe: RetrySafe) -> None:
    jobs = celery(safe)
    jobs.task(name="late")(nothing)
    assert verdicts(jobs) == {
        "acks_late off": True,
        "result_expires": False,  # a day, while records are kept for thirty
        "visibility_timeout (redelivers)": True,
        "visibility_timeout (notices)": False,  # an hour, while a lease is a minute
    }
    jobs.task(name="early", acks_late=False)(nothing)
    assert verdicts(jobs)["acks_late off"] is False


def test_celery_that_remembers_longer_than_we_do(safe: RetrySafe) -> None:
    jobs = celery(safe, result_expires=timedelta(days=40), broker_transport_options={"visibility_timeout": 40 * 86400})
    assert verdicts(jobs)["result_expires"] is True
    assert verdicts(jobs)["visibility_timeout (redelivers)"] is False
    assert jobs.diagnose().label == "best-effort"


def test_the_others(safe: RetrySafe) -> None:
    broker = StubBroker()
    broker.add_middleware(Results(backend=StubBackend(), result_ttl=60_000))
    assert verdicts(DramatiqJobs(safe, broker)) == {"Results(result_ttl=…)": False}
    queue = Queue(connection=Redis(port=1))
    assert verdicts(RqJobs(safe, queue)) == {"result_ttl": False, "no retry=": False, "abandoned jobs": True}
    kept = RqJobs(safe, queue, enqueue_options={"retry": Retry(max=3), "result_ttl": -1})
    assert all(verdicts(kept).values())
    assert verdicts(TaskiqJobs(safe, InMemoryBroker())) == {"no acknowledgement": True}
    assert verdicts(BullJobs(safe, "q")) == {"removeOnComplete": True, "stalledInterval": True}
    assert verdicts(BullJobs(safe, "q", job_opts={"removeOnComplete": True}))["removeOnComplete"] is False
    assert verdicts(HueyJobs(safe, MemoryHuey())) == {"takes jobs off the queue first": False}
    app = procrastinate.App(connector=InMemoryConnector())
    assert verdicts(ProcrastinateJobs(safe, app)) == {"stalled jobs stay in state doing": False}


def test_the_command(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    module: Any = types.ModuleType("doctored_shop")
    module.jobs = celery(safe)
    module.short = CeleryJobs(safe, module.jobs.app, policy=JOB.replace(retention=60))
    module.other = 7
    monkeypatch.setitem(sys.modules, "doctored_shop", module)
    assert main(["doctor", "doctored_shop:jobs"]) == 0
    assert "result_expires" in capsys.readouterr().out
    assert main(["doctor", "doctored_shop:short"]) == 1
    assert "runs again" in capsys.readouterr().out
    assert main(["doctor", "doctored_shop:other"]) != 0
    assert "is a int" in capsys.readouterr().err
