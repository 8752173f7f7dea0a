"""After the death of a worker or of the store, and after a client disconnected."""

from __future__ import annotations

import signal
import sqlite3
import struct
import time
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from socket import SO_LINGER, SOL_SOCKET

import httpx
import pytest

from tests.servers.valkey import ValkeyServer
from tests.waiting import until
from tests.web.apps.reference import KEPT, SHORT
from tests.web.conformance.conftest import Starter
from tests.web.conformance.targets import ALICE, TARGETS, Target, new_key
from tests.web.conformance.test_table import is_problem

BARE = ("uvicorn", "uvicorn-deferred", "hypercorn", "gunicorn", "gunicorn-deferred", "wsgiref")
EACH = pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.store("sqlite")) for name in TARGETS])


def slow_request(path: str, key: str) -> bytes:
    head = [
        f"POST {path} HTTP/1.1", "Host: x", "Connection: close", "Content-Type: application/json", "Content-Length: 14",
        f"Authorization: Bearer {ALICE}", f"X-Tag: {key}", f"Idempotency-Key: {key}",
    ]  # fmt: skip
    return "\r\n".join([*head, "", '{"amount": 10}']).encode()


def killed_in_mid_handler(target: Target, path: str, key: str) -> None:
    with closing(target.connect()) as connection:
        connection.sendall(slow_request(path, key))
        target.began(key)
        target.kill()
    target.start()


def once_lapsed(target: Target, path: str, key: str) -> httpx.Response:
    """The first answer that is neither "in progress" nor "store unavailable"."""
    told = target.post(path, key)
    deadline = time.monotonic() + 60 * SHORT
    while told.status_code in (409, 503) and time.monotonic() < deadline:
        time.sleep(SHORT / 10)
        told = target.post(path, key)
    return told


@EACH
def test_killed_in_mid_handler_the_outcome_is_unknown(start: Starter, name: str) -> None:
    target, key = start(name), new_key()
    killed_in_mid_handler(target, "/slow-lapsing", key)
    target.go(key)
    told = once_lapsed(target, "/slow-lapsing", key)
    assert is_problem(told, 500, "outcome-unknown")
    assert told.json()["safe_new_key"] is False
    assert is_problem(target.post("/slow-lapsing", key, content=b"{}"), 422, "mismatch")
    assert target.executions(key) == 1, "it was not run again"


@EACH
def test_killed_in_mid_handler_a_route_that_says_rerun_runs_again(start: Starter, name: str) -> None:
    target, key = start(name), new_key()
    killed_in_mid_handler(target, "/slow-rerun", key)
    target.go(key)
    told = once_lapsed(target, "/slow-rerun", key)
    assert told.status_code == 201
    assert target.post("/slow-rerun", key).content == told.content
    assert target.executions(key) == 2


