"""Commands are spelled alike on all pages: with RETRYSAFE_URL set, except where a store is set up, and in tutorials."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[2] / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if page != DOCS / "reference" / "cli.md"]

WITH_URL = re.compile(r"\bretrysafe (?!migrate\b|doctor\b|trigger\b|proxy\b)[a-z-]+(?: [a-z-]+)? URL\b")
LOWER_PLACEHOLDER = re.compile(r"\b(?:module:\w+|MODULE:[a-z]\w*)")


def find(pattern: re.Pattern[str]) -> list[str]:
    return [f"{page.relative_to(DOCS)}: {found}" for page in PAGES for found in pattern.findall(page.read_text())]


def test_the_patterns_find_what_they_are_for() -> None:
    assert WITH_URL.search("$ retrysafe keys list URL --state uncertain")
    assert WITH_URL.search("`retrysafe stats URL`")
    assert not WITH_URL.search("retrysafe migrate URL --recreate keys")
    assert LOWER_PLACEHOLDER.search("retrysafe worker module:safe")


def test_a_command_names_no_url_where_the_setting_is_enough() -> None:
    assert find(WITH_URL) == []


def test_placeholders_are_in_capitals() -> None:
    assert find(LOWER_PLACEHOLDER) == []
