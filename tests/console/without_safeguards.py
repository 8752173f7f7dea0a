"""Take safeguards of the console out, one at a time, and run the test that keeps each. Prints, as JSON, how each test
ended.

    python -m tests.console.without_safeguards [NAME …]

Every run is a fork of one process that has imported everything else: a short test spends most of its time there."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

import retrysafe
from tests.console.safeguards import SAFEGUARDS, Safeguard

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
SOURCE = Path(retrysafe.__file__).parent
CHANGED = ("console", "operators")
"""The packages of which a changed copy is made. The others are those of the source."""
OPTIONS = ("-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--no-header")


def find_test(safeguard: Safeguard) -> tuple[Path, str]:
    file, _, words = safeguard.test.partition(" ")
    return (HERE / file).resolve(), words


def copy_without(safeguard: Safeguard, folder: Path) -> Path:
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
    return made


def run_here(safeguard: Safeguard, package: Path) -> int:
    """Run the test in this process, with the changed copy instead of what was imported."""
    left_out = (*(f"retrysafe.{name}" for name in CHANGED), "retrysafe.cli", "tests.console", "tests.browser")
    for name in [each for each in sys.modules if each.startswith(left_out)]:
        del sys.modules[name]
    for name in CHANGED:
        vars(retrysafe).pop(name, None)
    retrysafe.__path__.insert(0, str(package))
    os.environ["PYTHONPATH"] = f"{package.parent}:{ROOT}"  # for tests that start processes
    path, words = find_test(safeguard)
    return int(pytest.main([*OPTIONS, str(path), "-k", words]))


def run_without(safeguard: Safeguard) -> tuple[int, str]:
    """The exit code of pytest, and the end of what it said."""
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as said:
        package = copy_without(safeguard, Path(folder))
        child = os.fork()
        if child == 0:
            code = 99
            try:
                os.dup2(said.fileno(), 1)
                os.dup2(said.fileno(), 2)
                code = run_here(safeguard, package)
            finally:
                os._exit(code)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        said.seek(0)
        return code, said.read()[-1500:].decode(errors="replace")


def main(names: list[str]) -> None:
    os.chdir(ROOT)
    wanted = [each for each in SAFEGUARDS if not names or each.name in names]
    files = sorted({str(find_test(each)[0]) for each in wanted})
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        pytest.main([*OPTIONS, "--collect-only", *files])
    for safeguard in wanted:
        code, said = run_without(safeguard)
        print(json.dumps({"name": safeguard.name, "code": code, "said": said}), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
