"""Names that people try first, and old names that go on for one release."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from typing import Any

import pytest

import retrysafe
from retrysafe import Policy, RetrySafe, webhooks
from retrysafe.core.ops import List, Stats
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing import Do


@pytest.mark.parametrize("name", ["fastapi", "starlette", "flask", "litestar", "quart", "django"])
def test_an_adapter_is_found_without_web(name: str) -> None:
    short, long = importlib.import_module(f"retrysafe.{name}"), importlib.import_module(f"retrysafe.web.{name}")
    for each in getattr(long, "__all__", ("IdempotencyMiddleware", "Idempotency")):
        assert getattr(short, each) is getattr(long, each)


def test_the_jobs_of_celery_are_found_without_jobs() -> None:
    from retrysafe.jobs.celery import CeleryJobs

    assert importlib.import_module("retrysafe.celery").CeleryJobs is CeleryJobs


def test_the_url_may_be_in_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RETRYSAFE_URL", raising=False)
    with pytest.raises(retrysafe.StoreURLError, match="RETRYSAFE_URL"):
        RetrySafe()
    with pytest.raises(retrysafe.StoreURLError, match=r"only commands read retrysafe\.toml and \[tool\.retrysafe\]"):
        RetrySafe()
    monkeypatch.setenv("RETRYSAFE_URL", "memory://guessed")
    assert RetrySafe().store.execute(Stats()).claimed == 0
    with pytest.raises(retrysafe.StoreURLError, match="nonsense"):
        RetrySafe("nonsense://")  # what the code says wins


@pytest.mark.parametrize("field", ["lease", "wait", "retention"])
@pytest.mark.parametrize(
    ("value", "seconds"),
    [("60s", 60), ("60", 60), ("5m", 300), ("24 hours", 86400), ("7d", 604800), ("P1D", 60), ("0s", 60)],
)
def test_a_duration_as_text_is_refused_with_the_right_words(field: str, value: str, seconds: int) -> None:
    with pytest.raises(
        retrysafe.PolicyError, match=f"{value}.*give a number of seconds, such as {field}={seconds}, or a timedelta"
    ):
        Policy(**{field: value})


@pytest.mark.parametrize(
    ("field", "words"),
    [("ttl", "did you mean retention?"), ("timeout", "did you mean lease?"), ("nonsense", "the fields are mode, busy")],
)
def test_a_field_that_a_policy_does_not_have_is_refused_with_the_right_words(field: str, words: str) -> None:
    for make in (Policy, Policy().replace):
        with pytest.raises(retrysafe.PolicyError, match=f"no such field.*{re.escape(words)}"):
            make(**{field: 60})


@pytest.mark.parametrize("url", ["postgresql+psycopg://u:hunter2@h/db", "mysql+pymysql://u@h/db"])
def test_a_url_of_sqlalchemy_says_what_to_leave_out(url: str) -> None:
    with pytest.raises(
        retrysafe.StoreURLError, match=r"write (postgresql|mysql)://… without '\+(psycopg|pymysql)'"
    ) as found:
        RetrySafe(url)
    assert "hunter2" not in str(found.value)


def test_a_worker_is_made_of_the_object_not_of_a_url() -> None:
    with pytest.raises(retrysafe.UsageError, match=r"Worker\(safe\)"):
        retrysafe.Worker("sqlite:///app.db")  # type: ignore[arg-type]


FRAMEWORKS = {"fastapi": "fastapi", "starlette": "starlette", "flask": "flask", "litestar": "litestar"}
FRAMEWORKS |= {"quart": "quart", "django": "django", "celery": "celery", "console": "jinja2"}


@pytest.mark.parametrize(("name", "package"), FRAMEWORKS.items())
def test_an_import_without_its_package_names_the_extra(name: str, package: str) -> None:
    code = f"import sys; sys.modules[{package!r}] = None; import retrysafe.{name}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert f"retrysafe.{name} needs the module" in ended.stderr.splitlines()[-1]
    assert f"pip install 'retrysafe[{name}]'" in ended.stderr.splitlines()[-1]


@pytest.mark.parametrize("command", [["-m", "retrysafe"], ["-m", "retrysafe.cli.main"]])
def test_the_program_without_a_command_prints_its_help(command: list[str]) -> None:
    ended = subprocess.run([sys.executable, *command], capture_output=True, text=True, check=True)
    assert ended.stdout.startswith("usage: retrysafe")
    assert "migrate" in ended.stdout


def test_what_is_asked_for_often_is_at_the_top() -> None:
    assert retrysafe.StoreUnavailable is retrysafe.errors.StoreUnavailable
    assert retrysafe.Worker.__name__ == "Worker"
    assert len({retrysafe.new_key() for _ in range(3)}) == 3
    assert retrysafe.Key(retrysafe.new_key(), scope="acct-1").value.isascii()
    assert retrysafe.IdempotencyMiddleware.__module__ == "retrysafe.web.asgi"
    with pytest.raises(AttributeError, match="no attribute 'Wroker'"):
        _ = retrysafe.Wroker


@pytest.mark.parametrize("name", sorted(retrysafe._ELSEWHERE))
def test_a_name_that_is_elsewhere_says_where(name: str) -> None:
    with pytest.raises(ImportError) as raised:
        exec(f"from retrysafe import {name}")
    with pytest.raises(AttributeError) as missing:
        getattr(retrysafe, name)
    assert str(raised.value) == str(missing.value)
    assert f"retrysafe has no {name!r}" in str(raised.value)
    assert getattr(retrysafe, name, None) is None, "code that asks with a default gets it"
    advice = str(raised.value).partition("write `")[2].partition("`")[0]
    exec(advice, {"safe": RetrySafe("memory://")})
    for other in re.findall(r"[( ]\.(\w+)", str(raised.value)):
        assert hasattr(importlib.import_module(f"retrysafe.{other}"), name)


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
        ("retrysafe.jobs", "Message", "JobMessage"),
        ("retrysafe.web.asgi", "Shortcut", "ResponseReady"),
        ("retrysafe.web.wsgi", "Shortcut", "ResponseReady"),
        ("retrysafe.web.fastapi", "documented", "complete_schema"),
        ("retrysafe.client", "Ambient", "Clock"),
        ("retrysafe.client", "Operation", "ClientOperation"),
        ("retrysafe.client", "Trail", "AttemptLog"),
    ],
)
def test_an_old_name_goes_on_and_says_the_new_one(module: str, old: str, new: str) -> None:
    found = importlib.import_module(module)
    with pytest.warns(DeprecationWarning, match=new):
        assert getattr(found, old) is getattr(found, new)
    with pytest.raises(AttributeError, match="no attribute 'Nonsense'"):
        _ = found.Nonsense


def test_an_old_method_of_the_testing_tools_says_the_new_one() -> None:
    do = Do.sync(MemoryStore())
    with pytest.warns(DeprecationWarning, match=r"Do\.list_all"):
        assert do.listed(List()) == do.list_all(List()) == {}


def test_a_webhook_scheme_of_ones_own_may_use_the_older_names() -> None:
    class Acme(webhooks.Scheme):
        name = "acme"

        def prepared(self, secrets: tuple[str | bytes, ...]) -> tuple[bytes, ...]:
            return (b"prepared",)

        def read(self, headers: Any, body: bytes, now: float) -> Any:
            sent_at = self.sent_at(headers.one("x-time"), now)
            return self.event_id(headers.one("x-id"), "x-id"), sent_at, headers.maybe("x-none"), self.listed(["a"])

    with pytest.warns(DeprecationWarning, match=r"Acme.prepared is now called Acme.prepare_secrets"):
        scheme = Acme("secret")
    assert scheme.secrets == (b"prepared",)
    with pytest.warns(DeprecationWarning, match=r"is now called (Headers|Scheme)\."):
        assert scheme.verify({"X-Time": "100", "X-Id": "7"}, b"", now=100.0) == ("7", 100, None, ["a"])
    with pytest.raises(AttributeError, match="'Acme' object has no attribute 'raed'"):
        _ = scheme.raed
