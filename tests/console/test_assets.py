"""Vendored files are those of the package, unchanged; nothing is loaded from elsewhere."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path

import pytest

import retrysafe.console

STATIC = Path(retrysafe.console.__file__).parent / "static"
TEMPLATES = STATIC.parent / "templates"
ROW = re.compile(r"^\| ([\w.-]+\.js) \| [\w./-]+ \| ([0-9a-f]{64}) \|$", re.MULTILINE)


def test_each_vendored_file_has_its_hash_beside_it() -> None:
    listed = dict(ROW.findall((STATIC / "VENDORED.md").read_text()))
    assert set(listed) == {path.name for path in STATIC.glob("*.js")} - {"console.js"}
    for name, digest in listed.items():
        assert hashlib.sha256((STATIC / name).read_bytes()).hexdigest() == digest
    assert (STATIC / "LICENSE.htmx").exists()


@pytest.mark.parametrize("path", sorted(TEMPLATES.glob("*.html")), ids=lambda path: path.name)
def test_no_template_marks_a_value_as_safe_or_asks_another_host(path: Path) -> None:
    text = path.read_text()
    assert "safe" not in re.findall(r"\|\s*(\w+)", text)
    assert "autoescape" not in text
    assert not re.search(r"(src|href|action)=\"https?:", text)
    assert not re.search(r"=\{\{", text), "an attribute without quotation marks"
    assert not re.search(r"\son\w+=|\sstyle=|<style|javascript:", text)
