"""A command that is stopped, or whose output is lost, while it changes records: what was done is done and written down,
and nobody is told that all of it was."""

from __future__ import annotations

import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from retrysafe.cli.main import main
from retrysafe.cli.signals import CommandInterrupted, SignalGate
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.ops import List, Stats
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, complete
from tests.opening import store_url

STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "postgres", "redis")]
KEYS = 20
BECAUSE = ("--because", "a test", "--yes")
RESOLVE = ("keys", "resolve", "--all", "--did-not-happen", *BECAUSE)


@pytest.fixture(autouse=True)
def heeds_signals() -> Iterator[None]:
    """A shell that starts the tests in the background has them ignore SIGINT, and `nohup` SIGHUP; and so do programs
    then (`SignalGate`)."""
    handlers: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Output(io.StringIO):
    """Standard output that does something when it is written to."""

    def __init__(self, on_write: Callable[[], None]) -> None:
        super().__init__()
        self._on_write = on_write

    def write(self, text: str) -> int:
        self._on_write()
        return super().write(text)


def fail_with(error: OSError) -> Callable[[], None]:
    def fail() -> None:
        raise error

    return fail


def send(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


@pytest.fixture(params=STORES)
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    url = store_url(request, tmp_path, request.param)
    store = open_store(url)
    store.migrate()
    store.execute_many([claim(f"lost-{number}", lease=0, now=None) for number in range(KEYS)])
    yield url, store
    store.close()


def count_released(store: Store) -> int:
    return store.execute(Stats(namespace="default")).released


def read_audit_rows(url: str, capsys: pytest.CaptureFixture[str]) -> list[dict[str, Any]]:
    capsys.readouterr()
    assert main(["audit", url, "--json"]) == 0
    return [json.loads(line) for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_a_bulk_command_stops_between_two_records(
    filled: tuple[str, Store], number: signal.Signals, capsys: pytest.CaptureFixture[str]
) -> None:
    url, store = filled
    before = signal.getsignal(number)
    with redirect_stdout(Output(send(number))):
        assert main([*RESOLVE, url]) == 128 + number
    assert signal.getsignal(number) is before
    assert count_released(store) == 1
    assert f"1 of {KEYS} changed" in capsys.readouterr().err
    (row,) = read_audit_rows(url, capsys)
    assert (row["outcome"], row["result"]) == ("failed", {"changed": 1, "skipped": 0, "error": "CommandInterrupted"})
    assert main([*RESOLVE, url]) == 0, "the same command again does the rest"
    assert count_released(store) == KEYS


LOST = {"broken pipe": (BrokenPipeError(), 0), "full disk": (OSError(errno.ENOSPC, "No space left on device"), 1)}


@pytest.mark.parametrize("lost", LOST)
def test_lost_output_does_not_stop_the_work(
    filled: tuple[str, Store], lost: str, capsys: pytest.CaptureFixture[str]
) -> None:
    url, store = filled
    error, code = LOST[lost]
    with redirect_stdout(Output(fail_with(error))):
        assert main([*RESOLVE, url]) == code
    told = capsys.readouterr().err
    assert count_released(store) == KEYS
    assert ("No space left on device" in told) == (code == 1)
    (row,) = read_audit_rows(url, capsys)
    assert (row["outcome"], row["result"]) == ("done", {"changed": KEYS, "skipped": 0})


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/app.db"


@pytest.fixture
def store(url: str) -> Any:
    store = open_store(url)
    store.migrate()
    yield store
    store.close()


def finish(store: Store, number: int, scope: str = "acme") -> None:
    for each in range(number):
        assert store.execute(complete(store.execute(claim(f"done-{each}", scope=scope, now=None)), now=None))


def test_an_erasure_that_is_stopped_is_given_again(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from retrysafe.cli import erase

    finish(store, 10)
    decide = erase.decide_forget

    def stop_at_once(*args: Any) -> Any:
        os.kill(os.getpid(), signal.SIGTERM)
        return decide(*args)

    words = ["erase", url, "--scope", "acme", *BECAUSE]
    with monkeypatch.context() as patch:
        patch.setattr(erase, "decide_forget", stop_at_once)
        assert main(words) == 128 + signal.SIGTERM
    assert "give the same command again" in capsys.readouterr().err
    (row,) = read_audit_rows(url, capsys)
    assert (row["outcome"], row["result"]["erased"], row["result"]["complete"]) == ("failed", 1, False)
    assert main(words) == 0
    assert read_audit_rows(url, capsys)[-1]["result"]["complete"] is True


def test_jobs_are_all_dropped_though_nobody_reads_it(
    url: str, store: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    jobs = tuple(Job(f"{number:032x}", "receipts", b"{}") for number in range(5))
    store.execute(Stage(jobs, None, "default"))
    store.execute(TakeJobs(5, b"t" * 16, SECOND_MICROS, None, "default"))
    for job in jobs:
        store.execute(FailJob(job.id, b"t" * 16, "no", 0, True))
    with redirect_stdout(Output(fail_with(BrokenPipeError()))):
        assert main(["outbox", "drop", url, "--all", *BECAUSE]) == 0
    (row,) = read_audit_rows(url, capsys)
    assert row["result"] == {"changed": 5, "skipped": 0}


def test_reaping_that_is_stopped_says_how_far_it_came(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from retrysafe.cli import reap

    long_ago = time.time() - 3 * 86_400
    for number in range(3):
        owner = store.execute(claim(f"old-{number}", retention=86_400, now=long_ago))
        assert store.execute(complete(owner, now=long_ago))
    monkeypatch.setattr(reap, "BATCH_ROWS", 1)
    monkeypatch.setattr(reap, "time", SimpleNamespace(sleep=lambda seconds: send(signal.SIGTERM)()))
    assert main(["reap", url, *BECAUSE]) == 128 + signal.SIGTERM
    (row,) = read_audit_rows(url, capsys)
    assert (row["outcome"], row["result"]) == ("failed", {"reaped": 1, "error": "CommandInterrupted"})


def test_an_export_says_where_it_goes_on(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from retrysafe.cli import keys

    monkeypatch.setattr(keys, "PAGE_ROWS", 4)
    finish(store, 10)
    whole = {record.id.hex() for record in store.execute(List(limit=100)).records}
    lines = 0

    def stop_on_second_page() -> None:
        nonlocal lines
        lines += 1
        if lines == 12:  # a line is written in two parts
            os.kill(os.getpid(), signal.SIGTERM)

    output = Output(stop_on_second_page)
    with redirect_stdout(output):
        assert main(["keys", "export", url]) == 128 + signal.SIGTERM
    cursor = capsys.readouterr().err.partition("--after ")[2].strip()
    assert main(["keys", "export", url, "--after", cursor]) == 0
    written = [json.loads(line)["id"] for line in (output.getvalue() + capsys.readouterr().out).splitlines()]
    assert sorted(written) == sorted(whole), "each key once"


def test_an_export_to_a_full_disk_is_no_success(url: str, store: Store, capsys: pytest.CaptureFixture[str]) -> None:
    finish(store, 3)
    with redirect_stdout(Output(fail_with(OSError(errno.ENOSPC, "No space left on device")))):
        assert main(["keys", "export", url]) == 1
    told = capsys.readouterr().err
    assert "interrupted" in told
    assert told.count("No space left on device") == 1


def test_a_signal_that_a_driver_hides_is_the_signal(
    url: str, store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """SQLite calls our clock, and turns what it raises into an error of its own."""
    from retrysafe.cli import stats
    from retrysafe.errors import StoreError

    def read(*args: Any, **options: Any) -> None:
        try:
            os.kill(os.getpid(), signal.SIGINT)
        except CommandInterrupted as error:
            raise StoreError("user-defined function raised exception") from error

    monkeypatch.setattr(stats, "read_overview", read)
    assert main(["stats", url]) == 128 + signal.SIGINT
    assert capsys.readouterr().err == ""


def test_a_second_signal_stops_at_once() -> None:
    gate = SignalGate()
    with gate.hold():
        gate.receive(signal.SIGINT)
        with pytest.raises(CommandInterrupted):
            gate.receive(signal.SIGINT)


def test_a_closed_stream_gets_nothing_of_another(url: str, store: Store) -> None:
    finish(store, 3)

    def run(ending: str) -> subprocess.CompletedProcess[str]:
        command = f'exec "{sys.executable}" -m retrysafe keys export "{url}" {ending}'
        return subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=120, check=False)

    without_errors, without_output = run("2>&-"), run(">&-")
    assert [json.loads(line)["key"] for line in without_errors.stdout.splitlines()], "no note is among the keys"
    assert (without_output.returncode, without_output.stderr) == (0, "3 written\n")
