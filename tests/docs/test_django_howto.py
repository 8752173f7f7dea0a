"""The project of docs/howto/django.md works as it stands: its files are written to a folder, and it is run.

In a process of its own: Django is set up once for a process.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "howto" / "django.md"
FILE = re.compile(r'^```python title="(\S+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    for name, text in FILE.findall(PAGE.read_text()):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, *command: str) -> str:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "shop.settings", "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, *command], cwd=project, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_project_of_the_page_works(project: Path) -> None:
    assert "no issues" in run(project, "-m", "django", "check")
    assert "Applying retrysafe.0001_initial... OK" in run(project, "-m", "django", "migrate")
    for name in ("try.py", "try_transaction.py", "try_block.py"):
        run(project, "-m", "django", "shell", "-c", (project / name).read_text())
    run(project, "-c", "import shop.asgi; assert callable(shop.asgi.application)")
