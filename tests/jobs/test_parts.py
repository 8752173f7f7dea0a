"""The pure parts: ids, fingerprints, and the judgement of a queue's settings."""

from __future__ import annotations

import asyncio
import inspect
import re
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from retrysafe import RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.errors import ArgumentError, InProgress, UsageError
from retrysafe.jobs import JobMessage, QueueAdapter, job_id, saga_step, step_key
from retrysafe.jobs.bullmq import BullJobs, with_read_timeout
from retrysafe.jobs.delivery import MAX_DELAY_SECONDS, MIN_DELAY_SECONDS, ClientPerLoop, compute_busy_delay
from retrysafe.jobs.fingerprints import fingerprint_job, to_plain
from retrysafe.jobs.publisher import read_arguments
from retrysafe.jobs.retention import Setting, diagnose_queue, format_duration, judge_setting
from retrysafe.policy import DAY

EVERY_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,120}")


@given(st.text(min_size=1, max_size=300))
def test_every_id_is_one_that_every_queue_takes(key: str) -> None:
    made = job_id(key)
    assert EVERY_QUEUE.fullmatch(made)
    assert not made.isdigit()
    assert job_id(made) == made  # the worker knows only the id


@given(st.text(min_size=1, max_size=300), st.text(min_size=1, max_size=300))
def test_two_keys_are_two_ids(one: str, other: str) -> None:
    assert (job_id(one) == job_id(other)) == (one == other)


def test_a_plain_key_is_its_own_id() -> None:
    assert job_id("charge-order_7") == "charge-order_7"
    assert job_id("receipt:7").startswith("receipt-7-")
    assert job_id("7") != "7"
    assert step_key("order-7", "charge") == "order-7-charge"


@pytest.mark.parametrize("key", ["", None, 7])
def test_what_is_no_key(key: Any) -> None:
    with pytest.raises(UsageError, match="a job's key is text"):
        job_id(key)


def test_a_saga_step_needs_a_saga() -> None:
    with pytest.raises(UsageError, match="outside an operation"):
        saga_step("charge")


class Size(Enum):
    SMALL = "s"


@dataclass
class Order:
    id: int
    when: date


class Model(BaseModel):
    id: int
    lines: list[int]


@pytest.mark.parametrize(
    ("sent", "arrived"),
    [
        ((1, (2, 3)), [1, [2, 3]]),
        ({1: "a"}, {"1": "a"}),
        (date(2026, 11, 16), "2026-11-16"),
        (datetime(2026, 11, 16, 5, tzinfo=UTC), "2026-11-16T05:00:00+00:00"),
        (Decimal("1.50"), "1.50"),
        (UUID(int=7), str(UUID(int=7))),
        (Size.SMALL, "s"),
        (Order(1, date(2026, 11, 16)), {"id": 1, "when": "2026-11-16"}),
        (Model(id=1, lines=[2]), {"id": 1, "lines": [2]}),
        ({3, 1, 2}, [1, 2, 3]),
    ],
)
def test_a_serialiser_between_does_not_make_it_another_job(sent: Any, arrived: Any) -> None:
    assert to_plain(sent) == to_plain(arrived) == arrived


@pytest.mark.parametrize(("one", "other"), [(1, 1.5), (1, "1"), (None, ""), (True, 1), ([1, 2], [2, 1])])
def test_different_jobs_stay_different(one: Any, other: Any) -> None:
    signature = inspect.signature(lambda value: None)
    first, second = (fingerprint_job("t", signature, (value,), {}, frozenset()) for value in (one, other))
    assert first != second


def test_what_cannot_be_compared_is_named() -> None:
    with pytest.raises(ArgumentError, match="'value' of task t"):
        fingerprint_job("t", inspect.signature(lambda value: None), (object(),), {}, frozenset())


# The outbox -----------------------------------------------------------------------------------------------


def staged(payload: bytes) -> Job:
    return Job("0" * 32, "order.paid", payload)


def test_a_payload_is_the_arguments() -> None:
    assert read_arguments(staged(b'{"order": 7}')) == ((), {"order": 7})
    assert read_arguments(staged(b"[7, 8]")) == ((7, 8), {})


@pytest.mark.parametrize("payload", [b"7", b"not json", b""])
def test_a_payload_that_cannot_be_arguments_is_named(payload: bytes) -> None:
    with pytest.raises(UsageError, match=r"order\.paid"):
        read_arguments(staged(payload))


def test_a_publisher_sends_with_the_staged_id_or_with_the_task_s_key() -> None:
    sent: list[JobMessage] = []

    class Listed(QueueAdapter):
        def send(self, message: JobMessage) -> None:
            sent.append(message)

    jobs = Listed(RetrySafe("memory://"))
    by_id = jobs.publisher(jobs.fence(lambda order: None, name="by-id"))
    by_key = jobs.publisher(jobs.fence(lambda order: None, name="by-key", key="receipt-{order}"))
    by_id(staged(b"[7]"))
    by_key(staged(b'{"order": 7}'))
    assert [message.id for message in sent] == ["0" * 32, job_id("receipt-{7}")]
    assert sent[0] == JobMessage("0" * 32, "by-id", (7,), {}, again=True)


# Delays and retention ---------------------------------------------------------------------------------------


