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
COMMANDS = re.compile(r"^```sh\n(.*?)^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r'^```python title="(\S+)"\n(.*?)^```', re.MULTILINE | re.DOTALL)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """An empty folder after the page's first command and its files."""
    run(tmp_path, f"python -m django {COMMANDS.findall(PAGE.read_text())[0].removeprefix('django-admin ')}")
    for name, text in FILE.findall(PAGE.read_text()):
        assert (tmp_path / name).parent.is_dir()
        (tmp_path / name).write_text(text)
    return tmp_path


def run(project: Path, command: str) -> str:
    binaries = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = {**os.environ, "PATH": binaries, "PYTHONPATH": f"{project}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        command, shell=True, cwd=project, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def test_the_project_of_the_page_works(project: Path) -> None:
    for _ in range(2):  # a newcomer runs it again
        for command in COMMANDS.findall(PAGE.read_text())[1].splitlines():
            printed = run(project, command)
            if command.endswith("check"):
                assert "no issues" in printed
            if command.endswith("try.py"):
                assert "one payment for each key" in printed
        for name in ("try_transaction.py", "try_block.py"):
            run(project, f"python manage.py shell < {name}")
    run(
        project,
        "DJANGO_SETTINGS_MODULE=shop.settings python -c 'import shop.asgi; assert callable(shop.asgi.application)'",
    )


def test_the_page_names_the_rest_framework() -> None:
    """It is no part of the extra, and the page's settings import it."""
    assert "pip install djangorestframework" in PAGE.read_text()
