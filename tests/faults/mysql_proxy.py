"""The proxy of proxy.py for the wire of MySQL and MariaDB: every message, the greeting included, is three bytes of
length, one byte of sequence, and the body. `swallow` forwards a request and throws its answer away: the first message
of it proves that the first statement was carried out, and committed where each statement is.
"""

from __future__ import annotations

import socket

from tests.faults.proxy import Closed, Link, PostgresProxy

QUERY = b"\x03"


class MysqlProxy(PostgresProxy):
    def passes(self, link: Link, message: bytes, to: socket.socket) -> bool:
        up = to is link.server
        with self._lock:
            if link.swallowing:
                return True if up else self._cut(link)
            query = up and message[4:5] == QUERY
            self.seen.append(">Q" if query else ">" if up else "<")
            if self._at == 0 or len(self.seen) != self._at:
                link.send(to, message)
                return True
            if self._side != "before":
                link.send(to, message)
            if self._side == "swallow" and query:
                link.swallowing = True
                return True
            return self._cut(link)

    def link(self, client: socket.socket, server: socket.socket) -> Link:
        return MysqlLink(self, client, server)


SSL = 0x0800


class MysqlLink(Link):
    _greeted = False

    def _startup(self) -> None:
        """The server speaks first, framed like everything else."""
        self._plain.set()

    def _message(self, source: socket.socket) -> bytes:
        head = self._exactly(source, 4)
        message = head + self._exactly(source, int.from_bytes(head[:3], "little"))
        if source is self.server and not self._greeted:
            self._greeted = True
            message = without_tls(message)
        if self._proxy.mode() == "stall":
            self._gone.wait()  # both ends stay open and hear nothing
            raise Closed
        return message


def without_tls(greeting: bytes) -> bytes:
    """The server's greeting with its offer of encryption taken out: PyMySQL would take it, and nothing be readable.
    The version ends with a zero; a number, half of the challenge and a zero come before the capabilities."""
    at = greeting.index(0, 5) + 1 + 4 + 8 + 1
    flags = int.from_bytes(greeting[at : at + 2], "little") & ~SSL
    return greeting[:at] + flags.to_bytes(2, "little") + greeting[at + 2 :]
