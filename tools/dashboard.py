"""Write monitoring/dashboard.json, the Grafana dashboard. `--check` fails if the file is stale.

It is written in the classic form, which every Grafana imports. It has one variable for the data source and one for the
job, and a stable uid, so that an import replaces the one before.
"""

from __future__ import annotations

import json
from typing import Any, NamedTuple

from tools import pages

FILE = pages.ROOT / "monitoring" / "dashboard.json"
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
WIDTH, HEIGHT = 8, 8
COLUMNS = 24 // WIDTH

CLAIMS = 'retrysafe_claims_total{job=~"$job"'
PREVENTED = "replayed|busy|mismatched|uncertain"
STORE = "retrysafe_store_operation_duration_seconds"


class Panel(NamedTuple):
    title: str
    help: str
    unit: str
    queries: dict[str, str]
    """Legend, and what is asked."""
    kind: str = "timeseries"
    alarm: float | None = None
    """The value from which it is red."""


ROWS: dict[str, list[Panel]] = {
    "Is anything waiting for an operator?": [
        Panel(
            "Uncertain keys", "Work began, and its end is not known. Retries are refused until an operator decides.",
            "short", {"uncertain": 'max(retrysafe_records{job=~"$job",state="uncertain"})'}, "stat", 1,
        ),
        Panel(
            "Dead letters", "Jobs of the outbox whose every delivery failed.",
            "short", {"dead": 'max(retrysafe_outbox_messages{job=~"$job",state="dead"})'}, "stat", 1,
        ),
        Panel(
            "Failed undos, 24 h", "Runs that could not be undone.", "short",
            {"undo_failed": 'sum(increase(retrysafe_operation_runs_total{job=~"$job",outcome="undo_failed"}[24h]))'},
            "stat", 1,
        ),
    ],
    "Traffic": [
        Panel(
            "Claims by outcome", "What became of each claim of a key.", "ops",
            {"{{outcome}}": f"sum by (outcome) (rate({CLAIMS}}}[$__rate_interval]))"},
        ),
        Panel(
            "Executions prevented", "Retries that got the stored answer, or were refused.", "ops",
            {"prevented": f'sum(rate({CLAIMS},outcome=~"{PREVENTED}"}}[$__rate_interval]))'},
        ),
        Panel(
            "Requests by key", "What clients send as their key.", "ops",
            {"{{key}}": 'sum by (key) (rate(retrysafe_requests_total{job=~"$job"}[$__rate_interval]))'},
        ),
        Panel(
            "Refused, by target", "Shares of the claims that were mismatched or busy.", "percentunit",
            {
                "{{target}} {{outcome}}": f'sum by (target, outcome) (rate({CLAIMS},outcome=~"mismatched|busy"}}[15m]))'
                f" / on (target) group_left () sum by (target) (rate({CLAIMS}}}[15m]))"
            },
        ),
        Panel(
            "Settlements", "How attempts ended.", "ops",
            {"{{outcome}}": 'sum by (outcome) (rate(retrysafe_settlements_total{job=~"$job"}[$__rate_interval]))'},
        ),
        Panel(
            "Running now", "Work in progress, by kind.", "short",
            {"{{kind}}": 'sum by (kind) (retrysafe_executions_active{job=~"$job"})'},
        ),
    ],
    "Time": [
        Panel(
            "Work, 99th percentile", "How long the protected work runs.", "s",
            {
                "{{target}}": "histogram_quantile(0.99, sum by (target, le) (rate("
                'retrysafe_execution_duration_seconds_bucket{job=~"$job"}[$__rate_interval])))'
            },
        ),
        Panel(
            "Store, 99th percentile", "How long the store takes for one operation.", "s",
            {
                "{{operation}}": "histogram_quantile(0.99, sum by (operation, le) (rate("
                f'{STORE}_bucket{{job=~"$job"}}[$__rate_interval])))'
            },
            alarm=0.5,
        ),
        Panel(
            "Store errors", "Share of the operations that failed, by class of error.", "percentunit",
            {
                "{{error_type}}": "sum by (error_type) (rate("
                f'{STORE}_count{{job=~"$job",error_type!=""}}[$__rate_interval]))'
                f' / ignoring (error_type) group_left () sum(rate({STORE}_count{{job=~"$job"}}[$__rate_interval]))'
            },
            alarm=0.01,
        ),
        Panel(
            "Batch size, 95th percentile", "How many operations that had to wait were sent together.", "short",
            {
                "{{operation}}": "histogram_quantile(0.95, sum by (operation, le) (rate("
                'retrysafe_store_batch_size_bucket{job=~"$job"}[$__rate_interval])))'
            },
        ),
        Panel(
            "Leases", "Renewals of leases. Lost ones mean that two attempts ran.", "ops",
            {"{{outcome}}": 'sum by (outcome) (rate(retrysafe_lease_renewals_total{job=~"$job"}[$__rate_interval]))'},
        ),
        Panel(
            "Operations", "Runs that ended, by outcome.", "ops",
            {
                "{{operation}} {{outcome}}": "sum by (operation, outcome) (rate("
                'retrysafe_operation_runs_total{job=~"$job"}[$__rate_interval]))'
            },
        ),
    ],
    "What is open, as the worker sees it": [
        Panel(
            "Oldest", "Ages of the oldest attempt in progress, uncertain key and pending job.", "s",
            {
                "in progress": 'max(retrysafe_in_progress_age_max_seconds{job=~"$job"})',
                "uncertain": 'max(retrysafe_uncertain_age_max_seconds{job=~"$job"})',
                "outbox": 'max(retrysafe_outbox_age_max_seconds{job=~"$job"})',
            },
        ),
        Panel(
            "Records", "Open records, and expired ones that are still stored.", "short",
            {"{{state}}": 'max by (state) (retrysafe_records{job=~"$job"})'},
        ),
        Panel(
            "Outbox", "Jobs that wait for their delivery.", "short",
            {"{{state}}": 'max by (state) (retrysafe_outbox_messages{job=~"$job"})'},
        ),
        Panel(
            "Delivery, 95th percentile", "From the staging of a job to its delivery.", "s",
            {
                "{{publisher}}": "histogram_quantile(0.95, sum by (publisher, le) (rate("
                'retrysafe_outbox_delay_seconds_bucket{job=~"$job"}[$__rate_interval])))'
            },
        ),
        Panel(
            "Reaper lag", "How long ago the oldest record that may be deleted expired.", "s",
            {"lag": 'max(retrysafe_reaper_lag_seconds{job=~"$job"})'}, alarm=7200,
        ),
        Panel(
            "Rounds of the worker", "Each service finishes one about every minute.", "ops",
            {
                "{{service}} {{outcome}}": "sum by (service, outcome) (rate("
                'retrysafe_worker_rounds_total{job=~"$job"}[$__rate_interval]))'
            },
        ),
        Panel(
            "People", "What people did to records.", "short",
            {
                "{{action}} {{outcome}}": "sum by (action, outcome) (increase("
                'retrysafe_operator_actions_total{job=~"$job"}[1h]))'
            },
        ),
    ],
}  # fmt: skip


