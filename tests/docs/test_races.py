"""Every row of docs/explanation/races.md names the test that shows it, and that test is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "explanation" / "races.md"
ROWS = [
    line
    for line in PAGE.read_text().splitlines()
    if line.startswith("|") and not line.startswith(("|---", "| mechanism"))
]


def test_there_are_rows() -> None:
    assert len(ROWS) > 20


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row[:60])
def test_a_row_names_a_test_that_exists(row: str) -> None:
    cells = [cell.strip() for cell in row.strip("|").split("|")]
    assert len(cells) == 4
    named = re.fullmatch(r"`(tests/[\w/]+\.py)::(test_\w+)`", cells[3])
    assert named is not None, f"{cells[3]} is not a test"
    text = (ROOT / named.group(1)).read_text()
    assert re.search(rf"def {named.group(2)}\(", text), f"{cells[3]} is not there"
