"""Pipelining for the async store: all callers of an event loop share one connection, and replies come back in order.

When nothing is in flight, a command is written at once. Other commands of the same turn of the event loop go out in one
write at the end of the turn, without waiting for earlier replies. Operations that one run of a script can do become one
command; claims of one key are one operation. So concurrent calls share a script run, a write, a read and (if the server
syncs its log once per turn) a commit. With many callers, a part of the commands goes out before the turn ends. With a
single write for all, server and client would idle in turns, each waiting for the whole batch of the other.

The connection is redis-py's: redis-py resolves the name, connects, starts TLS, logs in and selects the database. Then
the transport gets our protocol, and hiredis parses the replies. docs/decisions/0010-redis-wire.md says why, and what
it costs. The reply to a cancelled caller is read and dropped, so it cannot reach another caller.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from retrysafe.core.ops import Claim, Op
from retrysafe.core.shared_claims import can_follow, share_reply
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import EXECUTE_INSTEAD
from retrysafe.stores.redis.aconnection import abort_transport
from retrysafe.stores.redis.failures import unclear_error, unreachable_error
from retrysafe.stores.redis.packing import PackedOp, ScriptGroup, pack_script_run
from retrysafe.stores.redis.wire import Exchange, chunk_slices, encode_commands, split_replies

MAX_PENDING_OPS = 10_000

WRITES_PER_TURN = 4
"""Into how many writes the pending operations are divided. A write before the end of a turn needs this share of
them."""

MIN_WRITE_OPS = 16
"""The fewest operations that justify a write before the turn ends."""

ReadReply = Callable[[Any, Any, bytes], Any]
"""Reads the reply to an operation from the server's response. The last argument is the last part of a PackedOp."""

_NOT_YET = object()
_CLOSED = "this store was closed"


def can_pipe(pool: Any) -> bool:
    """True if hiredis is installed and the pool's connections have the stream writer whose transport the pipe uses."""
    try:
        import hiredis  # noqa: F401
    except ImportError:
        return False
    return hasattr(pool.connection_class(**pool.connection_kwargs), "_writer")  # creating it does not connect


NOBODY: list[Any] = []
"""The followers of an operation that has none, shared by all of them and never changed."""


class PendingOp:
    """One operation and the caller that waits for its reply."""

    __slots__ = ("followers", "future", "op", "packed", "read")

    def __init__(self, op: Op[Any], packed: PackedOp, read: ReadReply, future: asyncio.Future[Any]) -> None:
        self.followers: list[PendingOp] = NOBODY
        """Claims of the same key that this one's reply answers (core/shared_claims.py)."""
        self.op = op
        self.packed = packed
        self.read = read
        self.future = future

    def deliver(self, response: Any) -> None:
        """Give the caller its reply, and each follower its share. After an error nothing was done: the server refused
        the operation."""
        reply: Any = EXECUTE_INSTEAD
        if not isinstance(response, Exception) and (self.followers or not self.future.done()):
            try:
                reply = self.read(self.op, response, self.packed[3])
            except Exception as error:  # a record that cannot be read is its caller's concern, not the connection's
                if not self.future.done():
                    self.future.set_exception(error)
        if not self.future.done():
            self.future.set_result(reply)
        for follower in self.followers:
            shared = None if reply is EXECUTE_INSTEAD else share_reply(follower.op, reply)  # type: ignore[arg-type]
            if not follower.future.done():
                follower.future.set_result(EXECUTE_INSTEAD if shared is None else shared)


class ScriptBatch:
    """Operations in flight that share one run of a script."""

    __slots__ = ("operations", "since")

    def __init__(self, operations: list[PendingOp], since: float) -> None:
        self.operations = operations
        self.since = since

    def deliver(self, reply: Any) -> int:
        """Give each operation its part of the reply. Returns how many operations are finished."""
        replies = split_replies(reply, len(self.operations), many=True)
        finished = 0
        for operation, own in zip(self.operations, replies, strict=True):
            operation.deliver(own)
            finished += 1 + len(operation.followers)
        return finished

    def futures(self) -> list[asyncio.Future[Any]]:
        return [each.future for operation in self.operations for each in (operation, *operation.followers)]


class PendingCommands:
    """Commands of one caller that waits for the replies to all of them."""

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
    """Close a connection at once. A regular TLS shutdown waits for the server, and an event loop that ends before the
    server answers leaves the socket open. A caller that closes needs nothing more from the server."""
    abort_transport(connection)
    await connection.disconnect(nowait=True)


