"""One connection that never waits for its turn: commands go out as they come, replies come back in their order.

When nothing is in flight a command is written at once; whatever else is asked in the same turn of the event loop goes
out in one write at its end, without waiting for the replies before it. So the calls that would have waited for each
other share a write, a read and (where the server syncs its log once per turn) a commit.

The connection is redis-py's own: it resolves, connects, does TLS, logs in and selects the database. Only its two
streams are used past it, and hiredis reads the replies; docs/decisions/0010-redis-wire.md says why and what it costs.
A caller that is cancelled leaves its reply to be read and dropped: nothing of it can reach the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.redis.failures import unclear, unreachable
from retrysafe.stores.redis.wire import Exchange, packed

LIMIT = 10_000
CHUNK = 1 << 18
_NOT_YET = object()


def possible(pool: Any) -> bool:
    """Whether hiredis is here and the pool's connections have the streams we speak on."""
    try:
        import hiredis  # noqa: F401
    except ImportError:
        return False
    probe = pool.connection_class(**pool.connection_kwargs)  # it connects to nothing by being made
    return hasattr(probe, "_reader") and hasattr(probe, "_writer")


class Waiting:
    """Commands that go together, and the caller that waits for all their replies."""

    __slots__ = ("count", "data", "future", "replies", "since")

    def __init__(self, commands: Exchange, future: asyncio.Future[list[Any]], since: float) -> None:
        self.data = packed(commands)
        self.count = len(commands)
        self.replies: list[Any] = []
        self.future = future
        self.since = since


class Pipe:
    """Belongs to one event loop. Connects at first use, and again after it broke."""

    def __init__(self, pool: Any, arguments: tuple[str, ...], server: str) -> None:
        self._pool = pool
        self._arguments = arguments
        self._server = server
        self._timeout: float | None = pool.connection_kwargs.get("socket_timeout")
        self._unsent: deque[Waiting] = deque()
        self._sent: deque[Waiting] = deque()
        self._connection: Any = None
        self._writer: asyncio.StreamWriter | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = self._scheduled = self._closed = False
        self._watch: asyncio.TimerHandle | None = None

    def exchange(self, commands: Exchange) -> asyncio.Future[list[Any]]:
        """The replies, in order; an error the server answered is a reply."""
        if self._closed:
            raise StoreUnavailable("this store was closed; open a new one")
        if len(self._unsent) + len(self._sent) >= LIMIT:
            raise StoreUnavailable(f"{LIMIT} operations wait for {self._server} already; it is too slow for the load")
        loop = asyncio.get_running_loop()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._unsent.append(Waiting(commands, future, loop.time()))
        if not self._sent and not self._scheduled:
            self._flush()
        elif not self._scheduled:
            self._scheduled = True
            loop.call_soon(self._flush)
        return future

    async def aclose(self) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    # Out ----------------------------------------------------------------------------------------

    def _flush(self) -> None:
        self._scheduled = False
        if self._writer is None:
            return self._connect_soon()
        data = []
        while self._unsent:
            waiting = self._unsent.popleft()
            if not waiting.future.done():  # its caller was cancelled: what was not sent need not be
                data.append(waiting.data)
                self._sent.append(waiting)
        if data:
            self._writer.write(data[0] if len(data) == 1 else b"".join(data))
            if self._watch is None and self._timeout is not None:
                self._watch = asyncio.get_running_loop().call_later(self._timeout, self._look_after)
        return None

    def _connect_soon(self) -> None:
        if not self._connecting and self._unsent:
            self._connecting = True
            self._start(self._connect())

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        try:
            connection = await self._pool.get_connection(*self._arguments)
        except BaseException as error:
            self._connecting = False
            self._refuse(error)
            if not isinstance(error, Exception):
                raise
            return
        self._connecting = False
        self._connection, self._writer = connection, connection._writer
        self._start(self._read(connection))
        self._flush()

    def _refuse(self, error: BaseException) -> None:
        """No connection: nothing of what waits was sent."""
        waiting, self._unsent = self._unsent, deque()
        for each in waiting:
            if not each.future.done():
                why = error if isinstance(error, Exception) else ConnectionError("the event loop ended")
                refused = unreachable(why, self._server)
                refused.__cause__ = error
                each.future.set_exception(refused)

    # In -----------------------------------------------------------------------------------------

    async def _read(self, connection: Any) -> None:
        import hiredis

        replies = hiredis.Reader(notEnoughData=_NOT_YET)
        push = getattr(hiredis, "PushNotification", ())
        try:
            while True:
                data = await connection._reader.read(CHUNK)
                if not data:
                    raise ConnectionError("the server closed the connection")
                replies.feed(data)
                while (reply := replies.gets()) is not _NOT_YET:
                    if not isinstance(reply, push):
                        self._answer(reply)
        except BaseException as error:
            self._break(connection, error)
            await connection.disconnect(nowait=True)
            await self._pool.release(connection)
            if not isinstance(error, Exception):
                raise

    def _answer(self, reply: Any) -> None:
        if not self._sent:
            raise ConnectionError("the server sent a reply that nobody asked for")
        waiting = self._sent[0]
        waiting.replies.append(reply)
        if len(waiting.replies) == waiting.count:
            self._sent.popleft()
            if not waiting.future.done():
                waiting.future.set_result(waiting.replies)

    def _break(self, connection: Any, error: BaseException) -> None:
        """What was sent may have been done; what was not goes out on the next connection."""
        if self._connection is not connection:
            return
        self._connection = self._writer = None
        sent, self._sent = self._sent, deque()
        why = error if isinstance(error, Exception) else ConnectionError("the event loop ended")
        for each in sent:
            if not each.future.done():
                lost = unclear(why, self._server)
                lost.__cause__ = error
                each.future.set_exception(lost)
        if isinstance(error, Exception):
            self._connect_soon()
        else:
            self._refuse(error)

    def _look_after(self) -> None:
        """A server that hangs is a server that is down: nobody waits for it longer than the connection's timeout."""
        self._watch = None
        if not self._sent or self._timeout is None:
            return
        loop = asyncio.get_running_loop()
        due = self._sent[0].since + self._timeout
        if loop.time() < due:
            self._watch = loop.call_at(due, self._look_after)
            return
        connection = self._connection
        self._break(connection, TimeoutError(f"no reply within {self._timeout:g} s"))
        connection._writer.close()  # ends its reader, which gives the connection back
