"""A TCP proxy that understands PostgreSQL's framing, and breaks the connection exactly where a test says.

After the startup phase every message is one byte of type and four bytes of length, in both directions. The proxy
forwards whole messages one by one and numbers them, whichever way they go: `count` tells how many an operation
takes, `cut_at(n, side)` breaks the connection at the n-th from now on.

- `before`: message n is not forwarded; both ends see the connection go.
- `after`: message n is forwarded, then the connection goes. Whether the server still acts on it is up to the race.
- `swallow`: message n is forwarded, the server answers to the end, and nobody ever sees that answer.

`on_cut` is called at that very point, before anything is closed: a test that kills the server does it there.
Raw modes break the stream below the level of messages: `stall` (nothing moves any more, nothing is closed),
`reset` (RST instead of FIN), `trickle` (one byte at a time).
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import Literal
from urllib.parse import urlsplit, urlunsplit

Side = Literal["before", "after", "swallow"]
Raw = Literal["", "stall", "reset", "trickle"]

SSL_REQUEST = 80877103
GSS_REQUEST = 80877104
READY_FOR_QUERY = b"Z"
TICK = 0.05
DEADLINE = 30.0


class Closed(Exception):
    """One of the ends is gone."""


class PostgresProxy:
    """Listens on a port of its own; `url` is the server's URL through it."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        assert parts.hostname is not None
        assert parts.port is not None
        self._server = (parts.hostname, parts.port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        port = self._listener.getsockname()[1]
        user = parts.netloc.rpartition("@")[0]
        self.url = urlunsplit(parts._replace(netloc=f"{user + '@' if user else ''}127.0.0.1:{port}"))
        self.seen: list[str] = []
        """The types of the messages since the last `count` or `cut_at`: `>P` goes to the server, `<Z` to the client."""
        self._done = threading.Event()
        self._lock = threading.RLock()
        self._at = 0
        self._side: Side = "before"
        self._on_cut: Callable[[], None] = _nothing
        self._raw: Raw = ""
        self._links: set[Link] = set()
        self._closing = False
        threading.Thread(target=self._accept, name="proxy", daemon=True).start()

    # What tests say -------------------------------------------------------------------------------

    def count(self) -> None:
        """Forward everything and number it from 1."""
        self.cut_at(0, "before")

    def cut_at(self, number: int, side: Side, on_cut: Callable[[], None] | None = None) -> None:
        with self._lock:
            self.seen = []
            self._done.clear()
            self._at, self._side, self._on_cut = number, side, on_cut or _nothing

    def was_cut(self) -> bool:
        """Whether the cut has happened, `on_cut` included. A client that was told everything may be ahead of it."""
        return self._done.wait(DEADLINE)

    def raw(self, mode: Raw) -> None:
        """From the next bytes on. Back to "" lets new connections through; stalled ones stay stalled."""
        with self._lock:
            self._raw = mode
            links = list(self._links)
        if mode == "reset":
            for link in links:
                link.reset()

    def close(self) -> None:
        self._closing = True
        self._listener.close()
        with self._lock:
            links = list(self._links)
        for link in links:
            link.close()

    # What links ask -------------------------------------------------------------------------------

    def mode(self) -> Raw:
        return self._raw

    def passes(self, link: Link, message: bytes, to: socket.socket) -> bool:
        """Forward a message, or cut the connection. One at a time, so that the numbering has an order."""
        up = to is link.server
        with self._lock:
            if link.swallowing:
                return self._swallowed(link, message, up)
            self.seen.append((">" if up else "<") + message[:1].decode("latin-1"))
            if self._at == 0 or len(self.seen) != self._at:
                link.send(to, message)
                return True
            if self._side != "before":
                link.send(to, message)
            if self._side == "swallow" and up and message[:1] in (b"S", b"Q"):
                link.swallowing = True
                return True
            return self._cut(link)

    def _swallowed(self, link: Link, message: bytes, up: bool) -> bool:
        return True if up or message[:1] != READY_FOR_QUERY else self._cut(link)

    def _cut(self, link: Link) -> bool:
        on_cut, self._on_cut, self._at = self._on_cut, _nothing, 0
        try:
            on_cut()
            link.close()
        finally:
            self._done.set()
        return False

    def link(self, client: socket.socket, server: socket.socket) -> Link:
        return Link(self, client, server)

    def forget(self, link: Link) -> None:
        with self._lock:
            self._links.discard(link)

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._server, timeout=5)
            except OSError:
                client.close()
                continue
            link = self.link(client, server)
            with self._lock:
                self._links.add(link)
            link.start()


class Link:
    """One client's connection and its continuation to the server."""

    def __init__(self, proxy: PostgresProxy, client: socket.socket, server: socket.socket) -> None:
        self._proxy = proxy
        self._client = client
        self.server = server
        self._plain = threading.Event()
        self._gone = threading.Event()
        self.swallowing = False
        for end in (client, server):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            # A thread that sits in recv keeps the socket alive, and with it the RST that close() should send.
            end.settimeout(TICK)

    def start(self) -> None:
        for pump in (self._up, self._down):
            threading.Thread(target=self._pumped, args=(pump,), name=f"proxy{pump.__name__}", daemon=True).start()

    def close(self) -> None:
        self._gone.set()
        self._plain.set()
        for end in (self._client, self.server):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
            end.close()
        self._proxy.forget(self)

    def reset(self) -> None:
        """RST: what a crashed peer or a firewall sends."""
        self._gone.set()
        self._plain.set()
        for end in (self._client, self.server):
            with suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self._client.close()
        self.server.close()
        self._proxy.forget(self)

    def _pumped(self, pump: Callable[[], None]) -> None:
        try:
            pump()
        except (Closed, OSError):
            self.close()

    def _up(self) -> None:
        self._startup()
        while True:
            message = self._message(self._client)
            if not self._proxy.passes(self, message, self.server):
                return

    def _down(self) -> None:
        self._plain.wait()
        while True:
            message = self._message(self.server)
            if not self._proxy.passes(self, message, self._client):
                return

    def _startup(self) -> None:
        """Requests for encryption are answered with one bare byte, `N` from our server; then the plain startup."""
        while True:
            head = self._exactly(self._client, 8)
            length, code = struct.unpack("!ii", head)
            self.server.sendall(head + self._exactly(self._client, length - 8))
            if code not in (SSL_REQUEST, GSS_REQUEST):
                self._plain.set()
                return
            self._client.sendall(self._exactly(self.server, 1))

    def send(self, to: socket.socket, message: bytes) -> None:
        step = 1 if self._proxy.mode() == "trickle" else len(message)
        with suppress(OSError):  # the other end left first; our own read will say so
            for place in range(0, len(message), step):
                to.sendall(message[place : place + step])

    def _message(self, source: socket.socket) -> bytes:
        head = self._exactly(source, 5)
        (length,) = struct.unpack("!i", head[1:])
        message = head + self._exactly(source, length - 4)
        if self._proxy.mode() == "stall":
            self._gone.wait()  # both ends stay open and hear nothing
            raise Closed
        return message

    def _exactly(self, source: socket.socket, size: int) -> bytes:
        found = bytearray()
        while len(found) < size:
            try:
                piece = source.recv(size - len(found))
            except TimeoutError:
                if self._gone.is_set():
                    raise Closed from None
                continue
            if not piece:
                raise Closed
            found += piece
        return bytes(found)


def _nothing() -> None:
    """No test wants to know."""
