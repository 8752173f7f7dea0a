"""The README stays short, and names commands that exist. Its API and its `curl` are run by
tests/acceptance/test_newcomer.py."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def test_the_install_line_comes_before_the_code() -> None:
    assert README.index("pip install") < README.index("```python")


def test_the_readme_fits_in_a_screen_and_a_half() -> None:
    assert len(README.splitlines()) <= 110


def test_the_figures_name_commands_that_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"make ([a-z-]+)", README))
    assert {"demo", "test", "proof-stores", "bench", "docs-serve"} <= named
    assert named <= targets
