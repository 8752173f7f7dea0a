"""Lines: connections of a pool, with what a store keeps for each of them.

Taking a connection from psycopg's pool and giving it back costs as much as a small batch. So a store that owns its pool
keeps up to MAX_KEPT_LINES connections between operations. A line goes back to the pool when its transaction has not
ended, when it was kept for MAX_KEPT_SECONDS (the pool replaces connections that are too old), when the pool was
drained, and when another caller waits for a connection. A pool of the user's keeps its own connections.

After the first renewal one more line is kept, for renewals. A renewal then need not wait until the pool has made
connections for others. stores/sql/shares.py says how many connections others leave to renewals.

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
from retrysafe.stores.postgres.errors import no_share_error
from retrysafe.stores.postgres.pipeline import PipelineGen, PreparedNames, close_if_broken
from retrysafe.stores.postgres.pool import AsyncPool, Pool
from retrysafe.stores.sql.shares import AsyncShares, Shares, Use

MAX_KEPT_LINES = CAPABILITIES.max_in_flight
MAX_KEPT_SECONDS = 60.0


def count_kept_lines(pool_size: int, keeps: bool) -> tuple[int, int]:
    """How many lines are kept for everybody, and how many for renewals alone."""
    return (MAX_KEPT_LINES, int(pool_size > 1)) if keeps else (0, 0)


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
        self._shares = AsyncShares(pool.max_size, pool.timeout, no_share_error)
        self._kept: list[AsyncLine] = []
        self._for_renewals: list[AsyncLine] = []
        self._most, self._most_for_renewals = count_kept_lines(pool.max_size, keeps)
        self._waiting = self._waiting_renewals = self._generation = 0

    async def take(self, use: Use) -> AsyncLine:
        await self._shares.enter(use)
        try:
            return await self._take(use)
        except BaseException:
            self._shares.leave(use)
            raise

    async def _take(self, use: Use) -> AsyncLine:
        if use == "renewal" and self._for_renewals:
            return self._for_renewals.pop()
        if self._kept:
            return self._kept.pop()
        renewals = int(use == "renewal")
        self._waiting += 1
        self._waiting_renewals += renewals
        try:
            connection = await self._pool.getconn()
        finally:
            self._waiting -= 1
            self._waiting_renewals -= renewals
        line = AsyncLine(connection, self._generation)
        if line.was_manual:
            try:
                await line.connection.set_autocommit(True)
            except BaseException:
                await self._pool.putconn(line.connection)
                raise
        return line

    async def give_back(self, line: AsyncLine, use: Use) -> None:
        try:
            line.stop_deadline()
            if not line.can_be_kept(self._generation):
                await self._return(line)
            elif use == "renewal" and len(self._for_renewals) < self._most_for_renewals and not self._waiting_renewals:
                self._for_renewals.append(line)
            elif len(self._kept) < self._most and not self._waiting:
                self._kept.append(line)
            else:
                await self._return(line)
        finally:
            self._shares.leave(use)

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
        self._most = self._most_for_renewals = 0
        await self._return_kept()

    async def _return_kept(self) -> None:
        for kept in (self._kept, self._for_renewals):
            while kept:
                await self._return(kept.pop())


class Lines:
    """The lines of a sync store. Many threads use it at once."""

    def __init__(self, pool: Pool, keeps: bool) -> None:
        self._pool = pool
        self._shares = Shares(pool.max_size, pool.timeout, no_share_error)
        self._kept: list[Line] = []
        self._for_renewals: list[Line] = []
        self._most, self._most_for_renewals = count_kept_lines(pool.max_size, keeps)
        self._waiting = self._waiting_renewals = self._generation = 0
        self._counting = threading.Lock()

    def take(self, use: Use) -> Line:
        self._shares.enter(use)
        try:
            return self._take(use)
        except BaseException:
            self._shares.leave(use)
            raise

    def _take(self, use: Use) -> Line:
        line = self._pop_kept(use)
        if line is not None:
            return line
        renewals = int(use == "renewal")
        with self._counting:
            self._waiting += 1
            self._waiting_renewals += renewals
        try:
            line = self._pop_kept(use) or Line(self._pool.getconn(), self._generation)
        finally:
            with self._counting:
                self._waiting -= 1
                self._waiting_renewals -= renewals
        if line.was_manual:
            try:
                line.connection.set_autocommit(True)
            except BaseException:
                self._pool.putconn(line.connection)
                raise
        return line

    def _pop_kept(self, use: Use) -> Line | None:
        return (_pop(self._for_renewals) if use == "renewal" else None) or _pop(self._kept)

    def give_back(self, line: Line, use: Use) -> None:
        try:
            self._keep_or_return(line, use)
        finally:
            self._shares.leave(use)

    def _keep_or_return(self, line: Line, use: Use) -> None:
        left: Line | None = line
        if line.can_be_kept(self._generation):
            if use == "renewal" and len(self._for_renewals) < self._most_for_renewals:
                self._for_renewals.append(line)
                left = self._take_back(line, self._for_renewals, self._most_for_renewals and not self._waiting_renewals)
            elif len(self._kept) < self._most:
                self._kept.append(line)
                left = self._take_back(line, self._kept, self._most and not self._waiting)
        if left is not None:
            self._return(left)

    def _take_back(self, line: Line, kept: list[Line], stays: int | bool) -> Line | None:
        """A line that was just kept has to go back to the pool if it does not stay, or if the pool was drained
        meanwhile. None if nothing has to go: another thread may have taken it."""
        return None if stays and line.generation == self._generation else _pop(kept)

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
        self._most = self._most_for_renewals = 0
        self._return_kept()

    def _return_kept(self) -> None:
        for kept in (self._kept, self._for_renewals):
            while (line := _pop(kept)) is not None:
                self._return(line)


def _pop(kept: list[Line]) -> Line | None:
    try:
        return kept.pop()  # no check first: another thread may take the last one in between
    except IndexError:
        return None
