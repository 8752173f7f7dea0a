"""The tutorials name only answers that have a page. Their commands are run by tests/acceptance/test_newcomer.py."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe.engine.problem_documents import DOCS_URL

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs" / "tutorial"
PAGES = ("your-api.md", "crash-it.md")
BLOCK = re.compile(r'^```(sh|console|python title="\S+")\n(.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", PAGES)
def test_every_answer_that_a_tutorial_names_has_a_page(page: str) -> None:
    named = re.findall(re.escape(f"{DOCS_URL}/") + "([a-z-]+)/", (TUTORIAL / page).read_text())
    assert named
    assert [each for each in named if not (ROOT / "docs" / "problems" / f"{each}.md").exists()] == []


def test_the_first_key_works_as_it_is_copied(tmp_path: Path) -> None:
    """Each command prints what the block below it says. The second run of the file mails nothing."""
    environment = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    printed: list[str] = []
    for kind, text in BLOCK.findall((TUTORIAL / "first-key.md").read_text()):
        if kind == "console":
            assert [line for line in text.splitlines() if line not in printed[-1]] == []
        elif kind == "sh" and "pip install" not in text:
            done = subprocess.run(
                text, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=True
            )
            printed.append(done.stdout)
        elif kind.startswith("python"):
            (tmp_path / "first.py").write_text(text)
    first, again, keys = printed
    assert (first.count("mailing"), again.count("mailing")) == (1, 0)
    assert "receipt:{4127}" in keys