def build_dashboard() -> dict[str, Any]:
    panels: list[dict[str, Any]] = []
    y = 0
    for title, row in ROWS.items():
        panels.append(build_row(len(panels) + 1, title, y))
        y += 1
        for place, panel in enumerate(row):
            at = {"h": HEIGHT, "w": WIDTH, "x": place % COLUMNS * WIDTH, "y": y + place // COLUMNS * HEIGHT}
            panels.append(build_panel(len(panels) + 1, panel, at))
        y += -(-len(row) // COLUMNS) * HEIGHT
    return {
        "uid": "retrysafe",
        "title": "retrysafe",
        "description": "Idempotency keys, operations and outbox. Each red figure has a runbook in the documentation.",
        "tags": ["retrysafe"],
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
        "timezone": "",
        "templating": {"list": [build_source_variable(), build_job_variable()]},
        "annotations": {"list": []},
        "links": [
            {
                "title": "Runbooks",
                "type": "link",
                "url": "https://retrysafe.readthedocs.io/runbooks/",
                "targetBlank": True,
            }
        ],
        "panels": panels,
    }


def build_row(number: int, title: str, y: int) -> dict[str, Any]:
    at = {"h": 1, "w": 24, "x": 0, "y": y}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}


def build_panel(number: int, panel: Panel, at: dict[str, int]) -> dict[str, Any]:
    steps: list[dict[str, Any]] = [{"color": "green", "value": None}]
    if panel.alarm is not None:
        steps.append({"color": "red", "value": panel.alarm})
    defaults = {"unit": panel.unit, "min": 0, "thresholds": {"mode": "absolute", "steps": steps}}
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.help,
        "datasource": SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": build_options(panel.kind),
        "targets": [
            {"refId": chr(65 + place), "datasource": SOURCE, "expr": query, "legendFormat": legend}
            for place, (legend, query) in enumerate(panel.queries.items())
        ],
    }


def build_options(kind: str) -> dict[str, Any]:
    if kind == "stat":
        return {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}, "colorMode": "background"}
    return {
        "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
        "tooltip": {"mode": "multi", "sort": "desc"},
    }


def build_source_variable() -> dict[str, Any]:
    return {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "refresh": 1}


def build_job_variable() -> dict[str, Any]:
    query = "label_values(retrysafe_claims_total, job)"
    return {
        "name": "job", "label": "Job", "type": "query", "datasource": SOURCE, "query": query, "definition": query,
        "refresh": 2, "includeAll": True, "allValue": ".*", "multi": True, "sort": 1,
    }  # fmt: skip


if __name__ == "__main__":
    pages.write_page(FILE, json.dumps(build_dashboard(), indent=2) + "\n")
