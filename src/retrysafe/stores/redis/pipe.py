"""One connection that never waits for its turn: commands go out as they come, replies come back in their order.

When nothing is in flight a command is written at once; whatever else is asked in the same turn of the event loop goes
out in one write at its end, without waiting for the replies before it, and what one run of a script can do is one
command. So the calls that would have waited for each other share a script's run, a write, a read and (where the server
syncs its log once per turn) a commit. Among many callers a part of them goes out before the turn ends: were it one
write for all, server and client would take turns at being idle, each waiting for the other's whole batch.

The connection is redis-py's own: it resolves, connects, does TLS, logs in and selects the database. Then its transport
is given another protocol, and hiredis reads the replies; docs/decisions/0010-redis-wire.md says why and what it costs.
A caller that is cancelled leaves its reply to be read and dropped: nothing of it can reach the next.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from retrysafe.errors import StoreUnavailable
from retrysafe.stores.redis.aconnection import abort
from retrysafe.stores.redis.failures import unclear_error, unreachable_error
from retrysafe.stores.redis.packing import PackedOp, ScriptGroup, pack_script_run
from retrysafe.stores.redis.wire import Exchange, chunk_slices, encode_commands, split_replies

MAX_PENDING_OPS = 10_000
WRITES_PER_TURN, MIN_WRITE_OPS = 4, 16
"""How many writes share out everybody who waits; and the fewest operations that are worth one before the turn ends."""

_NOT_YET = object()
_CLOSED = "this store was closed"


def can_pipe(pool: Any) -> bool:
    """Whether hiredis is here and the pool's connections have the stream whose transport we speak on."""
    try:
        import hiredis  # noqa: F401
    except ImportError:
        return False
    return hasattr(pool.connection_class(**pool.connection_kwargs), "_writer")  # it connects to nothing by being made


class PendingOp:
    """One operation and the caller that waits for its reply."""

    __slots__ = ("future", "piece")

    def __init__(self, piece: PackedOp, future: asyncio.Future[Any]) -> None:
        self.piece = piece
        self.future = future


class ScriptBatch:
    """Operations that one run of a script does, in flight."""

    __slots__ = ("asked", "since")

    def __init__(self, asked: list[PendingOp], since: float) -> None:
        self.asked = asked
        self.since = since

    def deliver(self, reply: Any) -> int:
        """Hand out the reply; how many are served by it."""
        replies = split_replies(reply, len(self.asked), many=True)
        for asked, own in zip(self.asked, replies, strict=True):
            if not asked.future.done():
                asked.future.set_result(own)
        return len(replies)

    def futures(self) -> list[asyncio.Future[Any]]:
        return [asked.future for asked in self.asked]


class PendingCommands:
    """Commands of one caller, who waits for the replies to all of them."""

    __slots__ = ("data", "future", "missing", "replies", "since")

    def __init__(self, commands: Exchange, future: asyncio.Future[list[Any]]) -> None:
        self.data = encode_commands(commands)
        self.missing = len(commands)
        self.replies: list[Any] = []
        self.future = future
        self.since = 0.0

    def deliver(self, reply: Any) -> int:
        self.replies.append(reply)
        self.missing -= 1
        if self.missing:
            return 0
        if not self.future.done():
            self.future.set_result(self.replies)
        return 1

    def futures(self) -> list[asyncio.Future[Any]]:
        return [self.future]


async def abort_connection(connection: Any) -> None:
    """Close it at once. Over TLS a polite end waits for the other one's goodbye, and a loop that ends before it comes
    leaves the socket open; whoever closes here wants nothing more from the server."""
    abort(connection)
    await connection.disconnect(nowait=True)


