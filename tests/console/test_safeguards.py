"""Each safeguard of the console is kept by a test: without the safeguard that test fails.

The suite checks that the list is true of the code: each text is there once, and each test exists. To take each out and
run its test is a campaign: `pytest -m campaign tests/console/test_safeguards.py`."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import retrysafe
from tests.console.safeguards import SAFEGUARDS, Safeguard

HERE = Path(__file__).parent
SOURCE = Path(retrysafe.__file__).parent
CHANGED = ("console", "operators")
"""The packages of which a changed copy is made. The others are those of the source."""
FAILED = 1
"""pytest's exit code if tests failed. No tests, or an error in collecting, is another one."""


def find_test(safeguard: Safeguard) -> tuple[Path, str]:
    file, _, words = safeguard.test.partition(" ")
    return (HERE / file).resolve(), words


def copy_without(safeguard: Safeguard, folder: Path) -> None:
    """The package in a folder, without this safeguard."""
    made = folder / "retrysafe"
    made.mkdir()
    for each in SOURCE.iterdir():
        if each.name in CHANGED:
            shutil.copytree(each, made / each.name, ignore=shutil.ignore_patterns("__pycache__"))
        elif each.name != "__pycache__":
            (made / each.name).symlink_to(each)
    changed = made / safeguard.file
    changed.write_text(changed.read_text().replace(safeguard.text, safeguard.without))


@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda each: each.name)
def test_the_list_is_true_of_the_code(safeguard: Safeguard) -> None:
    assert (SOURCE / safeguard.file).read_text().count(safeguard.text) == 1
    path, words = find_test(safeguard)
    text = path.read_text()
    names = [each.name for each in ast.walk(ast.parse(text)) if isinstance(each, ast.FunctionDef)]
    assert [name for name in names if name.startswith("test_") and words in name] or f'"{words}": ' in text


@pytest.mark.campaign
@pytest.mark.parametrize("safeguard", SAFEGUARDS, ids=lambda each: each.name)
def test_without_it_a_test_fails(safeguard: Safeguard, tmp_path: Path) -> None:
    copy_without(safeguard, tmp_path)
    path, words = find_test(safeguard)
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0", str(path), "-k", words]
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{HERE.parents[1]}", "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        command, cwd=HERE.parents[1], env=env, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == FAILED, f"{safeguard.name} is kept by no test:\n{done.stdout[-1500:]}{done.stderr[-1500:]}"
