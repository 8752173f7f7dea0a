"""The operator at 3 a.m., with only the documented commands: each story from its symptom to its end."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete
from tests.opening import store_url
from tests.servers import ValkeyServer

FOLDER = Path(__file__).parent
STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "redis")]
OUTBOX_STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres")]


class Shell:
    """A person at a terminal, in one folder, with RETRYSAFE_URL set."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder, self.url = folder, url
        self.ledger = folder / "ledger.txt"
        self.ledger.touch()
        self.env = {
            **os.environ,
            "RETRYSAFE_URL": url,
            "THREE_AM_URL": url,
            "THREE_AM_LEDGER": str(self.ledger),
            "PYTHONPATH": str(FOLDER),
            "COLUMNS": "120",
        }

    def run(self, *words: str, code: int = 0, **more: Any) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-m", "retrysafe", *words],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            cwd=self.folder,
            env=self.env,
            **more,
        )
        assert done.returncode == code, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done

    def json(self, *words: str, code: int = 0) -> Any:
        lines = self.run(*words, "--json", code=code).stdout.splitlines()
        return [json.loads(line) for line in lines]

    def client(self, key: str, scope: str = "acme", **env: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, str(FOLDER / "three_am_app.py"), key, scope],
            capture_output=True,
            text=True,
            timeout=180,
            check=False,
            env={**self.env, **env},
        )

    def ask(self, key: str, scope: str = "acme") -> dict[str, Any]:
        done = self.client(key, scope)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """Look at `retrysafe stats` until a figure has moved, as an alert does."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            (found,) = self.json("stats")
            if wanted(found):
                return dict(found)
        raise AssertionError(f"the figure did not move: {found}")


def open_shell(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> Shell:
    shell = Shell(tmp_path, store_url(request, tmp_path, store))
    shell.run("migrate")
    return shell


@pytest.mark.parametrize("store", STORES)
@pytest.mark.parametrize("happened", [True, False])
def test_a_process_is_killed_in_a_guard(
    request: pytest.FixtureRequest, tmp_path: Path, store: str, happened: bool
) -> None:
    shell = open_shell(request, tmp_path, store)
    assert shell.client("order-7", THREE_AM_DIE="1").returncode == -9
    figures = shell.until(lambda found: found["uncertain"] == 1)
    assert figures["oldest_uncertain_seconds"] >= 1
    assert figures["groups"][0]["target"] == "POST /pay"

    assert shell.ask("order-7")["status"] == 500, "a retry is refused while nobody knows"
    why = shell.run("keys", "why", "order-7").stdout
    assert "nobody knows how it ended" in why
    assert "retrysafe keys resolve" in why

    # The person asks the provider, and says what it told.
    if happened:
        answer = tmp_path / "charge.json"
        answer.write_text('{"charge": "ch_7"}')
        how = ("--happened", "--answer", str(answer), "--status", "201", "--because", "charge ch_7 in their list")
    else:
        how = ("--did-not-happen", "--because", "not in their list")
    (resolved,) = shell.json("keys", "resolve", "order-7", "--by", "ada", *how)
    assert resolved["state"] == ("completed" if happened else "released")

    charges = shell.ledger.read_text().count("charge")
    retry = shell.ask("order-7")
    assert retry["status"] == 201
    if happened:
        assert (retry["body"], retry["replayed"]) == ('{"charge": "ch_7"}', "true")
        assert shell.ledger.read_text().count("charge") == charges, "nothing ran"
    else:
        assert retry["body"] == '{"charge": "new"}'
    assert shell.until(lambda found: found["uncertain"] == 0)

    (row,) = shell.json("audit", "--record", resolved["id"])
    assert (row["actor"], row["action"], row["outcome"]) == ("ada", "keys resolve", "done")
    assert row["because"] == how[-1]
    assert "order-7" not in json.dumps(row), "an audit row holds no key (S28)"
    assert "acme" not in json.dumps(row)
    # Who decides a second time is refused, and nothing changes.
    shell.run("keys", "resolve", "order-7", *how, code=1)


@pytest.mark.parametrize("store", OUTBOX_STORES)
def test_a_dead_letter(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    shell = open_shell(request, tmp_path, store)
    job = leave_dead_letter(shell.url)
    assert shell.until(lambda found: found["outbox"]["dead"] == 1)["outbox"]["topics"][0]["topic"] == "receipts"
    (letter,) = shell.json("dead-letters")
    assert (letter["id"], letter["why"]) == (job, "broker refused")
    shell.run("outbox", "retry", job[:12], code=2)
    (retried,) = shell.json("outbox", "retry", job[:12], "--because", "the broker is back")
    assert retried["result"] == "changed"
    shell.run("worker", "three_am_app:safe", "--once")
    assert shell.ledger.read_text() == "receipt 7\n"
    assert shell.json("dead-letters") == []
    (row,) = shell.json("audit")
    assert (row["action"], row["records"]) == ("outbox retry", [job])


@pytest.mark.parametrize("store", OUTBOX_STORES)
def test_dead_letters_are_dropped_in_bulk_only_when_asked_twice(
    request: pytest.FixtureRequest, tmp_path: Path, store: str
) -> None:
    shell = open_shell(request, tmp_path, store)
    leave_dead_letter(shell.url)
    drop = ("outbox", "drop", "--all", "--topic", "receipts", "--because", "sent by hand")
    (shown,) = shell.json(*drop)
    assert shown["result"] == "would change"
    assert len(shell.json("dead-letters")) == 1, "a dry run"
    assert shell.json("audit") == []
    (shown,) = shell.json(*drop, "--yes")
    assert shown["result"] == "changed"
    assert shell.json("dead-letters") == []


def leave_dead_letter(url: str) -> str:
    store, token = open_store(url), b"t" * 16
    job = Job("ab" * 16, "receipts", b'{"order": 7}')
    store.execute(Stage((job,), None, "default"))
    assert store.execute(TakeJobs(1, token, SECOND_MICROS, None, "default"))
    assert store.execute(FailJob(job.id, token, "broker refused", 0, True))
    store.close()
    return job.id


def test_a_stalled_outbox(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shell = open_shell(request, tmp_path, "sqlite")
    store = open_store(shell.url)
    long_ago = time.time_ns() // 1000 - 3600 * SECOND_MICROS
    store.execute(Stage((Job("cd" * 16, "receipts", b'{"order": 8}'),), long_ago, "default"))
    store.close()
    assert shell.until(lambda found: found["outbox"]["oldest_waiting_seconds"] >= 3600)
    (waiting,) = shell.json("outbox", "list", "--topic", "receipts")
    assert (waiting["state"], waiting["deliveries"]) == ("waiting", 0), "no worker has tried it"
    shell.run("worker", "three_am_app:safe", "--once")
    assert shell.until(lambda found: found["outbox"]["waiting"] == 0)
    assert shell.ledger.read_text() == "receipt 8\n"


@pytest.mark.parametrize("store", STORES)
def test_a_tenant_is_erased(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    shell = open_shell(request, tmp_path, store)
    for key in ("a", "b"):
        assert shell.ask(key)["status"] == 201
    assert shell.ask("a", "other")["status"] == 201
    erase = ("erase", "--scope", "acme", "--because", "request 4711")
    (counted,) = shell.json(*erase)
    assert (counted["to_erase"], counted["erased"]) == (2, 0), "without --yes it only counts"
    (receipt,) = shell.json(*erase, "--yes")
    assert (receipt["erased"], receipt["unfinished"], receipt["complete"]) == (2, 0, True)
    (again,) = shell.json(*erase, "--yes")
    assert (again["erased"], again["nothing_stored"]) == (0, 2), "it may be given again"
    charges = shell.ledger.read_text().count("charge")
    assert shell.ask("a")["body"] != '{"charge": "new"}', "the answer is gone"
    assert shell.ledger.read_text().count("charge") == charges, "and it did not run again"
    assert shell.ask("a", "other")["replayed"] == "true", "another tenant's answer is still there"
    rows = [row for row in shell.json("audit") if row["action"] == "erase"]
    assert rows[0]["result"]["erased"] == 2
    assert "acme" not in json.dumps(rows), "the audit row has a hash of the scope"


def test_a_tenant_with_unfinished_work_is_not_quite_erased(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shell = open_shell(request, tmp_path, "sqlite")
    store = open_store(shell.url)
    store.execute(claim("open", scope="acme", lease=3600, now=None))
    store.close()
    (receipt,) = shell.json("erase", "--scope", "acme", "--because", "request 4711", "--yes", code=1)
    assert (receipt["unfinished"], len(receipt["unfinished_ids"])) == (1, 1)


@pytest.mark.parametrize("confirmed", [(), ("--yes",)], ids=["count", "erase"])
def test_a_scope_without_records_gets_no_receipt(
    request: pytest.FixtureRequest, tmp_path: Path, confirmed: tuple[str, ...]
) -> None:
    """In another namespace than the one that was meant, too."""
    shell = open_shell(request, tmp_path, "sqlite")
    assert shell.ask("a")["status"] == 201
    erase = ("erase", "--scope", "acme", "--because", "request 4711", *confirmed)
    refused = shell.run(*erase, "--namespace", "elsewhere", code=3)
    assert "namespace 'elsewhere' has no record of it" in refused.stderr
    assert "--namespace" in refused.stderr
    assert shell.ask("a")["replayed"] == "true"


@pytest.mark.store("sqlite")
def test_a_store_that_is_full(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """What looks still works, what writes says why not, and once there is room everything goes on."""
    shell = open_shell(request, tmp_path, "sqlite")
    leave_expired(shell.url, 50)
    (found,) = shell.json("stats")
    assert found["reapable"] == 50
    assert found["reaper_lag_seconds"] > 86_400

    def no_room() -> None:
        # SQLite's shared memory has this size, so a reader can open the file. The log of a write outgrows it.
        resource.setrlimit(resource.RLIMIT_FSIZE, (32_768, 32_768))

    full = shell.run("erase", "--scope", "t1", "--because", "drill", "--yes", code=5, preexec_fn=no_room)
    assert full.stderr.count("disk I/O error") == 1, "the server's own error is said once"
    assert full.stderr.count("\n") <= 3, "besides: every record is read; the command can be given again"
    shell.run("stats", preexec_fn=no_room)
    shell.run("reap")
    shell.run("reap", "--because", "the disk is full", "--yes")
    assert shell.until(lambda found: found["reapable"] == 0)
    shell.run("trigger", "crash", "--because", "drill")


@pytest.fixture
def valkey() -> Iterator[ValkeyServer]:
    """A server of one's own: it is filled up, or killed."""
    server = ValkeyServer()
    server.start()
    yield server
    server.stop()


