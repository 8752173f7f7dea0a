"""Each safeguard of the console is kept by a test: without the safeguard that test fails.

The suite checks that the list is true of the code: each text is there once, and each test exists. To take each out and
run its test is a campaign: `pytest -m campaign tests/console/test_safeguards.py`."""

from __future__ import annotations

import ast
import json
import subprocess
import sys

import pytest

from tests.console.safeguards import SAFEGUARDS, Safeguard
from tests.console.without_safeguards import ROOT, SOURCE, find_test

FAILED = 1
"""pytest's exit code if tests failed. No tests, or an error in collecting, is another one."""


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda each: each.name)
def test_the_list_is_true_of_the_code(safeguard: Safeguard) -> None:
    assert (SOURCE / safeguard.file).read_text().count(safeguard.text) == 1
    path, words = find_test(safeguard)
    text = path.read_text()
    names = [
        each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    assert [name for name in names if name.startswith("test_") and words in name] or f'"{words}": ' in text


def test_no_safeguard_is_listed_twice() -> None:
    assert len({each.name for each in SAFEGUARDS}) == len(SAFEGUARDS)


@pytest.mark.campaign
def test_without_each_of_them_a_test_fails() -> None:
    command = [sys.executable, "-m", "tests.console.without_safeguards"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=3600, check=False)
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert [each["name"] for each in found] == [each.name for each in SAFEGUARDS], done.stderr[-2000:]
    kept_by_none = [f"{each['name']} ({each['code']}): {each['said']}" for each in found if each["code"] != FAILED]
    assert kept_by_none == [], "\n".join(kept_by_none)
