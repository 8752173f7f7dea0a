"""Two operators decide about the same records at the same time. Each record is decided once. The command that was
slower for some of them names these, and exits with 4, also if it changed others: its operator must look first."""

from __future__ import annotations

import io
import json
import subprocess
import sys
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest

from retrysafe.cli.main import main
from retrysafe.core.jobs import DropJob, FailJob, Job, ListJobs, Stage, TakeJobs
from retrysafe.core.ops import List, Resolve
from retrysafe.core.records import Answer
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim
from tests.opening import store_url

STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "redis")]
KEYS = 40
BECAUSE = ("--because", "a test", "--yes")
CHANGED = "skipped: it changed underneath"


class Output(io.StringIO):
    """Standard output that does something at the first line."""

    def __init__(self, act: Callable[[], None]) -> None:
        super().__init__()
        self._act: Callable[[], None] | None = act

    def write(self, text: str) -> int:
        act, self._act = self._act, None
        if act is not None:
            act()
        return super().write(text)


@pytest.fixture(params=STORES)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = store_url(request, tmp_path, request.param)
    store = open_store(url)
    store.migrate()
    store.execute_many([claim(f"lost-{number}", lease=0, now=None) for number in range(KEYS)])
    yield url, store
    store.close()


def decide_opposite(store: Store, number: int) -> None:
    """Another operator says of so many keys that they happened."""
    lapsed = store.execute(List(state=State.CLAIMED, lapsed=True)).records
    for record in lapsed[-number:]:
        assert store.execute(Resolve(record.id, record.fence, Answer(200), "the provider shows it"))


@pytest.mark.parametrize("number", [1, KEYS - 1])
@pytest.mark.parametrize("words", [(), ("--json",)])
def test_a_bulk_command_that_was_slower_for_some_exits_with_4(
    filled: tuple[str, Store], capsys: pytest.CaptureFixture[str], number: int, words: tuple[str, ...]
) -> None:
    url, store = filled
    output = Output(lambda: decide_opposite(store, number))
    with redirect_stdout(output):
        code = main(["keys", "resolve", url, "--all", "--did-not-happen", *BECAUSE, *words])
    lines = output.getvalue().splitlines()
    results = (
        [json.loads(line)["result"] for line in lines] if words else [line.partition(CHANGED)[1] for line in lines]
    )
    assert results.count(CHANGED) == number
    assert len(results) == KEYS
    assert f"{KEYS - number} changed, {number} skipped" in (told := capsys.readouterr().err)
    assert "retrysafe keys why ID" in told
    assert code == 4


def test_a_bulk_command_that_changed_all_exits_with_0(
    filled: tuple[str, Store], capsys: pytest.CaptureFixture[str]
) -> None:
    url, _ = filled
    assert main(["keys", "resolve", url, "--all", "--did-not-happen", *BECAUSE]) == 0
    assert "keys why" not in capsys.readouterr().err


def test_two_opposite_commands_at_once_decide_each_key_once(filled: tuple[str, Store]) -> None:
    url, store = filled
    both = [
        subprocess.Popen(
            [sys.executable, "-m", "retrysafe", "keys", "resolve", url, "--all", how, *BECAUSE, "--json"],
            stdout=subprocess.PIPE,
            text=True,
        )
        for how in ("--happened", "--did-not-happen")
    ]
    outputs = [each.communicate(timeout=120)[0] for each in both]
    found = [[json.loads(line) for line in output.splitlines()] for output in outputs]
    changed = [{row["id"] for row in rows if row["result"] == "changed"} for rows in found]
    assert not changed[0] & changed[1]
    assert len(changed[0] | changed[1]) == KEYS
    for each, rows in zip(both, found, strict=True):
        assert each.returncode == (4 if any(row["result"] == CHANGED for row in rows) else 0)
    for state, ids in ((State.COMPLETED, changed[0]), (State.RELEASED, changed[1])):
        listed = store.execute(List(state=state, namespace="default", kind="http", limit=1_000)).records
        assert {record.id.hex() for record in listed} == ids


def test_a_bulk_command_about_jobs_that_was_slower_for_some_exits_with_4(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url, token = f"sqlite:///{tmp_path}/jobs.db", b"t" * 16
    store = open_store(url)
    store.migrate()
    jobs = tuple(Job(f"{number:032x}", "receipts", b"{}") for number in range(3))
    store.execute(Stage(jobs, None, "default"))
    store.execute(TakeJobs(3, token, SECOND_MICROS, None, "default"))
    for job in jobs:
        store.execute(FailJob(job.id, token, "no", 0, True))
    listed = store.execute(ListJobs(True, namespace="default"))
    assert len(listed) == 3
    from retrysafe.cli import outbox

    choose = outbox.choose_jobs

    def choose_and_lose(*args: Any) -> Any:
        chosen = choose(*args)
        assert store.execute(DropJob(jobs[1].id, namespace="default"))  # another operator is quicker for one
        return chosen

    monkeypatch.setattr(outbox, "choose_jobs", choose_and_lose)
    assert main(["outbox", "retry", url, "--all", *BECAUSE]) == 4
    said = capsys.readouterr()
    assert said.out.count(CHANGED) == 1
    assert "2 changed, 1 skipped" in said.err
    store.close()
