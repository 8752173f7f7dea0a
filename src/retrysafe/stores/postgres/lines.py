"""Lines: connections of a pool, with what a store keeps for each of them.

Taking a connection from psycopg's pool and giving it back costs as much as a small batch. So a store that owns its pool
keeps up to MAX_KEPT_LINES connections between operations. A line goes back to the pool when its transaction has not
ended, when it was kept for MAX_KEPT_SECONDS (the pool replaces connections that are too old), when the pool was
drained, and when another caller waits for a connection. A pool of the user's keeps its own connections.

The waiting caller and the caller that gives back cannot miss each other. The one counts itself, and then looks at the
kept lines. The other keeps its line, and then looks at the count.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import psycopg
from psycopg.pq import TransactionStatus
from psycopg.pq.abc import PGresult
from psycopg.waiting import Ready, Wait

from retrysafe.stores.postgres import deadline
from retrysafe.stores.postgres.dialect import CAPABILITIES
from retrysafe.stores.postgres.pipeline import PipelineGen, PreparedNames, close_if_broken
from retrysafe.stores.postgres.pool import AsyncPool, Pool

MAX_KEPT_LINES = CAPABILITIES.max_in_flight
MAX_KEPT_SECONDS = 60.0


class Line:
    """A connection that is taken from a pool."""

    def __init__(self, connection: Any, generation: int) -> None:
        self.connection = connection
        self.generation = generation
        self.was_manual = not connection.autocommit
        """The connection of a user's pool was not in autocommit mode, and gets that mode back."""
        self.names: PreparedNames | None = None
        self.checked = False
        self.too_old_at = time.monotonic() + MAX_KEPT_SECONDS

    def can_be_kept(self, generation: int) -> bool:
        return (
            self.generation == generation
            and self.connection.pgconn.transaction_status == TransactionStatus.IDLE
            and time.monotonic() < self.too_old_at
        )

    def drive(self, exchange: PipelineGen) -> list[PGresult]:
        """Run a pipeline on this line."""
        try:
            return self.connection.wait(exchange)  # type: ignore[no-any-return]  # what the generator returns
        finally:
            close_if_broken(self.connection)


