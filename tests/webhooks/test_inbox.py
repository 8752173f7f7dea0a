"""The inbox: an event is committed, answered, and run by the worker; once, whatever happens in between."""

from __future__ import annotations

import asyncio
import inspect
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import List, Stats
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import OperationChanged, UsageError
from retrysafe.webhooks import Event, Receiver
from retrysafe.worker.completer import Completer, CompleterCounts
from tests.opening import store_url
from tests.webhooks.senders import NOW, SENDERS

SLACK = SENDERS["slack"]


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[RetrySafe]:
    with RetrySafe(f"sqlite:///{tmp_path / 'app.db'}", tx=str(tmp_path / "app.db")) as made:
        made.migrate()
        with sqlite3.connect(tmp_path / "app.db") as db:
            db.execute("CREATE TABLE effects (id TEXT)")
        db.close()
        yield made


def inbox(safe: RetrySafe, **options: Any) -> Receiver:
    return Receiver(safe, SLACK.scheme, inbox=True, clock=lambda: NOW, **options)


def work(safe: RetrySafe) -> CompleterCounts:
    return Completer(safe, backoff=lambda attempt: 0.0).run_once()


def effects(safe: RetrySafe) -> list[str]:
    db = sqlite3.connect(safe.tx)
    try:
        return [row[0] for row in db.execute("SELECT id FROM effects ORDER BY id")]
    finally:
        db.close()


def records(safe: RetrySafe) -> tuple[Record, ...]:
    return safe.execute(List()).records


@pytest.mark.parametrize("colour", ["def", "async def"])
@pytest.mark.parametrize("via", ["thread", "loop"])
def test_the_sender_is_answered_at_once_and_the_worker_handles_it(safe: RetrySafe, colour: str, via: str) -> None:
    receiver, handled = inbox(safe), []

    @receiver.on("plain")
    def plain(event: Event) -> None:
        handled.append(event)

    @receiver.on("async")
    async def awaited(event: Event) -> None:
        await asyncio.sleep(0)
        handled.append(event)

    sent = SLACK.send("Ev1", "plain" if colour == "def" else "async")

    def take() -> int:
        if via == "thread":
            return receiver.receive(*sent).status
        return asyncio.run(receiver.areceive(*sent)).status

    assert [take(), take()] == [200, 200], "it is stored, so a second arrival need not be refused"
    assert handled == []
    assert work(safe) == CompleterCounts(1, 0, 0)
    assert take() == 200
    assert work(safe) == CompleterCounts(0, 0, 0)
    assert len(handled) == 1
    event = handled[0]
    assert (event.id, event.body, event.timestamp) == ("Ev1", sent.body, int(NOW)), "as if it had come just now"


def test_a_retry_that_is_signed_anew_is_the_same_event(safe: RetrySafe) -> None:
    receiver, handled = inbox(safe), []
    receiver.on()(handled.append)
    for offset in (0, 60, 299):
        assert receiver.receive(*SLACK.send("Ev1", now=NOW - offset, retry=offset)).status == 200
    work(safe)
    assert len(handled) == 1


def test_what_fails_is_tried_again_by_the_worker(safe: RetrySafe) -> None:
    receiver, runs = inbox(safe), []

    @receiver.on()
    def third_time_lucky(event: Event) -> Any:
        runs.append(event.id)
        if len(runs) == 1:
            raise RuntimeError("not yet")
        return Answer(503) if len(runs) == 2 else None

    receiver.receive(*SLACK.send("Ev1"))
    assert [work(safe)[:2] for _ in range(4)] == [(0, 1), (0, 1), (1, 0), (0, 0)]
    assert len(runs) == 3


def test_what_keeps_failing_is_given_to_a_person(safe: RetrySafe, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "retrysafe.operations.run.MAX_SPACING_SECONDS", 0.0
    )  # every failure counts, however soon it follows the last one
    receiver = inbox(safe, max_attempts=3)
    receiver.on()(lambda event: 1 / 0)
    receiver.receive(*SLACK.send("Ev1"))
    done = [work(safe) for _ in range(5)]
    assert [(each.later, each.dead) for each in done] == [(1, 0), (1, 0), (0, 1), (0, 0), (0, 0)]
    assert [record.state for record in records(safe)] == [State.UNCERTAIN]
    assert "dead letter" in records(safe)[0].note
    assert receiver.receive(*SLACK.send("Ev1")).status == 500, "never 2xx for what nobody has done"


def test_a_handler_that_asks_for_tx_commits_with_the_mark(safe: RetrySafe) -> None:
    receiver, fails = inbox(safe), [True]

    @receiver.on()
    def handle(tx: sqlite3.Connection, event: Event) -> None:
        tx.execute("INSERT INTO effects VALUES (?)", [event.id])
        if fails:
            fails.clear()
            raise RuntimeError("after the write")

    receiver.receive(*SLACK.send("Ev1"))
    assert effects(safe) == []
    while work(safe).finished == 0:
        assert effects(safe) == [], "what failed was rolled back"
    assert effects(safe) == ["Ev1"]
    assert work(safe) == CompleterCounts(0, 0, 0)


class Killed(BaseException):
    """The worker died here."""


