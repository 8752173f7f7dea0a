"""Names that people try first, and old names that go on for one release."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import retrysafe
from retrysafe import Policy


@pytest.mark.parametrize("name", ["fastapi", "starlette", "flask", "litestar", "quart", "django"])
def test_an_adapter_is_found_without_web(name: str) -> None:
    short, long = importlib.import_module(f"retrysafe.{name}"), importlib.import_module(f"retrysafe.web.{name}")
    for each in getattr(long, "__all__", ("IdempotencyMiddleware", "Idempotency")):
        assert getattr(short, each) is getattr(long, each)


def test_what_is_asked_for_often_is_at_the_top() -> None:
    assert retrysafe.StoreUnavailable is retrysafe.errors.StoreUnavailable
    assert retrysafe.Worker.__name__ == "Worker"
    assert retrysafe.IdempotencyMiddleware.__module__ == "retrysafe.web.asgi"
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        _ = retrysafe.Wroker


def test_importing_it_stays_cheap() -> None:
    code = "import sys, retrysafe; print([name for name in sys.modules if name.startswith('retrysafe.w')])"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "[]"


def test_a_policy_is_still_changed_by_its_old_verb() -> None:
    with pytest.warns(DeprecationWarning, match=r"Policy\.replace"):
        assert Policy().but(lease=120).lease == 120


@pytest.mark.parametrize(
    ("module", "old", "new"),
    [
        ("retrysafe.errors", "WrongColour", "SyncAsyncMismatch"),
        ("retrysafe.jobs", "Fence", "QueueAdapter"),
        ("retrysafe.web.asgi", "Shortcut", "ResponseReady"),
        ("retrysafe.web.wsgi", "Shortcut", "ResponseReady"),
        ("retrysafe.client", "Ambient", "Clock"),
        ("retrysafe.client", "Trail", "AttemptLog"),
    ],
)
def test_an_old_name_goes_on_and_says_the_new_one(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(found, old) is getattr(found, new)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = found.Nonsense
