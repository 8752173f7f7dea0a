"""Who waits for a key is woken by the store, on routes that wait: LISTEN/NOTIFY, pub/sub (`busy="wait"`).

Patience is set to minutes here, so a test that ends has been woken; no test measures time.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, Key, Policy, RetrySafe
from retrysafe.core.fingerprint import fingerprint_text
from retrysafe.core.records import Record
from retrysafe.engine import guard as guard_module
from retrysafe.engine.guard import Task
from retrysafe.errors import InProgress
from tests.opening import store_url
from tests.waiting import until

STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("postgres", "redis")]
MINUTES = 300.0


class Blocked:
    """Work that begins, and goes on when it is let."""

    def __init__(self, fails: bool = False) -> None:
        self.began = threading.Event()
        self.let = threading.Event()
        self.runs = 0
        self.fails = fails

    def call(self, record: Record) -> Any:
        self.runs += 1
        self.began.set()
        assert self.let.wait(60)
        if self.fails and self.runs == 1:
            raise RuntimeError("the first one fails")
        return b"done"

    def answer(self, result: Any) -> Answer:
        return Answer(201, result)

    def failure(self, error: Exception) -> Answer:
        return Answer(500, b"failed")


def task(key: str, body: str = "a", **policy: Any) -> Task:
    chosen = Policy(busy="wait", wait=MINUTES, **policy)
    return Task(Key(key, "tenant"), "default", "POST /x", fingerprint_text("raw1", body), chosen)


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guard_module, "NOTIFY_POLL_SECONDS", MINUTES)


@pytest.fixture
def safe(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RetrySafe]:
    opened = RetrySafe(store_url(request, tmp_path, request.param))
    opened.migrate()
    yield opened
    opened.close()


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("safe", STORES, indirect=True)
@pytest.mark.parametrize("fails", [False, True])
def test_a_waiting_thread_is_woken_when_the_first_is_settled(safe: RetrySafe, fails: bool) -> None:
    work = Blocked(fails)
    first = threading.Thread(target=lambda: _ignore(lambda: safe.guard(task("k", failures="release"), work)))
    first.start()
    assert work.began.wait(60)
    ended: list[Any] = []
    second = threading.Thread(target=lambda: ended.append(safe.guard(task("k", failures="release"), work)))
    second.start()
    until(lambda: inner(safe.store)._listener._thread is not None, 60, "the listener to start")
    until_only_a_message_helps(inner(safe.store)._listener)
    work.let.set()
    second.join(60)
    assert not second.is_alive(), "it was not woken"
    first.join(60)
    assert ended[0].answer.body == b"done"
    assert ended[0].replayed is not fails
    assert work.runs == (2 if fails else 1)


@pytest.mark.usefixtures("patient")
@pytest.mark.parametrize("safe", STORES, indirect=True)
def test_a_waiting_task_is_woken_and_its_fingerprint_compared_anew(safe: RetrySafe) -> None:
    async def story() -> tuple[Any, Any]:
        begun, let = asyncio.Event(), asyncio.Event()

        class Async(Blocked):
            def call(self, record: Record) -> Any:
                async def run() -> bytes:
                    begun.set()
                    await let.wait()
                    return b"done"

                return run()

        work = Async()
        first = asyncio.create_task(safe.aguard(task("k"), work))
        await begun.wait()
        second = asyncio.create_task(safe.aguard(task("k"), work))
        listener = inner(safe.async_store)._listener
        await asyncio.wait_for(listener.up.wait(), 60)
        let.set()
        ended = await asyncio.wait_for(asyncio.gather(first, second), 60)
        await safe.aclose()
        return ended[0], ended[1]

    first, second = asyncio.run(story())
    assert (first.replayed, second.replayed) == (False, True)
    assert first.answer == second.answer


@pytest.mark.parametrize("safe", STORES, indirect=True)
def test_the_budget_ends_the_waiting(safe: RetrySafe) -> None:
    work = Blocked()
    owner = threading.Thread(target=lambda: safe.guard(task("k"), work))
    owner.start()
    assert work.began.wait(60)
    short = Task(Key("k", "tenant"), "default", "POST /x", fingerprint_text("raw1", "a"), Policy(busy="wait", wait=0.3))
    with pytest.raises(InProgress):
        safe.guard(short, work)
    work.let.set()
    owner.join(60)
    assert work.runs == 1


def until_only_a_message_helps(listener: Any) -> None:
    """Until somebody waits and the listener listens; what was settled before that is found by the short first look."""
    assert listener.up.wait(60)
    until(lambda: bool(listener._waiting), 60, "somebody to wait")


def inner(store: Any) -> Any:
    """The store itself, under lifetime and batching."""
    opened = store._current().store
    return getattr(opened, "_store", opened)


def _ignore(call: Any) -> None:
    with suppress(RuntimeError):
        call()
