"""The proxy of proxy.py for MongoDB's wire: every message is sixteen bytes of header, whose first four are the length
of the whole, and the body. `swallow` forwards a request and throws its answer away: that there was one proves that
the request was carried out.

The driver watches the server on connections of its own, by `hello`, and greets on every new one; those messages pass
unnumbered, so that the numbers are the same every time.
"""

from __future__ import annotations

import socket
from urllib.parse import urlsplit, urlunsplit

from tests.faults.proxy import Closed, Link, PostgresProxy

GREETINGS = (b"\x10hello\x00", b"\x10ismaster\x00", b"\x01hello\x00", b"\x10isMaster\x00", b"\x08helloOk\x00")

SESSION = b"\x03lsid\x00"
"""The store reads the clock by `hello`, too. Only that one has a session."""


class MongoProxy(PostgresProxy):
    def __init__(self, server_url: str) -> None:
        super().__init__(server_url)
        parts = urlsplit(self.url)
        # Straight to the proxy: by the name of the replica set the driver would find its way around it.
        query = "&".join(each for each in parts.query.split("&") if each and not each.startswith("replicaSet="))
        self.url = urlunsplit(parts._replace(query=f"{query}&directConnection=true".lstrip("&")))

    def passes(self, link: Link, message: bytes, to: socket.socket) -> bool:
        assert isinstance(link, MongoLink)
        up = to is link.server
        with self._lock:
            if link.swallowing:
                return True if up else self._cut(link)
            if up:
                asked = (
                    SESSION in message
                )  # the store reads the clock by `hello`, too; the driver's own have no session
                link.greeting = not asked and any(word in message[:200] for word in GREETINGS)
            if link.greeting:
                link.send(to, message)
                return True
            self.seen.append(">" if up else "<")
            if self._at == 0 or len(self.seen) != self._at:
                link.send(to, message)
                return True
            if self._side != "before":
                link.send(to, message)
            if self._side == "swallow":
                link.swallowing = True
                return True
            return self._cut(link)

    def link(self, client: socket.socket, server: socket.socket) -> Link:
        return MongoLink(self, client, server)


class MongoLink(Link):
    greeting = False
    """Whether the last request on it was the driver's own."""

    def _startup(self) -> None:
        """The first message is framed like everything else."""
        self._plain.set()

    def _message(self, source: socket.socket) -> bytes:
        head = self._exactly(source, 16)
        message = head + self._exactly(source, int.from_bytes(head[:4], "little") - 16)
        if self._proxy.mode() == "stall":
            self._gone.wait()  # both ends stay open and hear nothing
            raise Closed
        return message
