"""redis-py's connections, with an end that leaves nothing open, whenever it comes.

A store may be closed, or its event loop may end, while it connects. Over TLS a connection that is cancelled as the
handshake ends (by asyncio) or while it logs in (by redis-py) says goodbye politely and waits for an answer that the
loop may not live to see; nobody has its transport in hand by then. So here TLS begins on a transport that we keep, and
every end is an immediate one: whoever ends wants nothing more from the server.
"""

from __future__ import annotations

import asyncio
import ssl
from functools import cache
from typing import Any


def abort(connection: Any) -> None:
    """Close its socket in the next turn of the loop, whatever the other side does."""
    writer = getattr(connection, "_writer", None)
    if writer is not None:
        writer.transport.abort()


async def begin_tls(
    raw: asyncio.WriteTransport, context: ssl.SSLContext, host: str
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Streams over TLS on a connection on which nothing was said yet. If they cannot be had, it is closed."""
    loop = asyncio.get_running_loop()
    reader = asyncio.StreamReader(loop=loop)
    protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
    try:
        secure = await loop.start_tls(raw, protocol, context, server_hostname=host)
        if secure is None:  # what asyncio says where our own side closed meanwhile
            raise ConnectionAbortedError("the connection was closed while TLS began")
    except BaseException:
        raw.abort()
        raise
    protocol.connection_made(secure)
    return reader, asyncio.StreamWriter(secure, protocol, reader, loop)


class Prompt:
    """Goes before one of redis-py's kinds of connection."""

    async def disconnect(self, *args: Any, **kwargs: Any) -> None:
        abort(self)
        await super().disconnect(*args, **kwargs)  # type: ignore[misc]  # redis-py's comes next


class PromptTLS(Prompt):
    """First connects as if there were no TLS: resolving names and the socket's options stay redis-py's."""

    host: str
    socket_connect_timeout: float | None
    _context: ssl.SSLContext
    _plain: asyncio.StreamWriter | None = None
    """What is under TLS. Kept, because a writer that is collected closes its socket."""
    _reader: asyncio.StreamReader | None
    _writer: asyncio.StreamWriter | None

    def _connection_arguments(self) -> dict[str, Any]:
        arguments = dict(super()._connection_arguments())  # type: ignore[misc]  # redis-py's comes next
        self._context = arguments.pop("ssl")
        return arguments

    async def _connect(self) -> None:
        async with asyncio.timeout(self.socket_connect_timeout):
            await super()._connect()  # type: ignore[misc]  # redis-py's comes next
            assert self._writer is not None
            self._plain, self._reader, self._writer = self._writer, None, None
            self._reader, self._writer = await begin_tls(self._plain.transport, self._context, self.host)


@cache
def prompt(kind: type[Any]) -> type[Any]:
    """This kind of connection with an end that leaves nothing open."""
    from redis.asyncio import SSLConnection

    before = PromptTLS if issubclass(kind, SSLConnection) else Prompt
    return type(f"{before.__name__}{kind.__name__}", (before, kind), {})
