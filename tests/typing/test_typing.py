"""Types of the public API are tests too: mypy reads api.py as a user's program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

API = Path(__file__).with_name("api.py")
ROOT = API.parents[2]


def test_a_user_s_program_has_the_types_it_should() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "mypy", "--config-file", "", "--strict", "--no-incremental", str(API)],
        cwd=ROOT,
        env={"MYPYPATH": str(ROOT / "src")},
        capture_output=True,
        text=True,
        check=False,
    )
    told = [line for line in ran.stdout.splitlines() if line.startswith("tests/typing/") or "api.py" in line]
    assert told == [], ran.stdout + ran.stderr
    assert ran.returncode == 0, ran.stdout + ran.stderr


def test_the_package_says_that_it_is_typed() -> None:
    assert (ROOT / "src" / "retrysafe" / "py.typed").exists()
