"""Measure `from retrysafe import RetrySafe` in a new interpreter, in milliseconds. Prints the minimum of several runs,
because other load on the machine only adds time.

    python tools/import_cost.py [runs]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

RUNS = 20
MODULES = ("retrysafe.engine.safe", "asyncio")
"""The module of `RetrySafe`: the package itself imports nothing. asyncio is there for comparison: every async program
imports it."""


def measure_import(module: str, env: dict[str, str]) -> float:
    code = f"from time import perf_counter as t; s = t(); import {module}; print(t() - s)"
    return 1000 * float(run_python(["-c", code], env).stdout)


def run_python(arguments: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True, env=env)


def list_slowest(count: int, env: dict[str, str]) -> list[str]:
    """The slowest modules, each without its own imports, as `-X importtime` reports them."""
    report = run_python(["-X", "importtime", "-c", "import retrysafe.engine.safe"], env).stderr
    rows = [line.removeprefix("import time:").split("|") for line in report.splitlines() if "|" in line]
    times = [(int(own), name.strip()) for own, _, name in rows if own.strip().isdigit()]
    return [f"{own / 1000:6.1f} ms  {name}" for own, name in sorted(times, reverse=True)[:count]]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        # An installed package has its byte code. A checkout may have none, and would be compiled in each run.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = folder
        minimum = dict.fromkeys(MODULES, float("inf"))
        for _ in range(1 + runs):
            for module in MODULES:
                minimum[module] = min(minimum[module], measure_import(module, env))
        for module, cost in minimum.items():
            print(f"{cost:6.1f} ms  import {module}")
        print("\n".join(["the slowest modules, once:", *list_slowest(8, env)]))


if __name__ == "__main__":
    main()
