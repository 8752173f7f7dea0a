"""Handlers that ask for `tx`: their writes commit with the mark that the event was handled."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import pytest

from retrysafe.core.ops import Stats
from retrysafe.core.records import Answer
from retrysafe.engine.safe import RetrySafe
from retrysafe.webhooks import Event, Receiver
from tests.opening import store_url
from tests.webhooks.senders import NOW, SENDERS

STRIPE = SENDERS["stripe"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    found = tmp_path / "app.db"
    with sqlite3.connect(found) as db:
        db.execute("CREATE TABLE effects (id TEXT)")
    db.close()
    return found


@pytest.fixture
def safe(path: Path) -> Iterator[RetrySafe]:
    with RetrySafe(f"sqlite:///{path}", tx=str(path)) as made:
        made.migrate()
        yield made


def effects(path: Path) -> list[str]:
    db = sqlite3.connect(path)
    try:
        return [row[0] for row in db.execute("SELECT id FROM effects ORDER BY id")]
    finally:
        db.close()


def receiver_of(safe: RetrySafe, **options: Any) -> Receiver:
    return Receiver(safe, STRIPE.scheme, clock=lambda: NOW, **options)


@pytest.mark.parametrize("via", ["thread", "loop"])
@pytest.mark.parametrize("colour", ["def", "async def"])
def test_the_writes_of_a_handler_commit_with_its_mark(safe: RetrySafe, path: Path, via: str, colour: str) -> None:
    receiver, failing = receiver_of(safe), [RuntimeError("after the write"), Answer(503)]

    def ends() -> Any:
        if failing and isinstance(failing[0], Exception):
            raise failing.pop(0)
        return failing.pop(0) if failing else None

    @receiver.on("plain")
    def plain(event: Event, tx: sqlite3.Connection) -> Any:
        tx.execute("INSERT INTO effects VALUES (?)", [event.id])
        return ends()

    @receiver.on("async")
    async def awaited(tx: aiosqlite.Connection, event: Event) -> Any:
        await tx.execute("INSERT INTO effects VALUES (?)", [event.id])
        return ends()

    sent = STRIPE.send("evt-1", "plain" if colour == "def" else "async")

    def take() -> int:
        if via == "thread":
            return receiver.receive(*sent).status
        return asyncio.run(receiver.areceive(*sent)).status

    assert [take(), take()] == [500, 503]
    assert effects(path) == [], "what failed was rolled back, and left no mark"
    assert sum(safe.execute(Stats())[:4]) == 0
    assert [take(), take(), take()] == [200, 200, 200]
    assert effects(path) == ["evt-1"]


@pytest.mark.store("postgres")
def test_on_postgresql_a_second_arrival_during_the_transaction_is_answered_409(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    url = store_url(request, tmp_path, "postgres")
    server: str = request.getfixturevalue("postgres_url")
    with RetrySafe(url, tx=lambda: psycopg.connect(server)) as safe:
        safe.migrate()
        receiver, began, go, runs = receiver_of(safe), threading.Event(), threading.Event(), []

        @receiver.on()
        def handle(event: Event, tx: psycopg.Connection[Any]) -> None:
            runs.append(event.id)
            tx.execute("SELECT 1")
            began.set()
            assert go.wait(30)

        sent = STRIPE.send("evt-1")
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(receiver.receive, *sent)
            assert began.wait(30)
            assert receiver.receive(*sent).status == 409
            go.set()
            assert first.result().status == 200
        assert receiver.receive(*sent).status == 200
        assert runs == ["evt-1"]
