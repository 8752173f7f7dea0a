"""Asks the alert itself: figures that were really exported, laid out in time, and judged by `promtool` with the rules
of monitoring/alerts.yml."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from prometheus_client.parser import text_string_to_metric_families

from tests.runbooks.pages import ROOT

RULES = ROOT / "monitoring" / "alerts.yml"
Series = tuple[str, tuple[tuple[str, str], ...]]
"""A name, and labels with their values."""


class Phase(NamedTuple):
    """So many minutes of what a scrape shows. Counters grow evenly to the values of the scrape, as they do in such
    traffic; gauges have its values all the time."""

    scraped: str
    minutes: int
    fires: bool
    """Whether the alert fires at the end."""


class Scrape:
    """The samples of one scrape."""

    def __init__(self, text: str) -> None:
        self.samples: dict[Series, float] = {}
        self.gauges: set[Series] = set()
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                series = sample.name, tuple(sorted(sample.labels.items()))
                self.samples[series] = sample.value
                if family.type == "gauge":
                    self.gauges.add(series)


def check_alert(promtool: Sequence[str], folder: Path, alert: str, *phases: Phase) -> None:
    """Raise unless the alert fires at the end of exactly those phases that say so."""
    scrapes = [Scrape(phase.scraped) for phase in phases]
    every = sorted({series for scrape in scrapes for series in scrape.samples})
    ends = [sum(phase.minutes for phase in phases[: number + 1]) for number in range(len(phases))]
    test = {
        "interval": "1m",
        "input_series": [{"series": write_name(each), "values": lay_out(each, phases, scrapes)} for each in every],
        "promql_expr_test": [
            build_question(alert, end - 1, phase.fires) for end, phase in zip(ends, phases, strict=True)
        ],
    }
    path = folder / f"{alert}.yml"
    path.write_text(json.dumps({"rule_files": [str(RULES)], "evaluation_interval": "1m", "tests": [test]}))
    done = subprocess.run([*promtool, "test", "rules", str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{alert}\n{done.stdout}{done.stderr}"


def build_question(alert: str, minute: int, fires: bool) -> dict[str, Any]:
    """Each of these is true as 1: how often an alert fires does not matter."""
    fired = f'clamp_max(count(ALERTS{{alertname="{alert}",alertstate="firing"}}), 1) or vector(0)'
    return {"expr": fired, "eval_time": f"{minute}m", "exp_samples": [{"labels": "{}", "value": int(fires)}]}


def write_name(series: Series) -> str:
    name, labels = series
    return f"{name}{{{', '.join(f'{label}={json.dumps(value)}' for label, value in (('job', 'shop'), *labels))}}}"


def lay_out(series: Series, phases: Sequence[Phase], scrapes: Sequence[Scrape]) -> str:
    """The values of one series, minute by minute, as promtool reads them; `_` is a minute without a value."""
    values: list[str] = []
    before = scrapes[0].samples.get(series, 0.0)
    for phase, scrape in zip(phases, scrapes, strict=True):
        now = scrape.samples.get(series)
        if now is None:
            values += ["_"] * phase.minutes
            continue
        if series in scrape.gauges:
            before = now
        values += [repr(before + (now - before) * (minute + 1) / phase.minutes) for minute in range(phase.minutes)]
        before = now
    return " ".join(values)
