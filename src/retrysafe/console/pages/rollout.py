"""Rollout: per route, how many requests have a key, and whether the route is ready for `mode="required"`."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.visit import Visit
from retrysafe.errors import UsageError
from retrysafe.operators.route_usage import RouteUse, add_up, parse_census, summarize_use


def show_rollout(visit: Visit) -> ConsoleResponse:
    clients = visit.request.param("clients") == "1"
    uses, problems = read_uses(visit, by_client=clients)
    sources = len(visit.console.census)
    return visit.render("rollout.html", title="Rollout", uses=uses, problems=problems, clients=clients, sources=sources)


def export_rollout(visit: Visit) -> ConsoleResponse:
    uses, _ = read_uses(visit, by_client=True)
    body = json.dumps([summarize_use(use) for use in uses], indent=1).encode()
    return ConsoleResponse(200, body, (("content-type", "application/json"), ("cache-control", "no-store"),
                                ("content-disposition", 'attachment; filename="rollout.json"')))  # fmt: skip


def read_uses(visit: Visit, *, by_client: bool) -> tuple[list[RouteUse], list[str]]:
    """The table, and the sources that could not be read."""
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    for source in visit.console.census:
        try:
            rows += iter_rows(source)
        except (UsageError, OSError) as error:
            problems.append(str(error))
    return add_up(rows, by_client=by_client), problems


def iter_rows(source: Any) -> Iterator[dict[str, Any]]:
    """The rows of one census: statistics of this process, or a file that another process writes."""
    if isinstance(source, str | Path):
        yield from parse_census(Path(source).read_text(), str(source))
    else:
        yield from source.snapshot()["rows"]
