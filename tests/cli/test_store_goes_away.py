"""The store goes away in the middle of a command: the command says so once, with exit code 5, says what is known of its
work, and can be given again. And a command that is killed: what it did is seen, and its successor tells the truth."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.cli import erase, reap
from retrysafe.cli.exits import OUT_OF_REACH, USAGE
from retrysafe.cli.main import main
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.ops import List, Lookup, Stats
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.audit import AUDIT_LEASE_SECONDS, AuditEntry, build_audit_claim
from retrysafe.operators import session as operators_session
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete
from tests.cli.test_interrupted import BECAUSE, KEYS, RESOLVE, Output, finish, read_audit_rows
from tests.servers import PostgresServer, Server, ServerUnavailable, ValkeyServer
from tests.servers.lazy import missing

SERVERS = {"postgres": PostgresServer, "redis": ValkeyServer}
BEFORE = 5
"""So many records are changed before the server is killed."""


@pytest.fixture(scope="module", params=SERVERS)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server of its own, because it is killed. Both write to disk before they answer."""
    made = SERVERS[request.param]()
    try:
        made.start()
    except ServerUnavailable as error:
        missing(str(error))
        raise
    yield made
    made.stop()


class Place:
    """A store on that server, and its death."""

    def __init__(self, server: Server, table: str) -> None:
        self.server = server
        option = "prefix" if server.url.startswith("redis") else "table"
        self.url = f"{server.url}{'&' if '?' in server.url else '?'}{option}={table}"
        self.store = self.open()
        self.store.migrate()
        self.calls = 0

    def open(self) -> Store:
        return open_store(self.url)

    def come_back(self) -> None:
        self.store.close()
        self.server.resume()
        self.store = self.open()

    def kill_after(self, calls: int) -> Callable[[], None]:
        """Kills the server at that call."""

        def count() -> None:
            self.calls += 1
            if self.calls == calls:
                self.server.kill()

        return count


@pytest.fixture
def place(server: Server, request: pytest.FixtureRequest) -> Iterator[Place]:
    made = Place(server, f"t{abs(hash(request.node.name)) % 10**8}")
    yield made
    made.store.close()


def count_released(store: Store) -> int:
    return store.execute(Stats(namespace="default")).released


def check_told(told: str) -> None:
    """The store's error once, and no traceback."""
    lines = told.splitlines()
    assert sum(line.startswith("retrysafe: ") for line in lines) == 1, told
    assert sum(line.startswith("hint: ") for line in lines) == 1, told
    assert "Traceback" not in told
    assert "audit row" in told


