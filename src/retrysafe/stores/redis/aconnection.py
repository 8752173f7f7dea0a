"""redis-py's async connections, changed so that closing one never leaves its socket open.

A store may be closed, or its event loop may end, while a connection is being made. A TLS connection can be cancelled as
the handshake ends (inside asyncio) or during login (inside redis-py). It then sends its TLS shutdown and waits for the
answer. The event loop may end before that answer, and no code holds the transport any more. So this module starts TLS
on a transport that it keeps, and aborts the transport on every close. A caller that closes needs nothing more from the
server.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from typing import Any


def abort_transport(connection: Any) -> None:
    """Close the connection's socket in the next turn of the event loop, without waiting for the server."""
    writer = getattr(connection, "_writer", None)
    if writer is not None:
        writer.transport.abort()


async def begin_tls(
    raw: asyncio.WriteTransport, context: ssl.SSLContext, host: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Start TLS on a connection that has carried no data yet, and return its streams. A failure closes the
    connection."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        secure = await loop.start_tls(raw, protocol, context, server_hostname=host)
        if secure is None:  # asyncio returns None if our own side closed the connection meanwhile
            raise ConnectionAbortedError("the connection was closed while TLS began")
    except BaseException:
        raw.abort()
        raise
    protocol.connection_made(secure)
    return reader, asyncio.StreamWriter(secure, protocol, reader, loop)


class AbortOnDisconnect:
    """Mixin for one of redis-py's connection classes: `disconnect` aborts the transport first."""

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        abort_transport(self)
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]  # redis-py's class comes next


class AbortOnDisconnectTLS(AbortOnDisconnect):
    """The mixin for TLS. redis-py resolves the name and connects without TLS; then TLS starts on that transport."""

    host: str
    socket_connect_timeout: float | None
    _context: ssl.SSLContext
    _plain: asyncio.StreamWriter | None = None
    """The writer below TLS. It is kept because a writer that is garbage-collected closes its socket."""
    _reader: asyncio.StreamReader | None
    _writer: asyncio.StreamWriter | None

    def _connection_arguments(self) -> dict[str, Any]:
        arguments = dict(super()._connection_arguments())  # type: ignore[misc]  # redis-py's class comes next
        self._context = arguments.pop("ssl")
        return arguments

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            await super()._connect()  # type: ignore[misc]  # redis-py's class comes next
            assert self._writer is not None
            self._plain, self._reader, self._writer = self._writer, None, None
            self._reader, self._writer = await begin_tls(self._plain.transport, self._context, self.host)


@cache
def with_abort_on_disconnect(connection_class: type[Any]) -> type[Any]:
    """A subclass of this connection class that aborts its transport when it is closed."""
    from redis.asyncio import SSLConnection

    mixin = AbortOnDisconnectTLS if issubclass(connection_class, SSLConnection) else AbortOnDisconnect
    return type(f"{mixin.__name__}{connection_class.__name__}", (mixin, connection_class), {})
