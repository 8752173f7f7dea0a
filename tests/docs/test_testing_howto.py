"""The tests of docs/howto/testing.md, run as a reader would run them: `pytest`, with no plugin for async tests."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = (Path(__file__).parents[2] / "docs" / "howto" / "testing.md").read_text("utf-8")
BLOCK = re.compile(r'^```python(?: title="([\w.]+)")?\n(.*?)^```', re.MULTILINE | re.DOTALL)
FILES = {title: text for title, text in BLOCK.findall(PAGE) if title}
ENDPOINT_TESTS = "\n\n".join(text for title, text in BLOCK.findall(PAGE) if not title)


def run_pytest(folder: Path, name: str) -> subprocess.CompletedProcess[str]:
    plugins = [f"-pno:{plugin}" for plugin in ("cacheprovider", "asyncio", "anyio", "randomly")]
    command = [sys.executable, "-m", "pytest", "-q", *plugins, name]
    return subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=240)


@pytest.fixture
def crash_app(tmp_path: Path) -> Path:
    assert set(FILES) == {"crash_app.py", "test_crash.py"}
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    return tmp_path / "crash_app.py"


def test_the_endpoint_tests_of_the_page_pass(tmp_path: Path) -> None:
    (tmp_path / "test_payments.py").write_text(ENDPOINT_TESTS)
    done = run_pytest(tmp_path, "test_payments.py")
    assert (done.returncode, "9 passed" in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_endpoint_tests_of_the_page_can_fail(tmp_path: Path) -> None:
    """Without its decorator the route is not protected, and every test says so."""
    unprotected = ENDPOINT_TESTS.replace("    @idempotent(scope=current_account)\n", "")
    assert unprotected != ENDPOINT_TESTS
    (tmp_path / "test_payments.py").write_text(unprotected)
    done = run_pytest(tmp_path, "test_payments.py")
    assert (done.returncode, "9 failed" in done.stdout) == (1, True), done.stdout + done.stderr


def test_the_crash_test_of_the_page_passes_and_passes_again(crash_app: Path) -> None:
    for _ in range(2):
        done = run_pytest(crash_app.parent, "test_crash.py")
        assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(each.name for each in crash_app.parent.glob("*.*")) == ["crash_app.py", "test_crash.py"]


def test_the_crash_test_of_the_page_can_fail(crash_app: Path) -> None:
    """A route that runs an abandoned request again charges twice, and the test says so."""
    rerunning = FILES["crash_app.py"].replace("Policy(lease=1)", 'Policy(lease=1, abandoned="rerun")')
    assert rerunning != FILES["crash_app.py"]
    crash_app.write_text(rerunning)
    done = run_pytest(crash_app.parent, "test_crash.py")
    assert (done.returncode, "assert '201' == '500'" in done.stdout) == (1, True), done.stdout