def test_a_worker_that_dies_leaves_the_event_to_the_next(safe: RetrySafe) -> None:
    receiver, runs = inbox(safe), []

    @receiver.on()
    def handle(event: Event) -> None:
        runs.append(event.id)
        if len(runs) == 1:
            raise Killed

    receiver.receive(*SLACK.send("Ev1"))
    with pytest.raises(Killed):
        work(safe)
    assert work(safe).finished == 1
    assert runs == ["Ev1", "Ev1"]


def test_nothing_unverified_and_nothing_unwanted_is_stored(safe: RetrySafe) -> None:
    receiver = inbox(safe)
    receiver.on("wanted")(lambda event: None)
    headers, body = SLACK.send("Ev1", "wanted")
    assert receiver.receive(headers, body + b" ").status == 400
    assert receiver.receive(*SLACK.send("Ev1", "unwanted")).status == 200
    assert sum(safe.execute(Stats())[:4]) == 0


def test_signatures_and_credentials_are_not_stored(safe: RetrySafe) -> None:
    receiver = inbox(safe)
    receiver.on()(lambda event: None)
    headers, body = SLACK.send("Ev1")
    receiver.receive({**headers, "Authorization": "Bearer hunter2", "Cookie": "hunter2"}, body)
    stored = records(safe)[0].input
    assert body.hex() in stored.decode() or b"Ev1" in stored
    assert b"hunter2" not in stored
    assert headers["X-Slack-Signature"].encode() not in stored


@pytest.mark.parametrize("via", ["thread", "loop"])
def test_an_event_begun_without_an_inbox_is_finished_as_it_was_begun(safe: RetrySafe, via: str) -> None:
    """Only the sender's retry runs it, so it must not get 2xx before it is done."""
    direct = Receiver(RetrySafe(safe.store), SLACK.scheme, clock=lambda: NOW)
    direct.on()(lambda event: 1 / 0)
    sent, handled = SLACK.send("Ev1"), []
    assert direct.receive(*sent).status == 500
    receiver = inbox(safe)
    receiver.on()(handled.append)
    take = receiver.receive if via == "thread" else lambda *sent: asyncio.run(receiver.areceive(*sent))
    assert take(*sent).status == 200
    assert [event.id for event in handled] == ["Ev1"]
    assert work(safe) == CompleterCounts(0, 0, 0)


def test_an_event_in_the_inbox_survives_a_release_without_one(safe: RetrySafe) -> None:
    receiver, handled = inbox(safe), []
    receiver.on()(handled.append)
    sent = SLACK.send("Ev1")
    receiver.receive(*sent)
    direct = Receiver(RetrySafe(safe.store), SLACK.scheme, clock=lambda: NOW)
    direct.on()(handled.append)
    assert direct.receive(*sent).status == 200
    assert work(safe) == CompleterCounts(0, 0, 0)
    assert len(handled) == 1


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("second", [True, False])
def test_a_second_receiver_of_one_provider_is_refused(safe: RetrySafe, first: bool, second: bool) -> None:
    """The two would share the ids of the events: an event that one has handled, the other's handler would never see."""
    Receiver(safe, SLACK.scheme, inbox=first)
    with pytest.raises(UsageError, match="there is a receiver for 'slack' already"):
        Receiver(safe, SLACK.scheme, inbox=second)
    Receiver(safe, SLACK.scheme, inbox=second, provider="slack-2")


def awaited_if_need_be(result: Any) -> Any:
    return wait_for(result) if inspect.isawaitable(result) else result


@pytest.mark.parametrize("colour", ["def", "async def"])
def test_an_event_waits_for_a_worker_that_has_its_handler(safe: RetrySafe, colour: str) -> None:
    """It was accepted because there was a handler: a worker without the handler must not mark it as done."""
    receiver, handled = inbox(safe), []

    @receiver.on("plain")
    def plain(event: Event) -> None:
        handled.append(event.id)

    @receiver.on("async")
    async def awaited(event: Event) -> None:
        handled.append(event.id)

    receiver.receive(*SLACK.send("Ev1", "plain" if colour == "def" else "async"))
    older = RetrySafe(safe.store, async_store=safe.async_store, tx=safe.tx)
    inbox(older, max_attempts=2).on("other")(handled.append)
    for _ in range(4):
        assert work(older) == CompleterCounts(0, 0, 0, waiting=1)
    (record,) = records(safe)
    with pytest.raises(OperationChanged, match="there is no handler for"):
        awaited_if_need_be(older.operations[record.target].resume_id(record.id))
    assert [record.state for record in records(safe)] == [State.RELEASED]
    assert work(safe) == CompleterCounts(1, 0, 0)
    assert handled == ["Ev1"]


@pytest.mark.parametrize("store", [pytest.param(name, marks=pytest.mark.store(name)) for name in ("redis", "postgres")])
def test_on_the_other_stores(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    with RetrySafe(store_url(request, tmp_path, store)) as safe:
        safe.migrate()
        receiver, handled = inbox(safe), []
        receiver.on()(handled.append)
        direct = Receiver(safe, SENDERS["stripe"].scheme, clock=lambda: NOW)
        direct.on()(handled.append)
        for _ in range(2):
            assert receiver.receive(*SLACK.send("Ev1")).status == 200
            assert direct.receive(*SENDERS["stripe"].send("evt-1")).status == 200
        assert work(safe).finished == 1
        assert sorted(event.id for event in handled) == ["Ev1", "evt-1"]
