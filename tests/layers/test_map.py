"""ARCHITECTURE.md is true: the files it names exist, and its table of walks is what a new trace shows."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tools import walks

ROOT = Path(__file__).resolve().parent.parent.parent
PAGE = (ROOT / "ARCHITECTURE.md").read_text()
FILE = re.compile(r"`((?:[\w<>]+/)*[\w<>]+(?:\.py|/))`")
PLACES = (ROOT / "src" / "retrysafe", ROOT)


def test_the_table_of_walks_is_what_a_new_trace_shows() -> None:
    """In a process of its own: threads and caches of other tests would be in the way."""
    command = [sys.executable, "-m", "tools.walks", "--check"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("name", sorted({name for name in FILE.findall(PAGE) if "<" not in name}))
def test_a_file_that_the_map_names_is_there(name: str) -> None:
    assert any((place / name).exists() for place in PLACES) or _is_beside_a_store(name)


def _is_beside_a_store(name: str) -> bool:
    """`doctor.py` and `errors.py` stand for the file of that name in each store; `perform.py` for a neighbour."""
    return "/" not in name and any((ROOT / "src" / "retrysafe").rglob(name))


def test_a_walk_that_visits_another_file_is_noticed() -> None:
    visited = walks.Walk(("core/keys.py",), 1)
    table = walks.build_table({"POST": visited})
    assert "| `core/keys.py` |" in table
    assert walks.replace_table(PAGE, table) != PAGE
