"""A moment in which the system gives no thread ("can't start new thread"): what needed one is tried again later."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Renew, Withdraw
from retrysafe.engine import circuit, orphaned_claims, resending
from retrysafe.engine.clock import clock
from retrysafe.engine.heartbeat import Heartbeat, Lease
from retrysafe.errors import StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.postgres import deadline
from retrysafe.testing.builders import claim, record_of
from tests.unit.engine.gates import PATIENCE, Watched
from tests.waiting import until

NoThread = Callable[[str], list[threading.Thread]]


@pytest.fixture
def no_thread(monkeypatch: pytest.MonkeyPatch) -> NoThread:
    """`no_thread(name)`: the first thread of that name cannot be started; a list of those that could not."""

    def refuse(name: str) -> list[threading.Thread]:
        start, refused = threading.Thread.start, list[threading.Thread]()

        def start_or_not(thread: threading.Thread) -> None:
            if thread.name == name and not refused:
                refused.append(thread)
                raise RuntimeError("can't start new thread")
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_or_not)
        return refused

    return refuse


def test_the_probe_is_begun_by_the_next_claim_that_is_refused(
    no_thread: NoThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(circuit, "FIRST_PROBE_SECONDS", 0.001)
    monkeypatch.setattr("retrysafe.engine.probe.FIRST_PROBE_SECONDS", 0.001)
    refused, away = no_thread("retrysafe-probe"), threading.Event()
    away.set()

    def before(op: Any) -> None:
        if away.is_set():
            raise StoreUnreachable("nobody listens")

    safe = RetrySafe(Watched(before))
    for number in range(3):  # the first finds out, the second finds no thread, the third starts one
        with pytest.raises(StoreUnreachable):
            safe.execute(claim(f"k{number}"))
    assert len(refused) == 1
    away.clear()
    until(lambda: not safe.performer()._circuit.away, PATIENCE, "the probe to find the store")
    assert safe.execute(claim("after")).granted
    safe.close()


def test_what_was_given_up_is_given_back_when_the_next_one_is(
    no_thread: NoThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0,) * 4)
    monkeypatch.setattr(resending, "RESEND_LIMIT_SECONDS", 0.0)
    monkeypatch.setattr(orphaned_claims, "ORPHAN_RESEND_SECONDS", (0.001,))
    refused, silent = no_thread("retrysafe-orphaned-claims"), threading.Event()
    silent.set()

    def before(op: Any) -> None:
        if silent.is_set():
            raise StoreUnclear("no reply in time")

    store = Watched(before)
    safe = RetrySafe(store)
    for number in range(2):
        with pytest.raises(StoreUnclear):
            safe.execute(claim(f"k{number}", now=None))
    assert len(refused) == 1
    silent.clear()
    store.wait_for(Withdraw, 2)
    safe.close()


def test_a_call_that_finds_no_thread_for_its_heartbeat_leaves_nothing_behind(no_thread: NoThread) -> None:
    """It fails before its function begins. Were its lease left with the watcher, a later beat would call it lost."""
    store, events = Watched(), list[str]()
    beats = Heartbeat(lambda: store, lambda name, record_id: events.append(name))
    held = record_of(store.inner.execute(claim("k", lease=600, now=None)))
    no_thread("retrysafe-heartbeat")
    failed = Lease(held.id, "k", held.fence._replace(attempt=7), clock() + 0.01)
    with pytest.raises(RuntimeError, match="thread"):
        beats.start(failed, 0.03)
    stop = beats.start(Lease(held.id, "k", held.fence, clock() + 0.02), 0.06)
    store.wait_for(Renew, 3)
    stop()
    beats.stop()
    assert {op.fence.attempt for op in store.seen if isinstance(op, Renew)} == {1}
    assert set(events) == {"renewed"}


def test_a_deadline_that_found_no_thread_ends_nobody_else_s_conversation(
    no_thread: NoThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection goes back to the pool, and somebody else has it when the time of the failed call is over."""
    ended: list[Any] = []
    shut = threading.Event()

    def note(connection: Any) -> None:
        ended.append(connection)
        shut.set()

    monkeypatch.setattr(deadline, "shut_down_socket", note)
    no_thread("retrysafe-deadlines")
    watch = deadline.DeadlineWatch()
    with pytest.raises(StoreUnavailable, match="nothing was sent"):
        watch.start("given back", 0.0)
    watch.start("silent", 0.0)
    assert shut.wait(PATIENCE), "the next call has its deadline"
    assert ended == ["silent"]