@pytest.mark.parametrize("abrupt", [False, True], ids=["closed", "reset"])
def test_a_client_that_leaves_does_not_stop_the_work(target: Target, abrupt: bool) -> None:
    """A bug of similar packages: a cancelled request released its key after the effect."""
    key = new_key()
    connection = target.connect()
    connection.sendall(slow_request("/slow", key))
    target.began(key)
    if abrupt:
        connection.setsockopt(SOL_SOCKET, SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()
    busy = target.post("/slow", key)
    target.go(key)
    told = once_lapsed(target, "/slow", key)
    assert busy.status_code == 409
    assert told.status_code == 201
    assert told.headers["idempotent-replayed"] == "true"
    assert target.executions(key) == 1


def test_a_handler_slower_than_its_lease_keeps_it(target: Target) -> None:
    """A bug of similar packages: a handler slower than the lease ran twice."""
    until(lambda: outlived_its_lease(target, new_key()), 300, "a machine that does not stand still for a while")


def outlived_its_lease(target: Target, key: str) -> bool:
    """False: the machine was stopped for so long that a heartbeat may have been late, so the test proves nothing."""
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(target.post, "/slow-kept", key)
        target.began(key)
        began = last = time.monotonic()
        while last < began + 1.3 * KEPT:
            told = pool.submit(target.post, "/slow-kept", key)  # a request that takes over is slow, too
            wait([told], KEPT / 4)
            time.sleep(KEPT / 30)
            now = time.monotonic()
            if now - last > KEPT / 4:
                target.go(key)
                return False
            assert told.result().status_code == 409
            last = now
        target.go(key)
        done = first.result()
    assert done.status_code == 201
    assert target.post("/slow-kept", key).content == done.content
    assert target.executions(key) == 1
    return True


def test_s23_a_slow_sender_holds_no_lease(target: Target) -> None:
    """Its body is not complete, so nothing is claimed: another request may use the key meanwhile."""
    key = new_key()
    with closing(target.connect()) as connection:
        connection.sendall(slow_request("/payments", key)[:-3])
        other = target.post("/payments", key, content=b'{"amount": 10}')
        connection.sendall(b"10}")
        told = b"".join(iter(lambda: connection.recv(65536), b""))
    assert other.status_code == 201
    assert b"idempotent-replayed: true" in told.lower(), "both had the same body: one ran, one got its answer"
    assert target.executions(key) == 1


class LockedFile:
    """An SQLite store that is "down": another writer holds the file for longer than any timeout."""

    def __init__(self, folder: Path) -> None:
        self._connection = sqlite3.connect(folder / "keys.db", isolation_level=None, check_same_thread=False)

    def down(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")

    def up(self) -> None:
        self._connection.execute("ROLLBACK")


@EACH
def test_store_down_on_arrival_nothing_runs_and_it_recovers(start: Starter, name: str) -> None:
    target, key = start(name, options="?timeout=0.2"), new_key()
    store = LockedFile(target.folder)
    store.down()
    told = target.post("/payments", key)
    assert is_problem(told, 503, "store-unavailable")
    assert told.json()["retry_same_key"] is True
    assert target.executions(key) == 0
    store.up()
    assert target.post("/payments", key).status_code == 201
    assert target.executions(key) == 1


@EACH
def test_store_down_at_completion_the_truth_is_told(start: Starter, name: str) -> None:
    """An answer that is not stored is not sent: the retry could get another one (I7)."""
    target, key = start(name, options="?timeout=0.2"), new_key()
    store = LockedFile(target.folder)
    with ThreadPoolExecutor(1) as pool:
        first = pool.submit(target.post, "/slow-lapsing", key)
        target.began(key)
        store.down()
        target.go(key)
        told = first.result()
    assert is_problem(told, 500, "outcome-unrecorded")
    assert told.json()["retry_same_key"] is True
    assert told.json()["safe_new_key"] is False
    store.up()
    after = once_lapsed(target, "/slow-lapsing", key)
    assert is_problem(after, 500, "outcome-unknown")
    assert target.executions(key) == 1
    assert target.post("/payments", new_key()).status_code == 201, "it works again without a restart"


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.store("sqlite")) for name in BARE])
def test_a_server_that_is_told_to_stop_lets_the_work_finish_or_says_so(start: Starter, name: str) -> None:
    """The lease is never leaked: after the restart the key has its answer, or its outcome is known to be unknown."""
    target, key = start(name), new_key()
    with closing(target.connect()) as connection:
        connection.sendall(slow_request("/slow-lapsing", key))
        target.began(key)
        assert target.process is not None
        target.process.send_signal(signal.SIGTERM)
        target.go(key)
        target.process.wait(60)
    target.stop()
    target.start()
    told = once_lapsed(target, "/slow-lapsing", key)
    assert (told.status_code, target.executions(key)) in ((201, 1), (500, 1))
    if told.status_code == 500:
        assert is_problem(told, 500, "outcome-unknown")


@pytest.mark.store("redis")
@pytest.mark.usefixtures("redis_url")  # fails with instructions if there is no such server
@pytest.mark.parametrize("name", ["uvicorn", "gunicorn"])
def test_a_real_store_that_dies_and_comes_back(start: Starter, name: str) -> None:
    """Killed on arrival and at completion; the application is not restarted."""
    store = ValkeyServer().start()
    try:
        target, key, arriving = start(name, url=store.url), new_key(), new_key()
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(target.post, "/slow-lapsing", key)
            target.began(key)
            store.kill()
            down = target.post("/payments", arriving)
            target.go(key)
            told = first.result()
        assert is_problem(down, 503, "store-unavailable")
        assert is_problem(told, 500, "outcome-unrecorded")
        store.resume()
        assert once_lapsed(target, "/payments", arriving).status_code == 201
        assert is_problem(once_lapsed(target, "/slow-lapsing", key), 500, "outcome-unknown")
        assert (target.executions(arriving), target.executions(key)) == (1, 1)
    finally:
        store.stop()
