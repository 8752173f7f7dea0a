"""One record that cannot be read holds up no other: it is skipped, counted and shown."""

from __future__ import annotations

import logging
import secrets
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.jobs import Job, ListJobs, Stage
from retrysafe.core.ops import List
from retrysafe.core.states import State
from retrysafe.engine.sealing import KeyRing
from retrysafe.operations.operation import Operation
from retrysafe.testing.builders import claim
from retrysafe.worker.completer import Completer, CompleterCounts
from retrysafe.worker.enqueuer import Enqueuer, EnqueuerCounts
from retrysafe.worker.sweeper import Sweeper

OLD, NEW = secrets.token_bytes(32), secrets.token_bytes(32)


def opened(path: Path, **keys: bytes) -> RetrySafe:
    return RetrySafe(f"sqlite:///{path}", keyring=KeyRing(keys))


def operation_of(safe: RetrySafe) -> Operation:
    operation = safe.operation("greet", policy=Policy(failures="release", start="worker"))

    @operation.body
    def body(name: str) -> Answer:
        return Answer(200, {"name": name})

    return operation


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "app.db"


def work(safe: RetrySafe) -> CompleterCounts:
    return Completer(safe, backoff=lambda attempt: 0.0).run_once()


def test_a_record_sealed_with_a_key_that_is_gone(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with opened(path, old=OLD) as before:
        before.migrate()
        operation_of(before)("Ada", key="k1")
    with opened(path, new=NEW) as after:
        greet: Any = operation_of(after)
        greet("Bob", key="k2")
        with caplog.at_level(logging.ERROR):
            assert work(after) == CompleterCounts(1, 0, 0, unreadable=1)
        (lost,) = after.execute(List(state=State.CLAIMED)).unreadable
        assert lost.hex()[:16] in caplog.text
    with opened(path, old=OLD) as again:
        operation_of(again)
        assert work(again).finished == 1, "with its key it goes on"


def test_a_damaged_record(path: Path) -> None:
    with RetrySafe(f"sqlite:///{path}") as safe:
        safe.migrate()
        greet: Any = operation_of(safe)
        for name in ("Ada", "Bob", "Eve"):
            greet(name, key=name)
        db = sqlite3.connect(path)
        db.execute("UPDATE retrysafe_keys SET fingerprint = 'nonsense' WHERE key = 'Bob'")
        db.commit()
        db.close()
        assert work(safe) == CompleterCounts(2, 0, 0, unreadable=1)


def test_a_guard_that_cannot_be_opened_is_still_swept(path: Path) -> None:
    with opened(path, old=OLD) as before:
        before.migrate()
        before.execute(claim("k", on_lapse="uncertain", lease=1, input=b"secret", namespace="default", now=0))
    with opened(path, new=NEW) as after:
        assert Sweeper(after).run_once() == 1


def test_a_job_that_cannot_be_opened_waits_and_holds_up_no_other(path: Path) -> None:
    jobs = [Job(f"{number:032x}", "t", b"{}") for number in (1, 2)]
    with opened(path, old=OLD) as before:
        before.migrate()
        before.execute(Stage((jobs[0],)))
    with opened(path, new=NEW) as after:
        after.execute(Stage((jobs[1],)))
        sent: list[str] = []
        assert Enqueuer(after, {"t": lambda job: sent.append(job.id)}, max_attempts=1).run_once() == EnqueuerCounts(
            1, 1, 0
        )
        assert sent == [jobs[1].id]
        (left,) = after.execute(ListJobs())
        assert (left.dead, "not in the ring" in left.error) == (False, True)
