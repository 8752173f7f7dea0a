"""A process is killed between the request and the answer, and restarted with its journal: there is one effect."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from retrysafe.client import Journal, operation
from retrysafe.client.httpx import RetryTransport
from tests.client.ambient import Virtual
from tests.client.chaos import street
from tests.client.faces import BROKEN, calling
from tests.client.scripted import Drop, Script

ROOT = Path(__file__).parents[2]


@contextmanager
def child(
    url: str, journal: Path, count: int = 1, seed: int = 0, chance: float = 0.0, timeout: float = 120.0
) -> Iterator[subprocess.Popen[str]]:
    """`timeout`: seconds after which the client retries. Behind the faulty proxy some answers never arrive."""
    arguments = [url, str(journal), str(count), str(seed), str(chance), str(timeout)]
    command = [sys.executable, "-m", "tests.client.child", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            yield process
        finally:
            process.kill()


def finished(process: subprocess.Popen[str]) -> list[str]:
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 0
    return out.splitlines()


def test_killed_while_the_server_works_on_it(tmp_path: Path) -> None:
    journal = tmp_path / "journal.db"
    with street(tmp_path, trouble=0.0) as place:
        place.shop.hold = threading.Event()
        with child(place.url, journal) as first:
            assert place.shop.arrived.wait(60)
            with Journal(journal) as book:
                (before,) = book.unfinished()
            first.send_signal(signal.SIGKILL)
            assert first.wait(60) == -signal.SIGKILL
        place.shop.hold.set()
        with child(place.url, journal) as second:
            assert finished(second) == ['201 {"order": "order-0", "number": 1}']
    assert place.shop.made == {"order-0": 1}
    with Journal(journal) as book:
        (after,) = book.entries("order-0")
        assert (after.key, after.state, after.status) == (before.key, "answered", 201)
        assert after.sends >= 2


@pytest.mark.timeout(600)
def test_killed_again_and_again_on_a_bad_street(tmp_path: Path) -> None:
    """Processes are killed at random, before a request or after an answer, until one finishes."""
    journal, deaths, lines = tmp_path / "journal.db", 0, []
    with street(tmp_path) as place:
        for seed in range(1, 100):  # the first three always die: 12 orders draw at least 24 random numbers
            with child(place.url, journal, 12, seed, 0.06, timeout=5.0) as process:
                out, _ = process.communicate(timeout=120)
            if process.returncode == 0:
                lines = out.splitlines()
                break
            assert process.returncode == -signal.SIGKILL
            deaths += 1
    assert deaths >= 3
    assert len(lines) == 12
    assert set(place.shop.made.values()) == {1}
    assert len(place.shop.made) == 12


def test_what_a_dead_process_left_behind_can_be_finished_by_its_key(
    server: Script, virtual: Virtual, tmp_path: Path
) -> None:
    """Without an operation name only the journal knows the keys. It lists the unfinished calls."""
    server.then(*[Drop("after")] * 5)
    journal = Journal(tmp_path / "journal.db")
    with calling("httpx", server.url, ambient=virtual.ambient(), journal=journal) as call, pytest.raises(BROKEN):
        call("POST", "/payments", content=b"{}")
    (left,) = journal.unfinished()
    assert (left.call, left.operation) == ("POST 127.0.0.1/payments", "")
    with httpx.Client(transport=RetryTransport(ambient=virtual.ambient()), base_url=server.url) as client:
        client.post("/payments", content=b"{}", headers={"Idempotency-Key": left.key})
    assert journal.forget(left.id)
    assert server.done == [left.key]
    journal.close()


def test_a_restart_without_a_journal_keeps_the_keys_of_named_operations(server: Script, virtual: Virtual) -> None:
    for _ in range(2):
        with calling("httpx", server.url, ambient=virtual.ambient()) as call, operation("order-7"):
            call("POST", "/payments", content=b"{}")
            call("POST", "/mails", content=b"{}")
    assert server.keys[:2] == server.keys[2:]
    assert len(server.done) == 2