def test_a_store_that_is_full_in_memory(valkey: ValkeyServer, tmp_path: Path) -> None:
    """Deleting needs no room in Redis, so the command makes room first, and writes its audit row after that."""
    shell = Shell(tmp_path, valkey.url)
    leave_expired(shell.url, 50)
    with valkey.client() as client:
        used = client.info("memory")["used_memory"]
        client.config_set("maxmemory", used - 500_000)
        assert shell.ask("order-7")["status"] == 503
        assert shell.ledger.read_text() == "", "it did not run"
        (found,) = shell.json("stats")
        assert found["reapable"] == 50
        done = shell.run("reap", "--because", "the store is full", "--yes")
        assert done.stdout == "50 deleted\n"
        assert "no audit row yet" in done.stderr
        assert shell.ask("order-7")["status"] == 201, "its retry runs"
        (row,) = shell.json("audit")
        assert (row["action"], row["result"]) == ("reap", {"reaped": 50})

        leave_expired(shell.url, 3)
        client.config_set("maxmemory", "1")
        refused = shell.run("reap", "--because", "the store is full", "--yes", code=5)
        assert "3 records deleted, and the store still takes no audit row" in refused.stderr
        (found,) = shell.json("stats")
        assert found["reapable"] == 0


def leave_expired(url: str, number: int) -> None:
    store, day = open_store(url), 86_400
    now = time.time() - 3 * day
    for each in range(number):
        owner = store.execute(claim(f"old-{each}", namespace="default", retention=day, now=now))
        assert store.execute(complete(owner, b"x" * 20_000, now=now))
    store.close()


