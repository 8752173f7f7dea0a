"""The prose check finds what it must, and leaves code alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools import prose

GOOD = """# Title

The client gets 409. Run `whoever --goes-on`.

```python
told = "whoever is told"
```
"""


def check(text: str, tmp_path: Path) -> list[str]:
    page = tmp_path / "page.md"
    page.write_text(text)
    return [finding.found for finding in prose.check(page)]


def test_good_prose_and_code_are_left_alone(tmp_path: Path) -> None:
    assert check(GOOD, tmp_path) == []


@pytest.mark.parametrize(
    "text",
    ["The sender is told nothing.", "Tested in both colours.", "How many stand where.", "Whoever asks gets it.",
     "A person looks.", "The house, on one page.", "It takes some 14 minutes.", "Keys are stored in clear.",
     "The store is away.", "Older processes go on.", "Keep it until none of its runs that is not completed is left."],
)  # fmt: skip
def test_a_turn_of_phrase_that_makes_readers_stumble_is_found(text: str, tmp_path: Path) -> None:
    assert len(check(text, tmp_path)) == 1


def test_a_very_long_sentence_is_found(tmp_path: Path) -> None:
    assert len(check("word " * (prose.LONGEST_SENTENCE_WORDS + 1), tmp_path)) == 1
    assert check("| " + "word " * 100 + " |", tmp_path) == []


def test_every_page_but_the_decisions_is_checked() -> None:
    checked = set(prose.list_pages())
    left_out = {page.parent.name for page in (prose.ROOT / "docs").rglob("*.md") if page not in checked}
    assert left_out == {"decisions"}