def _raise_if_cancelled() -> None:
    """Raise a cancellation that `asyncio.wait_for` lost. Drivers connect with `wait_for`; before Python 3.12 it drops a
    cancellation that arrives just as the connect succeeds."""
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class Pipe:
    """The shared connection. Belongs to one event loop. Connects at first use, and again after the connection broke."""

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
        self._overdue_timer: asyncio.TimerHandle | None = None

    def submit(self, op: Op[Any], packed: PackedOp, read: ReadReply) -> asyncio.Future[Any]:
        """Enqueue one operation; the future gets its reply as `read` reads it, or EXECUTE_INSTEAD if the server refused
        it."""
        ready = not self._closed and self._count < MAX_PENDING_OPS
        loop = asyncio.get_running_loop() if ready else self._check_capacity()
        future: asyncio.Future[Any] = loop.create_future()
        self._enqueue(PendingOp(op, packed, read, future), loop)
        return future

    def exchange(self, commands: Exchange) -> asyncio.Future[list[Any]]:
        """Enqueue commands; the future gets their replies, in order."""
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

    def _enqueue(self, pending: PendingOp | PendingCommands, loop: asyncio.AbstractEventLoop) -> None:
        self._count += 1
        self._unsent.append(pending)
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
        """Close this connection. The next command makes another."""
        if self._protocol is not None:
            self._protocol.fail(ConnectionError("the server is no longer the primary"))

    async def aclose(self) -> None:
        self._closed = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._fail_unsent(ConnectionError(_CLOSED))  # for a connect task that was cancelled before its first step

    # Writing ------------------------------------------------------------------------------------

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
        leaders: dict[bytes, PendingOp] = {}
        unsent, self._unsent = self._unsent, deque()
        for pending in unsent:
            if pending.future.done():  # its caller was cancelled before it was sent
                self._count -= 1
            elif isinstance(pending, PendingOp):
                if type(pending.op) is Claim:
                    leader = leaders.setdefault(pending.op.id, pending)
                    if leader is not pending and can_follow(pending.op, leader.op):  # type: ignore[arg-type]  # a Claim
                        if leader.followers is NOBODY:
                            leader.followers = []
                        leader.followers.append(pending)
                        continue
                groups.setdefault(pending.packed[0], []).append(pending)
            else:
                pending.since = now
                data.append(pending.data)
                self._sent.append(pending)
        for group, operations in groups.items():
            for chunk in chunk_slices([len(each.packed[2]) for each in operations]):
                data.append(pack_script_run(group, [each.packed for each in operations[chunk]]))
                self._sent.append(ScriptBatch(operations[chunk], now))
        if data:
            transport.write(data[0] if len(data) == 1 else b"".join(data))
            if self._overdue_timer is None and self._timeout is not None:
                self._overdue_timer = loop.call_at(now + self._timeout, self._check_overdue)

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
            _raise_if_cancelled()
        except BaseException as error:
            self._connecting = False
            self._fail_unsent(error)
            if not isinstance(error, Exception):
                # The store is closed or its event loop ends.
                await (self._drop_idle() if connection is None else self._release(connection))
                raise
            return
        self._connecting = False
        self._protocol = protocol = RespProtocol(self, connection._writer.transport)
        self._flush()
        # In this same task: a new task could be cancelled before its first step and never release the connection.
        await self._hold_connection(connection, protocol)

    async def _hold_connection(self, connection: Any, protocol: RespProtocol) -> None:
        """Release the connection when it broke, when the store is closed, or when the event loop ends."""
        try:
            await protocol.closed
        except BaseException as error:
            self.on_connection_lost(protocol, error)
            raise
        finally:
            await self._release(connection)

    async def _release(self, connection: Any) -> None:
        await abort_connection(connection)
        await self._pool.release(connection)

    async def _drop_idle(self) -> None:
        """Close the pool's idle connections: a half-made connection is among them. Connections in use may belong to the
        application and stay open."""
        for connection in getattr(self._pool, "_available_connections", ()):
            abort_transport(connection)
        await self._pool.disconnect(inuse_connections=False)

    def _fail_unsent(self, error: BaseException) -> None:
        """Fail what was not sent: there is no connection, so nothing was done."""
        unsent, self._unsent = self._unsent, deque()
        self._count -= len(unsent)
        for each in unsent:
            if not each.future.done():
                why = error if isinstance(error, Exception) else self._cancel_reason()
                refused = unreachable_error(why, self._server)
                refused.__cause__ = error
                each.future.set_exception(refused)

    def _cancel_reason(self) -> Exception:
        """Why a task of this pipe was cancelled."""
        return ConnectionError(_CLOSED if self._closed else "the event loop ended")

    # Reading ------------------------------------------------------------------------------------

    def on_replies(self, replies: Any, push: Any) -> None:
        """Deliver the replies that have arrived, and schedule a flush. Callers that this wakes may send again in the
        same turn; their commands go out in one write at its end."""
        sent = self._sent
        while (reply := replies.gets()) is not _NOT_YET:
            if isinstance(reply, push):
                continue
            if not sent:
                raise ConnectionError("the server sent a reply without a request")
            finished = sent[0].deliver(reply)
            if finished:
                sent.popleft()
                self._count -= finished
        if not self._scheduled:
            self._flush_soon(asyncio.get_running_loop())

    def on_connection_lost(self, protocol: RespProtocol, error: BaseException) -> None:
        """Fail what was sent as unclear. What was not sent goes out on the next connection."""
        if self._protocol is not protocol:
            return
        self._protocol = None
        sent, self._sent = self._sent, deque()
        why = error if isinstance(error, Exception) else self._cancel_reason()
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
        """Close the connection if its oldest request has had no reply for longer than the socket timeout."""
        self._overdue_timer = None
        if not self._sent or self._timeout is None or self._protocol is None:
            return
        loop = asyncio.get_running_loop()
        due = self._sent[0].since + self._timeout
        if loop.time() < due:
            self._overdue_timer = loop.call_at(due, self._check_overdue)
        else:
            self._protocol.fail(TimeoutError(f"no reply within {self._timeout:g} s"))


class RespProtocol(asyncio.Protocol):
    """The asyncio protocol of one connection, in the place of redis-py's: hiredis parses what arrives."""

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
        """Fail every pending request, mark the connection closed and abort the transport. Bytes that still arrive are
        ignored."""
        self._pipe.on_connection_lost(self, error)
        if not self.closed.done():
            self.closed.set_result(None)
        self.transport.abort()
