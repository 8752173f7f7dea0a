"""The rules and the dashboard, by the tools of Prometheus: `promtool test rules`, and every query is PromQL."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from retrysafe.engine.instruments import INSTRUMENTS

FOLDER = Path(__file__).parents[2] / "monitoring"
DASHBOARD = json.loads((FOLDER / "dashboard.json").read_text())
VARIABLES = {"$__rate_interval": "5m", "$job": ".*"}


def run(promtool: list[str], *arguments: str) -> str:
    done = subprocess.run([*promtool, *arguments], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


pytestmark = pytest.mark.xdist_group("promtool")


def test_each_alert_fires_and_clears(promtool: list[str]) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", "alerts_test.yml")


def test_each_alert_has_such_a_test() -> None:
    rules = yaml.safe_load((FOLDER / "alerts.yml").read_text())["groups"][0]["rules"]
    tests = yaml.safe_load((FOLDER / "alerts_test.yml").read_text())["tests"]
    fires = {each["alertname"] for test in tests for each in test["alert_rule_test"] if each.get("exp_alerts")}
    silent = {each["alertname"] for test in tests for each in test["alert_rule_test"] if not each.get("exp_alerts")}
    assert {rule["alert"] for rule in rules} == fires == silent


def panels() -> list[dict[str, Any]]:
    return [panel for panel in DASHBOARD["panels"] if panel["type"] != "row"]


def test_every_query_of_the_dashboard_is_promql(promtool: list[str], tmp_path: Path) -> None:
    rules = []
    for number, target in enumerate(target for panel in panels() for target in panel["targets"]):
        query = target["expr"]
        for name, value in VARIABLES.items():
            query = query.replace(name, value)
        assert "$" not in query
        rules.append({"record": f"query:{number}", "expr": query})
    path = tmp_path / "queries.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "queries", "rules": rules}]}))
    assert f"SUCCESS: {len(rules)} rules found" in run(promtool, "check", "rules", str(path))


def test_the_dashboard_shows_every_instrument_and_nothing_else() -> None:
    queries = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    used = {re.sub(r"_(bucket|count|sum)$", "", name) for name in re.findall(r"\bretrysafe_\w+", queries)}
    assert used == {instrument.prometheus_name for instrument in INSTRUMENTS}


def test_the_dashboard_is_well_formed() -> None:
    """What Grafana's importer looks at: a uid, numbered panels that do not overlap, and one source for all of them."""
    assert DASHBOARD["uid"] == "retrysafe"
    assert "id" not in DASHBOARD, "the number of one installation"
    assert [variable["name"] for variable in DASHBOARD["templating"]["list"]] == ["datasource", "job"]
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
    cells: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        covered = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not covered & cells, f"{panel['title']} lies on another panel"
        cells |= covered
    for panel in panels():
        assert panel["datasource"]["uid"] == "${datasource}"
        assert all(target["datasource"]["uid"] == "${datasource}" for target in panel["targets"])
        assert panel["description"].endswith(".")
