"""Every line of what-broke.md is put back by an ablation, or stands under the reason why no simulation meets it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.simulation.ablations import ABLATIONS
from tests.simulation.ablations.what_broke import NOT_SIMULATED, PUT_BACK

PAGE = Path(__file__).parents[2] / "docs/explanation/what-broke.md"


def read_lines() -> list[str]:
    """The first cell of each row."""
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| ")]
    return [row[2:] for row in rows if not row.startswith("| what could happen")]


NAMED = [*PUT_BACK, *(words for reason in NOT_SIMULATED.values() for words in reason)]


def find_names(line: str) -> list[str]:
    """The names of a line; of two names of which one begins with the other, the longer one counts."""
    found = [words for words in NAMED if line.startswith(words)]
    return [max(found, key=len)] if found else []


def test_every_line_is_put_back_or_has_its_reason() -> None:
    missing = [line[:90] for line in read_lines() if not find_names(line)]
    assert missing == [], "put the defect back in tests/simulation/ablations, and name the line in what_broke.py"


def test_every_name_is_that_of_one_line() -> None:
    lines = read_lines()
    assert len(NAMED) == len(set(NAMED))
    used = [words for line in lines for words in find_names(line)]
    assert sorted(used) == sorted(NAMED)


def test_every_line_names_ablations_that_there_are() -> None:
    known = {ablation.name for ablation in ABLATIONS}
    assert {name for names in PUT_BACK.values() for name in names} <= known


def test_names_of_ablations_are_different() -> None:
    names = [ablation.name for ablation in ABLATIONS]
    assert len(names) == len(set(names))


@pytest.mark.parametrize("ablation", ABLATIONS, ids=lambda each: each.name)
def test_a_patch_ends_with_its_block(ablation: object) -> None:
    with ablation.patch():  # type: ignore[attr-defined]
        pass
