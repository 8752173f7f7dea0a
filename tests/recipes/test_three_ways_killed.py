"""Split transaction, outbox, key passed downstream: each killed with SIGKILL where it hurts; then comes the worker."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest
from examples.recipes import three_ways

from retrysafe.worker import Worker

ROOT = Path(__file__).parents[2]

KILLED = """
import json, os, signal, sys
from pathlib import Path
from examples.recipes import three_ways

folder, way, when = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def send(key, text):
    if when == "after":
        with (folder / "mails").open("a") as mails:
            mails.write(json.dumps([key, text]) + chr(10))
    os.kill(os.getpid(), signal.SIGKILL)

signup = three_ways.Signup(folder, send)
signup.split("a@x") if way == "split" else getattr(signup, way)("a@x", key="1")
os.kill(os.getpid(), signal.SIGKILL)
"""


def killed(folder: Path, way: str, when: str) -> None:
    """`before` or `after` the mail service has it. The outbox does not send by itself: it dies after its commit."""
    ended = subprocess.run([sys.executable, "-c", KILLED, str(folder), way, when], cwd=ROOT, check=False)
    assert ended.returncode == -signal.SIGKILL


def recovered(folder: Path) -> list[tuple[str, str]]:
    """The process is started again, with its worker; all the mail service has been sent."""
    received = folder / "mails"

    def send(key: str, text: str) -> None:
        with received.open("a") as mails:
            mails.write(json.dumps([key, text]) + "\n")

    signup = three_ways.Signup(folder, send)
    with signup.safe:
        assert signup.users() == ["a@x"], "the row was committed"
        time_passes(signup.path)
        Worker(signup.safe, grace=0).run_once()
    lines = received.read_text().splitlines() if received.exists() else []
    return [(key, text) for key, text in map(json.loads, lines)]


def time_passes(path: Path) -> None:
    """Nobody alive holds the key."""
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE retrysafe_keys SET lease_until = 1 WHERE state = 'claimed'")
        db.commit()


def test_a_split_transaction_loses_the_mail(tmp_path: Path) -> None:
    killed(tmp_path, "split", "before")
    assert recovered(tmp_path) == []


def test_the_outbox_sends_it_later(tmp_path: Path) -> None:
    killed(tmp_path, "outbox", "before")
    assert [text for _, text in recovered(tmp_path)] == ["welcome a@x"]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_key_passed_downstream_is_sent_again_as_the_same(tmp_path: Path, when: str) -> None:
    killed(tmp_path, "downstream", when)
    sent = recovered(tmp_path)
    assert len(sent) == (2 if when == "after" else 1)
    assert {text for _, text in sent} == {"welcome a@x"}
    assert len({key for key, _ in sent}) == 1, "the mail service recognises it"
