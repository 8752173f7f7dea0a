"""What a driver leaves behind, and would be told to the test that happens to run when it is collected.

pymongo 4.19 forgets the socket of a monitor that is cancelled while it connects: of 300 clients that were closed within
20 ms of their opening, 110 left one open. Only its sockets are treated so; one that we forget to close ourselves fails
a test, as it should.
"""

from __future__ import annotations

import asyncio
import socket
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

from pymongo import pool_shared
from pymongo.network_layer import PyMongoProtocol


def clear_up() -> None:
    """From now on pymongo's sockets end without a word: those with a transport when their event loop closes."""
    pool_shared.socket = SimpleNamespace(**{**vars(socket), "socket": _Quiet})  # type: ignore[assignment]
    connection_made = PyMongoProtocol.connection_made

    def remembering(self: PyMongoProtocol, transport: Any) -> None:
        connection_made(self, transport)
        _of(asyncio.get_running_loop()).add(transport)

    PyMongoProtocol.connection_made = remembering  # type: ignore[method-assign]


class _Quiet(socket.socket):
    def __del__(self) -> None:
        self.close()


def _of(loop: Any) -> WeakSet[Any]:
    """The transports of this loop."""
    known: WeakSet[Any] | None = getattr(loop, "_left_by_pymongo", None)
    if known is None:
        known = loop._left_by_pymongo = WeakSet()
        loop.close = _Closing(loop.close, known)
    return known


class _Closing:
    def __init__(self, close: Any, transports: WeakSet[Any]) -> None:
        self._close = close
        self._transports = transports

    def __call__(self) -> None:
        for transport in list(self._transports):
            if transport._sock is not None:
                transport._sock.close()
                transport._sock = None
        self._close()
