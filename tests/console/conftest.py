"""A store with a key in every state, and an operation that is stuck after its first step."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from uuid import uuid4

import pytest

from retrysafe import Answer, Key, RetrySafe
from retrysafe.core.jobs import FailJob, Job, Stage, TakeJobs
from retrysafe.core.records import Record
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import NotFinished, OutcomeUnknown
from retrysafe.testing.builders import claim, complete, release

LONG_AGO = 1_000_000.0
JOB_ID = "0f3a9c010f3a9c010f3a9c010f3a9c01"


class World(NamedTuple):
    safe: RetrySafe
    uncertain: Record
    lapsed: Record
    working: Record
    completed: Record
    released: Record
    run: Record


def fill(safe: RetrySafe, long_ago: float = LONG_AGO) -> World:
    """One key in each state. `long_ago`: when the owners began whose lease has lapsed."""
    do = safe.store.execute
    names = {"namespace": safe.namespace, "scope": "acme", "target": "POST /payments"}
    uncertain = do(claim("order-7", now=long_ago, **names)).record
    lapsed = do(
        claim(
            "import-3", scope="importer", on_lapse="rerun", kind="function", target="load", namespace=safe.namespace,
            now=long_ago,
        )
    )  # fmt: skip
    working = do(claim("order-8", lease=3600, now=None, **names))
    done = do(claim("order-1", now=None, **names))
    do(complete(done, b'{"charge": "ch_secret"}', now=None))
    given_up = do(claim("order-2", now=None, **names))
    do(release(given_up, "the provider said no", now=None))
    run = start_run(safe)
    if safe.store.capabilities.outbox:
        # Ids of jobs are unique in a store, whatever their namespace.
        stage_dead_letter(safe, JOB_ID if safe.namespace == "default" else uuid4().hex)
    held = (uncertain, lapsed.record, working.record, done.record, given_up.record, run)
    return World(safe, *(_reread(safe, each) for each in held))


def _reread(safe: RetrySafe, record: Record) -> Record:
    from retrysafe.core.ops import Lookup

    found = safe.store.execute(Lookup(record.id)).record
    assert found is not None
    return found


def start_run(safe: RetrySafe) -> Record:
    """A run whose second step fails until somebody resumes it."""
    pay = safe.operation("pay")
    calls: list[str] = []

    def refund(result: str | None, *, key: str) -> None:
        calls.append(f"refund {result}")

    @pay.foreign(undo=refund)
    def charge(amount: int, *, key: str) -> str:
        return "ch_1"

    @pay.foreign(tries=1)
    def ship(order: str, *, key: str) -> str:
        calls.append("ship")
        if len(calls) < 2:
            raise ConnectionError("the carrier is down")
        return "sh_1"

    @pay.body
    def body(order: str) -> Answer:
        charge(100)
        ship(order)
        return Answer(201, {"order": order})

    with pytest.raises((NotFinished, OutcomeUnknown)):
        pay("o-1", key="order-9")
    from retrysafe.core.ops import Lookup

    found = safe.store.execute(Lookup(Key("order-9", "pay", "operation").id(safe.namespace))).record
    assert found is not None
    return found


def stage_dead_letter(
    safe: RetrySafe, name: str = JOB_ID, topic: str = "receipts", error: str = "the mail server refused it"
) -> None:
    do = safe.store.execute
    do(Stage((Job(name, topic, b'{"to": "a@example.com"}'),), namespace=safe.namespace))
    (taken,) = do(TakeJobs(1, b"t" * 16, 60 * SECOND_MICROS, namespace=safe.namespace, topics=(topic,), others=False))
    do(FailJob(taken.job.id, b"t" * 16, error, 0, True))


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[RetrySafe]:
    with RetrySafe(f"sqlite:///{tmp_path}/console.db") as safe:
        safe.migrate()
        yield safe


@pytest.fixture
def world(safe: RetrySafe) -> World:
    return fill(safe)
