"""Every Python block of the README and of docs/ runs, in the order it stands in, one namespace per page.

A block that is only a fragment has the line `<!-- no-run -->` before it, and there should be few. A block with a
title is a file: the tests of its page write it and run it.
"""

from __future__ import annotations

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
BLOCK = re.compile(r"(?<!^<!-- no-run -->\n)^```python[ ]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]+)(?:#[^)]*)?\)")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
RUN = [page for page in PAGES if BLOCK.search(page.read_text())]
VARIABLES = {"docs/howto/encryption.md": {"RETRYSAFE_KEY_2026_05": "05" * 32, "RETRYSAFE_KEY_2026_11": "11" * 32}}
"""By page: what its reader has set in the environment."""


def name(page: Path) -> str:
    return str(page.relative_to(ROOT))


def prepare(page: Path, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    for variable, value in VARIABLES.get(name(page), {}).items():
        monkeypatch.setenv(variable, value)


def run(page: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = types.ModuleType(f"page_{page.stem.replace('-', '_')}")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    try:
        for block in BLOCK.findall(page.read_text()):
            exec(compile(block, name(page), "exec"), module.__dict__)
    finally:
        for value in list(vars(module).values()):
            if type(value).__name__ == "RetrySafe":
                value.close()


@pytest.mark.parametrize("page", RUN, ids=name)
def test_the_code_of_a_page_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    prepare(page, tmp_path, monkeypatch)
    run(page, monkeypatch)


@pytest.mark.parametrize("page", RUN, ids=name)
def test_a_newcomer_may_run_the_code_again(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first run leaves its keys in a file. A second run is not surprised by them."""
    prepare(page, tmp_path, monkeypatch)
    for _ in range(2):
        run(page, monkeypatch)


@pytest.mark.parametrize("page", [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"], ids=name)
def test_the_links_of_a_page_lead_somewhere(page: Path) -> None:
    for target in LINK.findall(page.read_text()):
        assert (page.parent / target).exists(), f"{name(page)} links to {target}, which is not there"


def test_the_readme_names_the_two_commands() -> None:
    text = (ROOT / "README.md").read_text()
    assert "make demo" in text
    assert "make test" in text
