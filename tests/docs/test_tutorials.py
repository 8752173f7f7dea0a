"""The tutorials name only answers that have a page. Their commands are run by tests/acceptance/test_newcomer.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from retrysafe.web.problems import DOCS_URL

ROOT = Path(__file__).parents[2]
PAGES = ("your-api.md", "crash-it.md")


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_that_a_tutorial_names_has_a_page(page: str) -> None:
    named = re.findall(re.escape(f"{DOCS_URL}/") + "([a-z-]+)/", (ROOT / "docs" / "tutorial" / page).read_text())
    assert named
    assert [each for each in named if not (ROOT / "docs" / "problems" / f"{each}.md").exists()] == []
