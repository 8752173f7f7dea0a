"""Proxies that hold one message back until they are told to deliver it. Everything else passes at once."""

from __future__ import annotations

import socket
import threading

from tests.faults.proxy import DEADLINE, Closed, Link, PostgresProxy

READ = 65_536


class Holding(PostgresProxy):
    """`hold(n)`: the n-th message from now on waits for `deliver`, whichever way it goes, and all that comes after it:
    a heartbeat has another connection, and would keep the lease. `alone`: only those behind it on its own one wait."""

    def __init__(self, server_url: str) -> None:
        self.held = threading.Event()
        self._delivered = threading.Event()
        self._alone = False
        super().__init__(server_url)

    def hold(self, number: int, alone: bool = False) -> None:
        self._alone = alone
        self.held.clear()
        self._delivered.clear()
        self.cut_at(number, "before")

    def deliver(self) -> None:
        self._delivered.set()

    def passes(self, link: Link, message: bytes, to: socket.socket) -> bool:
        with self._lock:
            self.seen.append((">" if to is link.server else "<") + message[:1].decode("latin-1"))
            if len(self.seen) == self._at:
                self.held.set()
            waits = self.held.is_set() and (len(self.seen) == self._at or not self._alone)
        if waits:
            self._delivered.wait(2 * DEADLINE)
        link.send(to, message)
        return True


class RedisHolding(Holding):
    """A command, and a reply, is what was written at once: nobody here sends the next before the last was answered."""

    def link(self, client: socket.socket, server: socket.socket) -> Link:
        return RedisLink(self, client, server)


class RedisLink(Link):
    def _startup(self) -> None:
        self._plain.set()

    def _message(self, source: socket.socket) -> bytes:
        while True:
            try:
                piece = source.recv(READ)
            except TimeoutError:
                if self._gone.is_set():
                    raise Closed from None
                continue
            if not piece:
                raise Closed
            return piece


HOLDING = {"postgres": Holding, "redis": RedisHolding}
