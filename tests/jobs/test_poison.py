"""A job that kills its workers is begun a bounded number of times; then a person has to decide."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Lookup, Resolve, Suspect
from retrysafe.errors import InProgress, OutcomeUnknown, UsageError
from retrysafe.jobs import JOB, FencedTask, QueueAdapter
from tests.jobs.deadly import KEY, declared
from tests.jobs.test_fence import Shop, fails, lapse
from tests.servers.valkey import ValkeyServer
from tests.waiting import until

ROOT = Path(__file__).parents[2]
LIMIT = 3
"""Attempts; enqueueing the job is the first."""


def worker(colour: str, database: Path, limit: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.jobs.deadly", colour, str(database), str(limit)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120, cwd=ROOT)


def runs(database: Path) -> int:
    return len(Path(f"{database}.runs").read_text().splitlines())


def begun_again(jobs: QueueAdapter, colour: str, database: Path, limit: int) -> subprocess.CompletedProcess[str]:
    """One more delivery, after the dead worker's lease has lapsed."""
    until(lambda: jobs.state(KEY) not in ("running", "absent"), 60, "the lease of the dead")
    return worker(colour, database, limit)


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_a_job_that_kills_its_worker_is_begun_a_bounded_number_of_times(tmp_path: Path, colour: str) -> None:
    database = tmp_path / "jobs.db"
    jobs, task = declared(str(database), LIMIT, colour=colour)
    jobs.safe.migrate()
    jobs.enqueue(task, ("o-7",), key=KEY, send=lambda message: None)
    ends = [begun_again(jobs, colour, database, LIMIT) for _ in range(LIMIT + 2)]
    assert [end.returncode for end in ends] == [9, 9, 9, 1, 1]
    assert runs(database) == LIMIT
    assert "OutcomeUnknown" in ends[-1].stderr
    assert f"max_attempts={LIMIT}" in ends[-1].stderr
    assert jobs.state(KEY) == "unknown"
    with pytest.raises(OutcomeUnknown):
        jobs.result(KEY)
    with pytest.raises(OutcomeUnknown):
        jobs.enqueue(task, ("o-7",), key=KEY, send=lambda message: None)
    jobs.safe.close()


def test_on_celery_it_leaves_the_queue(tmp_path: Path) -> None:
    """With a real worker: without a limit, `acks_late` and `reject_on_worker_lost` would deliver the job for ever."""
    broker = ValkeyServer(appendfsync="everysec").start()
    try:
        environment = {
            **os.environ,
            "DEADLY_DATABASE": str(tmp_path / "jobs.db"),
            "DEADLY_BROKER": broker.url,
            "PYTHONPATH": os.pathsep.join((str(ROOT / "src"), str(ROOT))),
        }
        ended = subprocess.run(
            [sys.executable, "-m", "tests.jobs.poison_celery"],
            check=False, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=900,
        )  # fmt: skip
    finally:
        broker.stop()
    assert ended.returncode == 0, ended.stderr[-4000:]
    assert json.loads(ended.stdout.splitlines()[-1]) == {"runs": LIMIT, "state": "unknown", "alive": True}


def test_a_person_may_let_it_run_once_more(tmp_path: Path) -> None:
    database = tmp_path / "jobs.db"
    jobs, task = declared(str(database), 1, dies=False)
    jobs.safe.migrate()
    jobs.enqueue(task, ("o-7",), key=KEY, send=lambda message: None)
    assert worker("sync", database, 1).returncode == 9
    until(lambda: jobs.state(KEY) == "unknown", 60, "the lease of the dead")
    record = jobs.safe.execute(Lookup(jobs._record_id(KEY))).record
    assert record is not None
    assert jobs.safe.execute(Suspect(record.id, record.fence, "its worker died", lapsed_only=True))
    assert jobs.safe.execute(Resolve(record.id, record.fence, None, "the machine was out of memory"))
    assert jobs.enqueue(task, ("o-7",), key=KEY, send=lambda message: None).sent
    assert task.run(KEY, ("o-7",), {}) == "o-7"
    assert jobs.result(KEY) == "o-7"
    jobs.safe.close()


# What is not counted --------------------------------------------------------------------------------


def test_a_job_that_raises_is_tried_as_often_as_its_queue_likes() -> None:
    shop = Shop()
    task = shop.task(lambda: fails() if len(shop.runs) < 30 else "at last", max_attempts=2)
    shop.enqueue(task, "o-7", key=KEY)
    for _ in range(29):
        with pytest.raises(RuntimeError, match="on fire"):
            shop.work(task)
    assert shop.work(task) == "at last"


def test_nor_is_a_failure_that_is_the_result_confused_with_it() -> None:
    shop = Shop()
    task = shop.task(policy=JOB.replace(failures="store"), max_attempts=1)
    shop.enqueue(task, "o-7", key=KEY)
    assert shop.work(task) == "receipt of o-7"


def test_while_the_last_attempt_runs_it_is_busy(tmp_path: Path) -> None:
    shop = Shop()
    task: FencedTask
    seen: list[str] = []

    def work() -> str:
        with pytest.raises(InProgress):
            task.run(KEY, ("o-7",), {})
        seen.append(shop.jobs.state(KEY))
        return "done"

    task = shop.task(work, max_attempts=1)
    shop.enqueue(task, "o-7", key=KEY)
    assert shop.work(task) == "done"
    assert seen == ["running"]


def test_without_a_limit_it_is_begun_for_ever() -> None:
    shop = Shop()
    task = shop.task(max_attempts=None)
    shop.enqueue(task, "o-7", key=KEY)
    for _ in range(15):
        assert shop.safe.execute(task.build_task(KEY, ("o-7",), {}).build_claim()).granted
        lapse(shop, KEY)
    assert shop.work(task) == "receipt of o-7"


@pytest.mark.parametrize("limit", [0, -1, True, "3", 2.5])
def test_a_limit_that_is_none_is_refused(limit: Any) -> None:
    with pytest.raises(UsageError, match="max_attempts"):
        Shop().task(max_attempts=limit)
