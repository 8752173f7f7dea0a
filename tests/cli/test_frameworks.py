"""`manage.py retrysafe` and `flask retrysafe`: the same program, on the application's own store."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim

SETTINGS = """
SECRET_KEY = "x"
INSTALLED_APPS = ["retrysafe.web.django"]
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "elsewhere.db"}}
RETRYSAFE = {"URL": "sqlite:///app.db"}
"""

FLASK_APP = """
from flask import Flask
from retrysafe import RetrySafe
from retrysafe.web.flask import Idempotency

app = Flask(__name__)
Idempotency(app, safe=RetrySafe("sqlite:///app.db"), scope=lambda view: "acme")
"""

DJANGO = ("from django.core.management import execute_from_command_line as run; import sys; run(sys.argv)",)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "settings.py").write_text(SETTINGS)
    (tmp_path / "shop.py").write_text(FLASK_APP)
    store = open_store(f"sqlite:///{tmp_path}/app.db")
    store.migrate()
    store.execute(claim("order-7", lease=0, now=None))
    store.close()
    return tmp_path


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    env = {**os.environ, "DJANGO_SETTINGS_MODULE": "settings", "FLASK_APP": "shop", "PYTHONPATH": str(folder)}
    return subprocess.run(
        [sys.executable, *command], cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )


@pytest.mark.parametrize("start", [("-c", *DJANGO, "retrysafe"), ("-m", "flask", "retrysafe")], ids=["django", "flask"])
def test_commands_find_the_applications_store(folder: Path, start: tuple[str, ...]) -> None:
    done = run(folder, *start, "keys", "list", "--state", "uncertain")
    assert (done.returncode, "order-7" in done.stdout) == (0, True), done.stderr
    done = run(folder, *start, "keys", "resolve", "order-7", "--did-not-happen")
    assert (done.returncode, "--because" in done.stderr) == (2, True), "the exit codes are those of retrysafe"
    done = run(folder, *start, "keys", "resolve", "order-7", "--did-not-happen", "--because", "not in their list")
    assert (done.returncode, "released" in done.stdout) == (0, True), done.stderr
    assert run(folder, *start, "keys", "show", "nobody").returncode == 3
    done = run(folder, *start, "keys", "--help")
    assert (done.returncode, "resolve" in done.stdout) == (0, True), "help is ours"
    other = run(folder, *start, "stats", "sqlite:///other.db")
    assert other.returncode == 5, "a URL that is given counts"


@pytest.mark.parametrize("start", [("-c", *DJANGO, "retrysafe"), ("-m", "flask", "retrysafe")], ids=["django", "flask"])
def test_the_worker_runs_with_the_applications_object(folder: Path, start: tuple[str, ...]) -> None:
    done = run(folder, *start, "worker", "--once", "--json")
    assert (done.returncode, '"sweeper": 1' in done.stdout) == (0, True), done.stderr


def test_config_says_that_a_setting_comes_from_the_framework(folder: Path) -> None:
    done = run(folder, "-c", *DJANGO, "retrysafe", "config", "--json")
    assert json.loads(done.stdout)["url"] == {"value": "sqlite:///app.db", "source": "application"}, done.stderr
    done = run(folder, "-c", *DJANGO, "retrysafe", "config", "sqlite:///other.db", "--json")
    assert json.loads(done.stdout)["url"] == {"value": "sqlite:///other.db", "source": "argument"}, done.stderr
