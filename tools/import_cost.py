"""What `import retrysafe` costs in a fresh interpreter, in milliseconds. The least of several runs, because whatever
else the machine does can only add.

    python tools/import_cost.py [runs]
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile

RUNS = 20
MODULES = ("retrysafe", "asyncio")
"""asyncio beside it as a yardstick: what any asynchronous program pays in any case."""


def millis(module: str, env: dict[str, str]) -> float:
    code = f"from time import perf_counter as t; s = t(); import {module}; print(t() - s)"
    return 1000 * float(told(["-c", code], env).stdout)


def told(arguments: list[str], env: dict[str, str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *arguments], check=True, capture_output=True, text=True, env=env)


def slowest(count: int, env: dict[str, str]) -> list[str]:
    """The modules that took longest, themselves alone, as the interpreter reports them."""
    report = told(["-X", "importtime", "-c", "import retrysafe"], env).stderr
    rows = [line.removeprefix("import time:").split("|") for line in report.splitlines() if "|" in line]
    taken = [(int(own), name.strip()) for own, _, name in rows if own.strip().isdigit()]
    return [f"{own / 1000:6.1f} ms  {name}" for own, name in sorted(taken, reverse=True)[:count]]


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else RUNS
    with tempfile.TemporaryDirectory() as folder:
        # An installed package has its byte code beside it; a checkout may not, and would be compiled each time.
        env = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
        env["PYTHONPYCACHEPREFIX"] = folder
        least = dict.fromkeys(MODULES, float("inf"))
        for _ in range(1 + runs):
            for module in MODULES:
                least[module] = min(least[module], millis(module, env))
        for module, cost in least.items():
            print(f"{cost:6.1f} ms  import {module}")
        print("\n".join(["the slowest modules, once:", *slowest(8, env)]))


if __name__ == "__main__":
    main()