def test_resolving_many(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.store.execute_many([claim(f"lost-{number}", lease=0, now=None) for number in range(KEYS)])
    with redirect_stdout(Output(place.kill_after(2 * BEFORE))):  # a line is written in two parts
        assert main([*RESOLVE, place.url]) == OUT_OF_REACH
    told = capsys.readouterr().err
    check_told(told)
    assert f"interrupted: {BEFORE} of {KEYS} changed" in told
    assert f"changed {BEFORE}" in told
    place.come_back()
    assert BEFORE <= count_released(place.store) <= BEFORE + 1, "what was not answered may have been done, nothing else"
    (row,) = read_audit_rows(place.url, capsys)
    assert (row["outcome"], row["result"]) == ("running", {})
    assert main([*RESOLVE, place.url]) == 0, "the same command again does the rest"
    assert count_released(place.store) == KEYS


def test_resolving_one_that_was_done_before_the_row_could_be_ended(
    place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found = place.store.execute(claim("lost", lease=0, now=None)).record
    assert found is not None
    end = operators_session.end_audit

    def go_away(*args: Any) -> Any:
        place.server.kill()
        return end(*args)

    monkeypatch.setattr(operators_session, "end_audit", go_away)
    words = ["keys", "resolve", found.id.hex(), "--id", "--did-not-happen", "--because", "a test", place.url]
    assert main(words) == OUT_OF_REACH
    told = capsys.readouterr().err
    check_told(told)
    assert "the work was done" in told
    place.come_back()
    after = place.store.execute(Lookup(found.id)).record
    assert after is not None
    assert after.state is State.RELEASED


def test_dropping_jobs(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    drop = ["outbox", "drop", place.url, "--all", *BECAUSE]
    if not place.store.capabilities.outbox:
        assert main(drop) == USAGE
        return
    jobs = tuple(Job(f"{number:032x}", "receipts", b"{}") for number in range(KEYS))
    place.store.execute(Stage(jobs, None, "default"))
    place.store.execute(TakeJobs(KEYS, b"t" * 16, SECOND_MICROS, None, "default"))
    for job in jobs:
        place.store.execute(FailJob(job.id, b"t" * 16, "no", 0, True))
    monkeypatch.setattr("retrysafe.cli.outbox.gate.check", place.kill_after(BEFORE))
    assert main(drop) == OUT_OF_REACH
    told = capsys.readouterr().err
    check_told(told)
    assert f"changed {BEFORE}" in told
    monkeypatch.undo()
    place.come_back()
    assert main(["outbox", "list", place.url, "--dead", "--json"]) == 0
    assert KEYS - BEFORE - 1 <= len(capsys.readouterr().out.splitlines()) <= KEYS - BEFORE
    assert main(drop) == 0
    capsys.readouterr()
    assert main(["outbox", "list", place.url, "--dead", "--json"]) == 0
    assert capsys.readouterr().out == ""


def test_reaping(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    long_ago = time.time() - 3 * 86_400
    for number in range(4):
        owner = place.store.execute(claim(f"old-{number}", retention=86_400, now=long_ago))
        assert place.store.execute(complete(owner, now=long_ago))
    kill = place.kill_after(2)
    monkeypatch.setattr(reap, "BATCH_ROWS", 1)
    monkeypatch.setattr(reap, "time", SimpleNamespace(sleep=lambda seconds: kill()))
    code = main(["reap", place.url, *BECAUSE])
    told = capsys.readouterr().err
    assert code == OUT_OF_REACH
    check_told(told)
    assert "reaped 2" in told
    monkeypatch.undo()
    place.come_back()
    assert main(["reap", place.url, *BECAUSE]) == 0


def test_exporting(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    from retrysafe.cli import keys

    monkeypatch.setattr(keys, "PAGE_ROWS", 4)
    finish(place.store, 10)
    whole = sorted(record.id.hex() for record in place.store.execute(List(limit=100)).records)
    output = Output(place.kill_after(2))
    with redirect_stdout(output):
        assert main(["keys", "export", place.url]) == OUT_OF_REACH
    told = capsys.readouterr().err
    assert told.count("retrysafe: ") == 1
    cursor = told.partition("--after ")[2].split()[0]
    place.come_back()
    assert main(["keys", "export", place.url, "--after", cursor]) == 0
    written = [json.loads(line)["id"] for line in (output.getvalue() + capsys.readouterr().out).splitlines()]
    assert sorted(written) == whole, "each key once"


LOOKS = (
    ("keys", "list"), ("keys", "why", "lost"), ("stats",), ("audit",), ("dead-letters",), ("reap",), ("doctor",),
    ("tail", "--times", "1"), ("top", "--times", "1"),
    ("keys", "resolve", "lost", "--did-not-happen", "--because", "a test"),
)  # fmt: skip


def test_every_command_says_once_that_nobody_answers(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.server.kill()
    try:
        for words in LOOKS:
            assert main([*words, place.url]) == OUT_OF_REACH, words
            told = capsys.readouterr()
            assert told.err.count("retrysafe: ") == 1, (words, told.err)
            assert "Traceback" not in told.err + told.out
    finally:
        place.come_back()


def test_a_worker_says_it_once(
    place: Place, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each of its services fails, for one reason."""
    monkeypatch.setattr("retrysafe.cli.worker.load_safe", lambda name: RetrySafe(place.url))
    place.server.kill()
    try:
        assert main(["worker", "shop:safe", "--once"]) == OUT_OF_REACH
    finally:
        place.come_back()
    (told,) = [record for record in caplog.records if record.name == "retrysafe.worker"]
    assert told.exc_info is None
    assert "completer error=Store" in capsys.readouterr().out
    assert main(["worker", "shop:safe", "--once"]) == 0


def test_an_erasure(place: Place, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    finish(place.store, KEYS)
    decide, kill = erase.decide_forget, place.kill_after(2 * BEFORE)
    monkeypatch.setattr(erase, "decide_forget", lambda *args: (kill(), decide(*args))[1])
    words = ["erase", place.url, "--scope", "acme", *BECAUSE, "--json"]
    assert main(words) == OUT_OF_REACH
    told = capsys.readouterr()
    check_told(told.err)
    assert "give the same command again" in told.err
    assert told.out == "", "no receipt of what is not complete"
    monkeypatch.undo()
    place.come_back()
    check_erased_again(words, place.store, capsys)


DIE = """
import os, signal
from retrysafe.cli import erase, main
decide, calls = erase.decide_forget, 0
def die(*args):
    global calls
    calls += 1
    if calls == {calls}:
        os.kill(os.getpid(), signal.SIGKILL)
    return decide(*args)
erase.decide_forget = die
main.main({words!r})
"""


def test_an_erasure_that_is_killed(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    """Nobody is told anything. What it left shows as uncertain when its lease is over, and a person settles it."""
    finish(place.store, KEYS)
    words = ["erase", place.url, "--scope", "acme", *BECAUSE, "--json"]
    code = DIE.format(calls=2 * BEFORE, words=words)
    killed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert (killed.returncode, killed.stdout) == (-signal.SIGKILL, "")
    (row,) = read_audit_rows(place.url, capsys)
    assert row["outcome"] == "running"
    check_erased_again(words, place.store, capsys)


def test_a_command_that_was_killed_is_found_where_the_alert_leads(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its audit row counts as uncertain when its lease is over: it is listed, and a person settles it."""
    long_ago = time.time_ns() // 1000 - 2 * AUDIT_LEASE_SECONDS * SECOND_MICROS
    entry = AuditEntry("erase", "ann", "request 4711")
    row = place.store.execute(replace(build_audit_claim("default", entry, long_ago), now=long_ago, lease=0)).record
    assert row is not None
    assert main(["stats", place.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["uncertain"] == 1
    assert main(["keys", "list", "--state", "uncertain", "--json", place.url]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == row.id.hex()
    (shown,) = read_audit_rows(place.url, capsys)
    assert shown["outcome"] == "unknown"
    words = ["keys", "resolve", row.id.hex(), "--id", "--happened", "--because", "looked", place.url]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["stats", place.url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["uncertain"] == 0


def check_erased_again(words: list[str], store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    """The receipt of the second command is true: what it erased, and what there was nothing left of."""
    left = [record for record in store.execute(List(scope="acme", limit=100)).records if record.answer.body]  # type: ignore[union-attr]
    assert 0 < len(left) < KEYS
    assert main(words) == 0
    receipt = json.loads(capsys.readouterr().out)
    assert receipt["complete"] is True
    assert (receipt["erased"], receipt["nothing_stored"]) == (len(left), KEYS - len(left))
    after = store.execute(List(scope="acme", limit=100)).records
    assert len(after) == KEYS
    assert not any(record.answer.body for record in after if record.answer is not None)