class AsyncLine(Line):
    """A line on an event loop. Its socket stays registered with the loop from one batch to the next, and so does the
    timer of its deadline, which looks at `_due` when it fires."""

    def __init__(self, connection: psycopg.AsyncConnection[Any], generation: int) -> None:
        super().__init__(connection, generation)
        self._loop = asyncio.get_running_loop()
        self._pgconn = connection.pgconn
        self._socket = connection.pgconn.socket
        self._registered = False
        self._woken: asyncio.Future[Ready] | None = None
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None

    def start_deadline(self) -> None:
        """Shut the socket down after STATEMENT_TIMEOUT_SECONDS, unless `stop_deadline` is called before."""
        due = self._due = self._loop.time() + deadline.STATEMENT_TIMEOUT_SECONDS
        if self._timer is None or self._timer.when() > due:
            self._set_timer(due)

    def stop_deadline(self) -> None:
        self._due = 0.0

    def _set_timer(self, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(due, self._check_deadline)

    def _check_deadline(self) -> None:
        self._timer = None
        if self._due == 0.0:
            return
        if self._loop.time() < self._due:
            self._set_timer(self._due)
        else:
            deadline.shut_down_socket(self.connection)

    def leave_loop(self) -> None:
        """Before psycopg waits for the socket itself, and before the connection is closed or given back."""
        if self._registered:
            self._registered = False
            self._loop.remove_reader(self._socket)

    def end(self) -> None:
        """The line is given back to the pool."""
        self.leave_loop()
        self.stop_deadline()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def adrive(self, exchange: PipelineGen) -> list[PGresult]:
        """Run a pipeline on this line."""
        ended = False
        try:
            wanted = next(exchange)
            while True:
                ready = await (self._wait_readable() if wanted == Wait.R else self._wait_for_both())
                wanted = exchange.send(ready)
        except StopIteration as done:
            ended = True
            return done.value  # type: ignore[no-any-return]  # what the generator returns
        finally:
            self._woken = None
            if not ended:
                self.leave_loop()
                close_if_broken(self.connection)

    def _wait_readable(self) -> asyncio.Future[Ready]:
        if not self._registered:
            self._registered = True
            self._loop.add_reader(self._socket, self._wake, Ready.R)
        self._woken = self._loop.create_future()
        return self._woken

    async def _wait_for_both(self) -> Ready:
        """The socket takes no more at present: a large batch."""
        self._loop.add_writer(self._socket, self._wake, Ready.W)
        try:
            return await self._wait_readable()
        finally:
            self._loop.remove_writer(self._socket)

    def _wake(self, ready: Ready) -> None:
        """Read here what has arrived: otherwise the loop would see the same bytes once more."""
        woken = self._woken
        if woken is None:  # nobody has asked: the server is closing the connection. The next batch learns it.
            self.leave_loop()
        elif not woken.done():
            try:
                if ready == Ready.R:
                    self._pgconn.consume_input()
                    if self._pgconn.is_busy():
                        return
            except Exception as error:
                woken.set_exception(error)
            else:
                woken.set_result(Ready.NONE)


class AsyncLines:
    """The lines of an async store."""

    def __init__(self, pool: AsyncPool, keeps: bool) -> None:
        self._pool = pool
        self._kept: list[AsyncLine] = []
        self._most = MAX_KEPT_LINES if keeps else 0
        self._waiting = self._generation = 0

    async def take(self) -> AsyncLine:
        if self._kept:
            return self._kept.pop()
        self._waiting += 1
        try:
            connection = await self._pool.getconn()
        finally:
            self._waiting -= 1
        line = AsyncLine(connection, self._generation)
        if line.was_manual:
            try:
                await line.connection.set_autocommit(True)
            except BaseException:
                await self._pool.putconn(line.connection)
                raise
        return line

    async def give_back(self, line: AsyncLine) -> None:
        line.stop_deadline()
        if len(self._kept) < self._most and not self._waiting and line.can_be_kept(self._generation):
            self._kept.append(line)
        else:
            await self._return(line)

    async def _return(self, line: AsyncLine) -> None:
        line.end()
        try:
            if line.was_manual and not line.connection.closed:
                await line.connection.set_autocommit(False)
        finally:
            await self._pool.putconn(line.connection)

    async def drain(self) -> None:
        """Replace every connection, also those that are kept or in use."""
        self._generation += 1
        await self._pool.drain()
        await self._return_kept()

    async def close(self) -> None:
        self._most = 0
        await self._return_kept()

    async def _return_kept(self) -> None:
        while self._kept:
            await self._return(self._kept.pop())


class Lines:
    """The lines of a sync store. Many threads use it at once."""

    def __init__(self, pool: Pool, keeps: bool) -> None:
        self._pool = pool
        self._kept: list[Line] = []
        self._most = MAX_KEPT_LINES if keeps else 0
        self._waiting = self._generation = 0
        self._counting = threading.Lock()

    def take(self) -> Line:
        line = self._pop_kept()
        if line is not None:
            return line
        with self._counting:
            self._waiting += 1
        try:
            line = self._pop_kept() or Line(self._pool.getconn(), self._generation)
        finally:
            with self._counting:
                self._waiting -= 1
        if line.was_manual:
            try:
                line.connection.set_autocommit(True)
            except BaseException:
                self._pool.putconn(line.connection)
                raise
        return line

    def _pop_kept(self) -> Line | None:
        try:
            return self._kept.pop()  # no check first: another thread may take the last one in between
        except IndexError:
            return None

    def give_back(self, line: Line) -> None:
        if len(self._kept) < self._most and line.can_be_kept(self._generation):
            self._kept.append(line)
            if not self._waiting and self._most and line.generation == self._generation:
                return
            last = self._pop_kept()
            if last is None:
                return  # another thread has taken it
            line = last
        self._return(line)

    def _return(self, line: Line) -> None:
        try:
            if line.was_manual and not line.connection.closed:
                line.connection.set_autocommit(False)
        finally:
            self._pool.putconn(line.connection)

    def drain(self) -> None:
        """Replace every connection, also those that are kept or in use."""
        self._generation += 1
        self._pool.drain()
        self._return_kept()

    def close(self) -> None:
        self._most = 0
        self._return_kept()

    def _return_kept(self) -> None:
        while (line := self._pop_kept()) is not None:
            self._return(line)
