"""`outbox retry --waiting`: the next delivery of a job that waits is due now."""

from __future__ import annotations

import json
import secrets
from pathlib import Path

import pytest

from retrysafe import KeyRing, RetrySafe
from retrysafe.cli.main import main
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.registry import open_store

ID = "0f3a9c010f3a9c010f3a9c010f3a9c01"
BECAUSE = ("--because", "the receiver is back")
TOKEN = b"t" * 16
PAYLOAD = b'{"to": "ann"}'


def stage(tmp_path: Path, *, dead: bool = False) -> str:
    """A job whose first delivery failed: it waits for ten minutes, or is a dead letter."""
    url = f"sqlite:///{tmp_path}/app.db"
    assert main(["migrate", url]) == 0
    store = open_store(url)
    store.execute(Stage((Job(ID, "receipts", PAYLOAD),), namespace="default"))
    store.execute(TakeJobs(1, TOKEN, 60 * SECOND_MICROS, namespace="default"))
    assert store.execute(FailJob(ID, TOKEN, "it is down", 600 * SECOND_MICROS, dead))
    store.close()
    return url


def count_due(url: str) -> int:
    store = open_store(url)
    found = store.execute(TakeJobs(1, b"u" * 16, SECOND_MICROS, namespace="default"))
    store.close()
    return len(found)


def test_a_waiting_job_is_due_now(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = stage(tmp_path)
    assert count_due(url) == 0
    assert main(["outbox", "retry", url, ID[:8], "--waiting", *BECAUSE, "--json"]) == 0
    assert count_due(url) == 1
    capsys.readouterr()
    assert main(["audit", url, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["action"] == "outbox retry"


def test_all_of_a_topic(tmp_path: Path) -> None:
    url = stage(tmp_path)
    assert main(["outbox", "retry", url, "--all", "--topic", "receipts", "--waiting", *BECAUSE, "--yes"]) == 0
    assert count_due(url) == 1


@pytest.mark.parametrize("verb", ["retry", "drop"])
def test_a_job_in_the_other_state_is_named(tmp_path: Path, verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    url = stage(tmp_path)
    assert main(["outbox", verb, url, ID[:8], *BECAUSE]) == 3
    told = capsys.readouterr().err
    assert "it waits" in told
    assert "--waiting" in told


def test_a_dead_letter_does_not_wait(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = stage(tmp_path, dead=True)
    assert main(["outbox", "retry", url, ID[:8], "--waiting", *BECAUSE]) == 3
    assert "it is a dead letter" in capsys.readouterr().err
    assert main(["outbox", "retry", url, "ffffffff", *BECAUSE]) == 3
    assert "waits" not in capsys.readouterr().err


def test_a_dead_letter_is_read_before_it_is_dropped(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = stage(tmp_path, dead=True)
    capsys.readouterr()
    assert main(["outbox", "list", url, "--dead", "--json"]) == 0
    assert "payload" not in json.loads(capsys.readouterr().out), "it may be personal data"
    assert main(["outbox", "list", url, "--dead", "--payload", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["payload"] == PAYLOAD.decode()
    assert main(["outbox", "list", url, "--dead", "--payload"]) == 0
    assert PAYLOAD.decode() in capsys.readouterr().out


def test_an_encrypted_payload_is_not_shown_as_bytes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"sqlite:///{tmp_path}/app.db"
    with RetrySafe(url, keyring=KeyRing({"2026-11": secrets.token_bytes(32)})) as safe:
        safe.migrate()
        safe.execute(Stage((Job(ID, "receipts", PAYLOAD),), namespace="default"))
    capsys.readouterr()
    assert main(["outbox", "list", url, "--payload"]) == 0
    shown = capsys.readouterr().out
    assert "give --app" in shown
    assert "rs1" not in shown