def _heed_cancellation() -> None:
    """Before Python 3.12 `asyncio.wait_for`, by which drivers connect, loses one that comes as it succeeds."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Pipe:
    """Belongs to one event loop. Connects at first use, and again after it broke."""

    def __init__(self, pool: Any, arguments: tuple[str, ...], server: str) -> None:
        self._pool = pool
        self._arguments = arguments
        self._server = server
        self._timeout: float | None = pool.connection_kwargs.get("socket_timeout")
        self._unsent: deque[PendingOp | PendingCommands] = deque()
        self._sent: deque[ScriptBatch | PendingCommands] = deque()
        self._count = 0
        self._protocol: RespProtocol | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._connecting = self._scheduled = self._closed = False
        self._watch: asyncio.TimerHandle | None = None

    def ask(self, piece: PackedOp) -> asyncio.Future[Any]:
        """The reply to one operation; an error the server answered is a reply."""
        loop = self._check_capacity()
        future: asyncio.Future[Any] = loop.create_future()
        self._enqueue(PendingOp(piece, future), loop)
        return future

    def exchange(self, commands: Exchange) -> asyncio.Future[list[Any]]:
        """The replies to commands, in order."""
        loop = self._check_capacity()
        future: asyncio.Future[list[Any]] = loop.create_future()
        self._enqueue(PendingCommands(commands, future), loop)
        return future

    def _check_capacity(self) -> asyncio.AbstractEventLoop:
        if self._closed:
            raise StoreUnavailable(f"{_CLOSED}; open a new one")
        if self._count >= MAX_PENDING_OPS:
            raise StoreUnavailable(
                f"{MAX_PENDING_OPS} operations wait for {self._server} already; it is too slow for the load"
            )
        return asyncio.get_running_loop()

    def _enqueue(self, waiting: PendingOp | PendingCommands, loop: asyncio.AbstractEventLoop) -> None:
        self._count += 1
        self._unsent.append(waiting)
        if not self._scheduled:
            if self._sent:
                self._flush_soon(loop)
            else:
                self._flush()
        elif (
            len(self._unsent) >= MIN_WRITE_OPS
            and len(self._unsent) * WRITES_PER_TURN >= self._count
            and self._protocol is not None
        ):
            self._write(self._protocol.transport)

    def drop_connection(self) -> None:
        """Let go of this connection; the next command makes another."""
        if self._protocol is not None:
            self._protocol.fail(ConnectionError("it leads to a server that is no longer the primary"))

    async def aclose(self) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_unsent(ConnectionError(_CLOSED))  # those whose task was cancelled before its first step

    # Out ----------------------------------------------------------------------------------------

    def _flush_soon(self, loop: asyncio.AbstractEventLoop) -> None:
        self._scheduled = True
        loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._scheduled = False
        if self._protocol is None:
            self._connect_soon()
        elif self._unsent:
            self._write(self._protocol.transport)

    def _write(self, transport: asyncio.Transport) -> None:
        loop = asyncio.get_running_loop()
        now, data = loop.time(), []
        groups: dict[ScriptGroup, list[PendingOp]] = {}
        unsent, self._unsent = self._unsent, deque()
        for waiting in unsent:
            if waiting.future.done():  # its caller was cancelled: what was not sent need not be
                self._count -= 1
            elif isinstance(waiting, PendingOp):
                groups.setdefault(waiting.piece[0], []).append(waiting)
            else:
                waiting.since = now
                data.append(waiting.data)
                self._sent.append(waiting)
        for group, asked in groups.items():
            for some in chunk_slices([len(each.piece[2]) for each in asked]):
                data.append(pack_script_run(group, [each.piece for each in asked[some]]))
                self._sent.append(ScriptBatch(asked[some], now))
        if data:
            transport.write(data[0] if len(data) == 1 else b"".join(data))
            if self._watch is None and self._timeout is not None:
                self._watch = loop.call_at(now + self._timeout, self._check_overdue)

    def _connect_soon(self) -> None:
        if self._closed:
            self._fail_unsent(ConnectionError(_CLOSED))
        elif not self._connecting and self._unsent:
            self._connecting = True
            self._start(self._connect())

    def _start(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self) -> None:
        connection: Any = None
        try:
            connection = await self._pool.get_connection(*self._arguments)
            _heed_cancellation()
        except BaseException as error:
            self._connecting = False
            self._fail_unsent(error)
            if not isinstance(error, Exception):
                # The end of the store or of its loop.
                await (self._drop_idle() if connection is None else self._give_back(connection))
                raise
            return
        self._connecting = False
        self._protocol = ear = RespProtocol(self, connection._writer.transport)
        self._flush()
        # In this same task: one that is cancelled before its first step would never give the connection back.
        await self._hold_connection(connection, ear)

    async def _hold_connection(self, connection: Any, ear: RespProtocol) -> None:
        """Give the connection back when it broke, or when the store is closed or the event loop ends."""
        try:
            await ear.closed
        except BaseException as error:
            self.on_connection_lost(ear, error)
            raise
        finally:
            await self._give_back(connection)

    async def _give_back(self, connection: Any) -> None:
        await abort_connection(connection)
        await self._pool.release(connection)

    async def _drop_idle(self) -> None:
        """One that got half way is among those that wait in the pool. Those at work may be the application's."""
        for connection in getattr(self._pool, "_available_connections", ()):
            abort(connection)
        await self._pool.disconnect(inuse_connections=False)

    def _fail_unsent(self, error: BaseException) -> None:
        """No connection: nothing of what waits was sent."""
        waiting, self._unsent = self._unsent, deque()
        self._count -= len(waiting)
        for each in waiting:
            if not each.future.done():
                why = error if isinstance(error, Exception) else self._end()
                refused = unreachable_error(why, self._server)
                refused.__cause__ = error
                each.future.set_exception(refused)

    def _end(self) -> Exception:
        """Why a task of ours was cancelled."""
        return ConnectionError(_CLOSED if self._closed else "the event loop ended")

    # In -----------------------------------------------------------------------------------------

    def on_replies(self, replies: Any, push: Any) -> None:
        """Hand out what has come. Who is woken by it and asks again goes out in one write, right behind them."""
        sent = self._sent
        while (reply := replies.gets()) is not _NOT_YET:
            if isinstance(reply, push):
                continue
            if not sent:
                raise ConnectionError("the server sent a reply that nobody asked for")
            served = sent[0].deliver(reply)
            if served:
                sent.popleft()
                self._count -= served
        if not self._scheduled:
            self._flush_soon(asyncio.get_running_loop())

    def on_connection_lost(self, ear: RespProtocol, error: BaseException) -> None:
        """What was sent may have been done; what was not goes out on the next connection."""
        if self._protocol is not ear:
            return
        self._protocol = None
        sent, self._sent = self._sent, deque()
        why = error if isinstance(error, Exception) else self._end()
        futures = [future for each in sent for future in each.futures()]
        self._count -= len(futures)
        for future in futures:
            if not future.done():
                lost = unclear_error(why, self._server)
                lost.__cause__ = error
                future.set_exception(lost)
        if isinstance(error, Exception):
            self._connect_soon()
        else:
            self._fail_unsent(error)

    def _check_overdue(self) -> None:
        """A server that hangs is a server that is down: nobody waits for it longer than the connection's timeout."""
        self._watch = None
        if not self._sent or self._timeout is None or self._protocol is None:
            return
        loop = asyncio.get_running_loop()
        due = self._sent[0].since + self._timeout
        if loop.time() < due:
            self._watch = loop.call_at(due, self._check_overdue)
        else:
            self._protocol.fail(TimeoutError(f"no reply within {self._timeout:g} s"))


class RespProtocol(asyncio.Protocol):
    """Listens on one connection in redis-py's place."""

    def __init__(self, pipe: Pipe, transport: asyncio.Transport) -> None:
        import hiredis

        self.transport = transport
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._pipe = pipe
        self._replies = hiredis.Reader(notEnoughData=_NOT_YET)
        self._push = getattr(hiredis, "PushNotification", ())
        transport.set_protocol(self)

    def data_received(self, data: bytes) -> None:
        if self.closed.done():
            return
        try:
            self._replies.feed(data)
            self._pipe.on_replies(self._replies, self._push)
        except Exception as error:
            self.fail(error)

    def eof_received(self) -> None:
        self.fail(ConnectionError("the server closed the connection"))

    def connection_lost(self, error: Exception | None) -> None:
        self.fail(error or ConnectionError("the connection was closed"))

    def fail(self, error: Exception) -> None:
        """Nothing that comes after this is anybody's."""
        self._pipe.on_connection_lost(self, error)
        if not self.closed.done():
            self.closed.set_result(None)
        self.transport.abort()
