"""Print the coverage of the packages that have a floor, and fail if one is below it. Run by `make coverage`.

    python tools/coverage_floor.py           reads .coverage and [tool.retrysafe.coverage-floors] of pyproject.toml

A figure counts lines and branches together, as `coverage report` does. The floors are a little below the last
measurement. Raise them when the figures have risen. A failing test does not stop `make coverage`; use `make test` for
that.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ("src", "retrysafe")


class Figure(NamedTuple):
    """How many lines and branches a package has, and how many of them ran."""

    package: str
    covered: int
    total: int

    @property
    def percent(self) -> float:
        return 100.0 * self.covered / self.total if self.total else 0.0


def read_floors(pyproject: str) -> dict[str, float]:
    floors: dict[str, float] = tomllib.loads(pyproject)["tool"]["retrysafe"]["coverage-floors"]
    return floors


def measure(files: Mapping[str, Any], package: str) -> Figure:
    """Add up the files of a package. `files` is the part of that name in coverage's JSON report."""
    sums = [each["summary"] for name, each in files.items() if is_in_package(Path(name), package)]
    covered = sum(each["covered_lines"] + each.get("covered_branches", 0) for each in sums)
    total = sum(each["num_statements"] + each.get("num_branches", 0) for each in sums)
    return Figure(package, covered, total)


def is_in_package(path: Path, package: str) -> bool:
    wanted = (*PACKAGE, package)
    return any(path.parts[index : index + len(wanted)] == wanted for index in range(len(path.parts)))


def list_problems(figures: list[Figure], floors: Mapping[str, float]) -> list[str]:
    return [
        f"{each.package}: {each.percent:.1f} % is below its floor of {floors[each.package]:g} %"
        for each in figures
        if each.percent < floors[each.package]
    ]


def read_report() -> Mapping[str, Any]:
    """The files of coverage's JSON report."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "coverage.json"
        subprocess.run([sys.executable, "-m", "coverage", "json", "-q", "-o", str(report)], check=True, cwd=ROOT)
        files: Mapping[str, Any] = json.loads(report.read_text())["files"]
        return files


def main() -> int:
    floors = read_floors((ROOT / "pyproject.toml").read_text())
    files = read_report()
    figures = [measure(files, package) for package in floors]
    for each in figures:
        floor = floors[each.package]
        print(f"{each.package:8} {each.percent:5.1f} % of {each.total} lines and branches; floor {floor:g} %")
    problems = list_problems(figures, floors)
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
