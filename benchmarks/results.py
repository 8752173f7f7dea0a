"""One file for a run, which may be made part by part: a part that is measured again replaces what it had."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.harness import Pace
from benchmarks.tables import Table, table_from

_INNERMOST = re.compile(r"[{\[][^{}\[\]\"]*(?:\"[a-z0-9]+\":[^{}\[\]\"]*)*[}\]]")
"""Samples, ratios and lists of numbers: a line each, or a file has ten thousand of them."""
RESULTS = Path(__file__).resolve().parent / "results"


class Part(NamedTuple):
    """The tables of one part and the circumstances they were measured in."""

    about: dict[str, Any]
    tables: list[Table]


class Results(NamedTuple):
    name: str
    parts: dict[str, Part]

    def tables(self) -> dict[str, Table]:
        return {table.slug: table for part in self.parts.values() for table in part.tables}


def circumstances(pace: Pace, servers: Iterable[str], load: float) -> dict[str, Any]:
    """What a reader must know. No host names, no paths: the file is published."""
    return {
        "when": datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
        "machine": ", ".join((f"{os.cpu_count()} cores", platform.system(), f"Python {platform.python_version()}")),
        "servers": list(servers),
        "pace": {"name": pace.label, "seconds": pace.seconds, "rounds": pace.rounds, "callers": list(pace.callers)},
        "load before": round(load, 2),
    }


def merged(results: Results, name: str, part: Part) -> Results:
    return results._replace(parts={**results.parts, name: part})


def path_of(folder: Path, name: str) -> Path:
    return folder / f"{name}.json"


def save(folder: Path, results: Results) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = path_of(folder, results.name)
    parts = {
        name: {**part.about, "tables": [table.plain() for table in part.tables]} for name, part in results.parts.items()
    }
    text = json.dumps({"name": results.name, "parts": parts}, indent=1, ensure_ascii=False)
    path.write_text(_INNERMOST.sub(lambda found: " ".join(found[0].split()), text) + "\n")
    return path


def load(path: Path) -> Results:
    plain = json.loads(path.read_text())
    parts = {
        name: Part(
            {key: value for key, value in part.items() if key != "tables"},
            [table_from(each) for each in part["tables"]],
        )
        for name, part in plain["parts"].items()
    }
    return Results(plain["name"], parts)


def begun(folder: Path, name: str) -> Results:
    """What the file already holds, to be added to."""
    path = path_of(folder, name)
    return load(path) if path.exists() else Results(name, {})


def newest(folder: Path = RESULTS) -> Results | None:
    """Files are named by date, so the last by name is the last run."""
    found = sorted(folder.glob("*.json"))
    return load(found[-1]) if found else None