@given(st.integers(0, 10**12))
def test_nobody_stays_away_too_long_or_too_short(left: int) -> None:
    assert MIN_DELAY_SECONDS / 2 <= compute_busy_delay(InProgress("k", left)) <= MAX_DELAY_SECONDS


@pytest.mark.parametrize(
    ("connection", "expected"),
    [
        ("redis://localhost", "redis://localhost?socket_timeout=30"),
        ("unix:///run/valkey?db=3", "unix:///run/valkey?db=3&socket_timeout=30"),
        ("rediss://:secret@host:1/2?socket_timeout=1", "rediss://:secret@host:1/2?socket_timeout=30"),
        ("redis://localhost?socket_timeout=60", "redis://localhost?socket_timeout=60"),
        ({}, {"socket_timeout": 30.0}),
        ({"port": 1, "socket_timeout": 1}, {"port": 1, "socket_timeout": 30.0}),
        ({"socket_timeout": 60}, {"socket_timeout": 60}),
        ({"socket_timeout": None}, {"socket_timeout": None}),
        (7, 7),
    ],
)
def test_a_read_outlasts_what_a_bullmq_worker_blocks(connection: Any, expected: Any) -> None:
    assert with_read_timeout(connection, 30.0) == expected


@pytest.mark.parametrize(
    ("opts", "at_least"), [({}, 10.0), ({"connection": "redis://127.0.0.1:1"}, 10.0), ({"drainDelay": 90}, 90.0)]
)
async def test_a_bullmq_worker_s_connections_are_patient(opts: dict[str, Any], at_least: float) -> None:
    worker = BullJobs(RetrySafe("memory://"), "q", opts).worker(autorun=False)
    for client in (worker.client, worker.bclient):
        assert client.connection_pool.make_connection().socket_timeout > at_least


@pytest.mark.parametrize(
    ("setting", "fine", "limit"),
    [
        (Setting("result_expires", "keeps", DAY, "raise it"), False, "exactly-once-capable"),
        (Setting("result_expires", "keeps", 30 * DAY, "raise it"), True, "exactly-once-capable"),
        (Setting("visibility", "redelivers", 3600, "lower it"), True, "exactly-once-capable"),
        (Setting("visibility", "redelivers", 31 * DAY, "lower it"), False, "best-effort"),
        (Setting("visibility", "notices", 3600, "lower it"), False, "exactly-once-capable"),
        (Setting("visibility", "notices", 300, "lower it"), True, "exactly-once-capable"),
        (Setting("acks", "loses", 1.0, "acks_late"), False, "exactly-once-capable"),
        (Setting("acks", "loses", 0.0, "acks_late"), True, "exactly-once-capable"),
    ],
)
def test_what_a_setting_is_worth(setting: Setting, fine: bool, limit: str) -> None:
    finding = judge_setting(setting, retention=30 * DAY, lease=60.0)
    assert (finding.fine, finding.limit) == (fine, limit)
    assert finding.setting == setting.name


def test_the_shortest_retention_counts() -> None:
    class Remembering(QueueAdapter):
        queue = "q"

        def settings(self) -> list[Setting]:
            return [Setting("visibility", "redelivers", 3600, "lower it")]

    jobs = Remembering(RetrySafe("memory://"))
    assert diagnose_queue(jobs).label == "exactly-once-capable"
    jobs.fence(lambda: None, name="short", policy=jobs.policy.replace(retention=600.0))
    assert diagnose_queue(jobs).label == "best-effort"
    assert "Policy(retention=" in diagnose_queue(jobs).findings[0].fix


def test_durations_are_told_to_people() -> None:
    assert [format_duration(each) for each in (30, 90, 600, 7200, 30 * DAY, float("inf"))] == [
        "30 s", "90 s", "10 min", "2 h", "30 d", "for ever",
    ]  # fmt: skip


# Clients ----------------------------------------------------------------------------------------------------


class Opening:
    """Opens clients, which are numbers; the first attempts fail."""

    def __init__(self, failures: int = 0) -> None:
        self.attempts = 0
        self.may_end = asyncio.Event()
        self._failures = failures

    async def __call__(self) -> int:
        self.attempts += 1
        attempt = self.attempts
        await self.may_end.wait()
        if attempt <= self._failures:
            raise ConnectionError
        return attempt


def test_each_loop_has_one_client() -> None:
    opening = Opening()
    opening.may_end.set()
    clients = ClientPerLoop(opening)

    async def use() -> tuple[int | None, list[int], int | None]:
        return clients.get_existing(), [await clients.get(), await clients.get()], clients.get_existing()

    assert asyncio.run(use()) == (None, [1, 1], 1)
    assert asyncio.run(use()) == (None, [2, 2], 2)


async def test_a_client_that_could_not_be_opened_is_opened_again() -> None:
    opening = Opening(failures=1)
    opening.may_end.set()
    clients = ClientPerLoop(opening)
    with pytest.raises(ConnectionError):
        await clients.get()
    assert await clients.get() == await clients.get() == 2


async def test_a_caller_that_is_cancelled_does_not_cancel_the_client_of_the_others() -> None:
    opening = Opening()
    clients = ClientPerLoop(opening)
    impatient, patient = asyncio.create_task(clients.get()), asyncio.create_task(clients.get())
    await asyncio.sleep(0)
    impatient.cancel()
    await asyncio.wait({impatient})
    opening.may_end.set()
    assert await patient == opening.attempts == 1
