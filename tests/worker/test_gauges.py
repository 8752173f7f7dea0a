"""The gauges of the worker, and its /metrics: what is open in the store, and how old the oldest of it is."""

from __future__ import annotations

import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from retrysafe import RetrySafe
from retrysafe.core.backlog import BacklogReply, JobBacklogReply, OpenGroup, TopicGroup
from retrysafe.core.jobs import Job, Stage
from retrysafe.core.ops import Suspect
from retrysafe.core.times import SECOND_MICROS
from retrysafe.testing.builders import claim
from retrysafe.worker import Worker
from retrysafe.worker.gauges import age_of, read_backlog, read_job_backlog
from retrysafe.worker.health import Health

NOW = 1_000 * SECOND_MICROS


def test_a_backlog_becomes_counts_and_ages() -> None:
    groups = (
        OpenGroup("http", "POST /a", 3, 1, 2, 1, NOW - 60 * SECOND_MICROS, NOW - 90 * SECOND_MICROS),
        OpenGroup("function", "f", 1, 0, 0, 0, NOW - 5 * SECOND_MICROS, 0),
    )
    assert read_backlog(BacklogReply(groups, 7, NOW - 30 * SECOND_MICROS, False, NOW)) == {
        ("retrysafe.records", ("claimed",)): 4,
        ("retrysafe.records", ("lapsed",)): 1,
        ("retrysafe.records", ("uncertain",)): 2,
        ("retrysafe.records", ("expired",)): 7,
        ("retrysafe.in_progress.age.max", ()): 60.0,
        ("retrysafe.uncertain.age.max", ()): 90.0,
        ("retrysafe.reaper.lag", ()): 30.0,
    }
    jobs = (TopicGroup("mail", 2, NOW - 10 * SECOND_MICROS, 1, NOW - 99 * SECOND_MICROS),)
    assert read_job_backlog(JobBacklogReply(jobs, False, NOW)) == {
        ("retrysafe.outbox.messages", ("pending",)): 2,
        ("retrysafe.outbox.messages", ("dead",)): 1,
        ("retrysafe.outbox.age.max", ()): 10.0,
    }


@pytest.mark.parametrize(("since", "age"), [(0, 0.0), (NOW, 0.0), (NOW + 1, 0.0), (NOW - SECOND_MICROS, 1.0)])
def test_an_age_is_never_negative_and_nothing_has_none(since: int, age: float) -> None:
    assert age_of(since, NOW) == age


def test_metrics_of_the_worker(tmp_path: Path) -> None:
    with RetrySafe(f"sqlite:///{tmp_path / 'app.db'}") as safe:
        safe.migrate()
        held = safe.execute(claim("k1", namespace="default", now=None)).record
        assert held is not None
        assert safe.execute(Suspect(held.id, held.fence, "nobody knows"))
        safe.execute(Stage((Job("0" * 32, "mail", b"{}"),), namespace="default"))
        worker = Worker(safe)
        health = Health(worker, "127.0.0.1:0")
        try:
            done = worker.run_once()
            assert "gauges" not in done.counts  # it has nothing to report
            with urllib.request.urlopen(f"http://{health.address}/metrics") as answer:
                assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
                text = answer.read().decode()
            with urllib.request.urlopen(f"http://{health.address}/") as answer:
                assert answer.headers["content-type"] == "application/json"
        finally:
            health.close()
        found = {
            (sample.name, *sample.labels.values()): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }
    assert found["retrysafe_records", "uncertain"] == 1
    assert found["retrysafe_records", "claimed"] == 0
    assert found["retrysafe_uncertain_age_max_seconds",] > 0
    assert found["retrysafe_outbox_messages", "pending"] == 1
    assert found["retrysafe_worker_rounds_total", "gauges", "done"] == 1
    assert found["retrysafe_worker_rounds_total", "reaper", "done"] == 1


async def test_the_worker_on_a_loop_reads_them_too() -> None:
    async with RetrySafe("memory://") as safe:
        await safe.aexecute(claim("k1", namespace="default", now=None))
        worker = Worker(safe, tick=60)
        (service,) = [each for each in worker.services if each.name == "gauges"]
        from retrysafe.worker import flows

        await flows.arun(safe, service.tick_flow(lambda: False))
        assert safe.figures.gauges["retrysafe.records", ("claimed",)] == 1
