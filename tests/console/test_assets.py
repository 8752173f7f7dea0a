"""Vendored files are those of the package, unchanged; nothing is loaded from elsewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import retrysafe.console
from tests.console import axe

STATIC = Path(retrysafe.console.__file__).parent / "static"
TEMPLATES = STATIC.parent / "templates"
ROW = re.compile(r"^\| ([\w.-]+\.js) \| [\w./-]+ \| ([0-9a-f]{64}) \|$", re.MULTILINE)


@pytest.mark.parametrize("folder", [STATIC, axe.FOLDER], ids=["console", "axe"])
def test_each_vendored_file_has_its_hash_beside_it(folder: Path) -> None:
    listed = dict(ROW.findall((folder / "VENDORED.md").read_text()))
    ours = {"console.js"}
    assert set(listed) == {path.name for path in folder.glob("*.js")} - ours
    for name, digest in listed.items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert list(folder.glob("LICENSE*"))


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_no_template_marks_a_value_as_safe_or_asks_another_host(path: Path) -> None:
    text = path.read_text()
    assert "safe" not in re.findall(r"\|\s*(\w+)", text)
    assert "autoescape" not in text
    assert not re.search(r"(src|href|action)=\"https?:", text)
    assert not re.search(r"=\{\{", text), "an attribute without quotation marks"
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
