"""What `import retrysafe` costs in a fresh interpreter, in milliseconds. The least of several runs, because whatever
else the machine does can only add.

    python tools/import_cost.py [runs]
"""

from __future__ import annotations

import subprocess
import sys

RUNS = 15
MODULES = ("retrysafe", "asyncio")
"""asyncio beside it as a yardstick: what any asynchronous program pays in any case."""


def millis(module: str, runs: int) -> float:
    """The shortest import of a module. Byte code is there after the first run."""
    code = f"from time import perf_counter as t; s = t(); import {module}; print(t() - s)"
    return 1000 * min(float(told([sys.executable, "-c", code]).stdout) for _ in range(runs))


def told(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, check=True, capture_output=True, text=True)


def slowest(count: int) -> list[str]:
    """The modules that took longest, themselves alone, as the interpreter reports them."""
    report = told([sys.executable, "-X", "importtime", "-c", "import retrysafe"]).stderr
    rows = [line.removeprefix("import time:").split("|") for line in report.splitlines() if "|" in line]
    taken = [(int(own), name.strip()) for own, _, name in rows if own.strip().isdigit()]
    return [f"{own / 1000:6.1f} ms  {name}" for own, name in sorted(taken, reverse=True)[:count]]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    for module in MODULES:
        print(f"{millis(module, runs):6.1f} ms  import {module}")
    print("\n".join(["the slowest modules, once:", *slowest(8)]))


if __name__ == "__main__":
    main()