def test_a_store_that_was_down(valkey: ValkeyServer, tmp_path: Path) -> None:
    """Nothing runs meanwhile, and each command says so. When the store is back, everything goes on as if nothing had
    been: what was answered is replayed, what was refused runs."""
    shell = Shell(tmp_path, valkey.url)
    assert shell.ask("order-7")["status"] == 201
    valkey.kill()
    for key in ("order-7", "order-8"):
        assert shell.ask(key)["status"] == 503
    told = shell.run("doctor", code=5).stderr
    assert str(valkey.port) in told
    shell.run("keys", "resolve", "order-8", "--did-not-happen", "--because", "a guess", code=5)
    assert shell.ledger.read_text() == "charge\n", "nothing ran"

    valkey.resume()
    shell.run("doctor")
    assert shell.ask("order-7")["replayed"] == "true"
    assert shell.ask("order-8")["status"] == 201
    assert shell.ledger.read_text() == "charge\ncharge\n"
    assert shell.json("keys", "list", "--state", "uncertain") == []
    assert shell.json("audit") == [], "the decision that could not be stored was not made"


LOOKING = (
    ("stats",),
    ("keys", "list"),
    ("keys", "why", "k"),
    ("keys", "export"),
    ("outbox", "list"),
    ("dead-letters",),
    ("audit",),
    ("reap",),
    ("tail", "--times", "1"),
    ("top", "--times", "1"),
)


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_store_that_is_down(tmp_path: Path, words: tuple[str, ...]) -> None:
    shell = Shell(tmp_path, "postgresql://u:hunter2@127.0.0.1:1/db?pool_timeout=1")
    told = shell.run(*words, code=5).stderr
    assert "hunter2" not in told
    assert told.count("refused") <= 1, "the server's own error is said once"


@pytest.mark.parametrize("words", LOOKING, ids=" ".join)
def test_a_mistyped_path_is_an_error_and_creates_nothing(tmp_path: Path, words: tuple[str, ...]) -> None:
    shell = Shell(tmp_path, "sqlite:///ap.db")
    assert "'ap.db'" in shell.run(*words, code=5).stderr
    assert [each.name for each in tmp_path.iterdir()] == ["ledger.txt"]


def test_a_broken_pipe_is_silent(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    shell = open_shell(request, tmp_path, "sqlite")
    store = open_store(shell.url)
    store.execute_many([claim(f"key-{number}", now=None) for number in range(2_000)])
    store.close()
    reader, writer = os.pipe()
    started = subprocess.Popen(
        [sys.executable, "-m", "retrysafe", "keys", "list", "--limit", "2000"],
        stdout=writer,
        stderr=subprocess.PIPE,
        env=shell.env,
        cwd=tmp_path,
    )
    os.close(writer)
    os.close(reader)  # `| head` has read enough
    _, told = started.communicate(timeout=120)
    assert b"Traceback" not in told
    assert b"BrokenPipe" not in told
    assert started.returncode == 0
