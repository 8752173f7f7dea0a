"""The HTTP publisher's timeout is for the whole delivery, whatever the other side does with its bytes."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest

from retrysafe.errors import UsageError
from retrysafe.worker.deadline import Deadline, run_within
from retrysafe.worker.publishers import DeliveryFailed, HttpPublisher
from tests.worker.test_enqueuer import job

TIMEOUT = 0.4
MUCH_LATER = 20.0
"""Seconds: a delivery that took so long was held. The time-out is a fraction of it, and a busy machine has the rest."""
ROUNDS = int(2 * MUCH_LATER / (TIMEOUT / 8))
"""After these the server leaves by itself, so that a publisher without a deadline fails its test and ends."""

Talk = Callable[[socket.socket, threading.Event], None]


def drip(*, after: bytes, endless: bytes) -> Talk:
    """A server that sends a byte every now and then, each well within the time-out."""

    def talk(peer: socket.socket, over: threading.Event) -> None:
        peer.recv(65_536)
        peer.sendall(after)
        for _ in range(ROUNDS):
            if over.wait(TIMEOUT / 8):
                return
            peer.sendall(endless)

    return talk


def never_read(peer: socket.socket, over: threading.Event) -> None:
    over.wait(2 * MUCH_LATER)


def swallow_slowly(peer: socket.socket, over: threading.Event) -> None:
    for _ in range(ROUNDS):
        if over.wait(TIMEOUT / 8):
            return
        peer.recv(1000)


@contextmanager
def server(talk: Talk) -> Iterator[int]:
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            peer, _ = listening.accept()
            with peer:
                peer.settimeout(60)
                with suppress(OSError):  # the publisher hung up, as it should
                    talk(peer, over)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        try:
            yield listening.getsockname()[1]
        finally:
            over.set()
            thread.join(60)


TALKS = {
    "status": drip(after=b"HTTP/1.1 2", endless=b"0"),
    "headers": drip(after=b"HTTP/1.1 200 OK\r\nx: ", endless=b"y"),
    "body": drip(after=b"HTTP/1.1 200 OK\r\ncontent-length: 60000\r\n\r\n", endless=b"z"),
    "chunks": drip(after=b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n", endless=b"1\r\nz\r\n"),
    "handshake": drip(after=b"\x16\x03\x03\x40\x00", endless=b"\x02"),
    "never reads": never_read,
    "swallows slowly": swallow_slowly,
}


@pytest.mark.parametrize("how", TALKS)
def test_a_server_that_drips_does_not_hold_the_worker(how: str) -> None:
    scheme = "https" if how == "handshake" else "http"
    large = job(1)._replace(payload=b"x" * 30_000_000) if "reads" in how or "slowly" in how else job(1)
    with server(TALKS[how]) as port:
        publish = HttpPublisher(f"{scheme}://127.0.0.1:{port}/", allow_private=True, timeout=TIMEOUT)
        began = time.monotonic()
        with pytest.raises(DeliveryFailed):
            publish(large)
        assert time.monotonic() - began < MUCH_LATER


def test_a_name_that_nobody_looks_up_does_not_hold_it_either() -> None:
    free = threading.Event()

    def look_up(host: str, port: int) -> list[str]:
        free.wait(60)
        return ["127.0.0.1"]

    publish = HttpPublisher("http://slow.example/", allow_private=True, timeout=0.05, resolve=look_up)
    with pytest.raises(DeliveryFailed, match=r"slow\.example cannot be found: it took longer than 0\.05 s"):
        publish(job(1))
    free.set()


def test_a_deadline_counts_from_its_beginning() -> None:
    now = [100.0]
    deadline = Deadline(10, lambda: now[0])
    now[0] += 4
    assert deadline.remaining() == 6
    now[0] += 6
    with pytest.raises(TimeoutError, match="longer than 10 s"):
        deadline.remaining()


def test_what_is_raised_within_a_deadline_is_raised() -> None:
    assert run_within(Deadline(60), lambda: 7) == 7
    with pytest.raises(socket.gaierror):
        run_within(Deadline(60), lambda: (_ for _ in ()).throw(socket.gaierror("no such name")))


@pytest.mark.parametrize("timeout", [0, -1, float("nan"), None, True])
def test_a_timeout_that_is_none_is_refused(timeout: float) -> None:
    with pytest.raises(UsageError, match="timeout"):
        HttpPublisher("https://example.com/", timeout=timeout)
