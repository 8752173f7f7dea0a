"""retrysafe.prometheus: what a scrape shows, in one process and in several."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from retrysafe import RetrySafe
from retrysafe.engine.exposition import format_metrics
from retrysafe.prometheus import register


def use(safe: RetrySafe) -> None:
    @safe.once("charge:{order}")
    def charge(order: int) -> int:
        return order

    charge(1)
    charge(1)


def test_a_scrape_shows_what_the_worker_would_show() -> None:
    """Both ways out have the same names, labels and numbers: rules and dashboards fit both."""
    safe = RetrySafe("memory://")
    registry = CollectorRegistry()
    register(safe, registry)
    use(safe)
    safe.figures.count("requests", ("present", 'POST /a"b\\c\nd'))
    safe.figures.gauges["retrysafe.outbox.messages", ("dead",)] = 2.0

    def samples(text: str) -> set[tuple[str, str, float]]:
        return {
            (sample.name, str(sorted({**sample.labels, "le": f"{float(sample.labels['le']):g}"}.items()))
             if "le" in sample.labels else str(sorted(sample.labels.items())), sample.value)
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }  # fmt: skip

    shown = samples(generate_latest(registry).decode())
    assert shown == samples(format_metrics(safe.figures.snapshot()))
    assert len(shown) > 40


def test_two_objects_in_one_registry_are_refused() -> None:
    registry = CollectorRegistry()
    register(RetrySafe("memory://"), registry)
    with pytest.raises(ValueError, match="Duplicated timeseries"):
        register(RetrySafe("memory://"), registry)


PROGRAM = """
import sys
from retrysafe import RetrySafe, prometheus
from prometheus_client import CollectorRegistry

safe = RetrySafe("memory://")
prometheus.register(safe, CollectorRegistry())

@safe.once("charge:{order}")
def charge(order):
    return order

for _ in range(int(sys.argv[1])):
    charge(1)
"""

SCRAPE = """
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

registry = CollectorRegistry()
MultiProcessCollector(registry)
print(generate_latest(registry).decode())
"""


def test_several_processes_are_added_up(tmp_path: Path) -> None:
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}

    def run(code: str, *args: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", code, *args], env=env, check=True, capture_output=True, text=True
        ).stdout

    run(PROGRAM, "3")
    run(PROGRAM, "5")
    scraped = run(SCRAPE)

    def value(name: str) -> float:
        found = re.search(rf"(?m)^{re.escape(name)} (\S+)$", scraped)
        assert found is not None, scraped
        return float(found.group(1))

    assert value('retrysafe_claims_total{kind="function",outcome="new",target="__main__.charge"}') == 2
    assert value('retrysafe_claims_total{kind="function",outcome="replayed",target="__main__.charge"}') == 6
    assert value('retrysafe_settlements_total{kind="function",outcome="completed"}') == 2
    durations = 'retrysafe_execution_duration_seconds_count{error_type="",kind="function",target="__main__.charge"}'
    assert value(durations) == 2
    calls = 'retrysafe_store_operation_duration_seconds_count{db_system_name="memory",error_type="",operation="claim"}'
    assert value(calls) == 8


KILLED = """
import os, signal
from retrysafe import RetrySafe, prometheus
from prometheus_client import CollectorRegistry

safe = RetrySafe("memory://")
prometheus.register(safe, CollectorRegistry())

@safe.once("charge:{order}")
def charge(order):
    os.kill(os.getpid(), signal.SIGKILL)

charge(1)
"""
PAGE = Path(__file__).parents[2] / "docs" / "howto" / "metrics.md"
ACTIVE = 'retrysafe_executions_active{kind="function"}'


def test_what_a_killed_process_did_is_not_active_for_ever(tmp_path: Path) -> None:
    """The page's function forgets its gauges, and keeps its counters."""
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    died = subprocess.run([sys.executable, "-c", KILLED], env=env, check=False)
    assert died.returncode == -signal.SIGKILL
    (shown,) = re.findall(r"```python\n(import os\n.*?def render_metrics.*?)```", PAGE.read_text(), re.DOTALL)
    code = f"{shown}\nprint(render_metrics().decode())"

    def scrape(program: str) -> str:
        return subprocess.run(
            [sys.executable, "-c", program], env=env, check=True, capture_output=True, text=True
        ).stdout

    assert f"{ACTIVE} 1.0" in scrape(SCRAPE), "prometheus_client does not notice it by itself"
    told = scrape(code)
    assert ACTIVE not in told
    assert 'retrysafe_claims_total{kind="function",outcome="new",target="__main__.charge"} 1.0' in told
