"""The crash test of docs/howto/testing.md, run as a reader would run it."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "testing.md"
FILE = re.compile(r'^```python title="([\w.]+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


def test_the_crash_test_of_the_page_passes(tmp_path: Path) -> None:
    files = dict(FILE.findall(PAGE.read_text()))
    assert set(files) == {"crash_app.py", "test_crash.py"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_crash.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_crash_test_of_the_page_can_fail(tmp_path: Path) -> None:
    """A route that runs an abandoned request again charges twice, and the test says so."""
    files = dict(FILE.findall(PAGE.read_text()))
    rerunning = files["crash_app.py"].replace("Policy(lease=1)", 'Policy(lease=1, abandoned="rerun")')
    assert rerunning != files["crash_app.py"]
    (tmp_path / "crash_app.py").write_text(rerunning)
    (tmp_path / "test_crash.py").write_text(files["test_crash.py"])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "test_crash.py"]
    done = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True, timeout=240)
    assert (done.returncode, "assert '201' == '500'" in done.stdout) == (1, True), done.stdout
