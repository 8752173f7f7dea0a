# sync.py is generated from this file: run `make twins` after a change.
"""The async PostgreSQL store: a pool, a connection per operation, a commit per statement."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Awaitable, Callable, Collection, Sequence
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused, afollow
from retrysafe.stores.notify import AsyncListener, OnNotify, ShouldContinue
from retrysafe.stores.postgres import (
    batches,
    notify,
    pipeline,
)  # sync: from retrysafe.stores.postgres import batches, deadline, notify, pipeline
from retrysafe.stores.postgres.batches import CLAIM_AGAIN, OpGroup, can_batch
from retrysafe.stores.postgres.dialect import CAPABILITIES, DIALECT, PostgresLocation
from retrysafe.stores.postgres.errors import (
    ConnectFailures,
    is_demoted,
    lock_timeout_error,
    serialization_error,
    translate_error,
    unstorable_value_error,
)
from retrysafe.stores.postgres.lines import AsyncLine, AsyncLines
from retrysafe.stores.postgres.pipeline import BoundStatement, StatementRows
from retrysafe.stores.postgres.pool import AsyncPool, abuild_pool, aread_conninfo
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.batches import HELD, SEND_UNBATCHED, held_rows_error, partly_committed_error
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, build_names
from retrysafe.stores.sql.plans import LockNotAvailable, RetryNow, SqlPlans, sort_by_id
from retrysafe.stores.sql.shares import Use, use_of

R = TypeVar("R")

MAX_SERIALIZATION_TRIES = 10
"""Serialization failures in a row before an operation gives up. Each one means that another transaction committed."""


class AsyncPostgresStore:
    """Made from a URL, or from your own `psycopg_pool.AsyncConnectionPool`. Your pool is yours to open and close."""

    capabilities = CAPABILITIES
    recreates_tables = True

    def __init__(
        self, pool: AsyncPool, *, table: str = DEFAULT_PREFIX, schema: str = "", owned: bool = False, url: str = "URL"
    ) -> None:
        self._pool = pool
        self.names = build_names(table, schema)
        self._plans = SqlPlans(DIALECT, self.names)
        self._owned = owned
        self._url = url
        self._prepared = pipeline.PreparedStatements()
        self._connecting = ConnectFailures()
        self._listener = AsyncListener(self._listen)
        self._lines = AsyncLines(pool, keeps=owned)
        self._claims = batches.SHORT_CLAIMS
        """How the next batch sends its claims. It depends on what the last one met."""
        # sync: self._watch = deadline.DeadlineWatch()
        self._opening = asyncio.Lock()
        self._opened = not owned  # async only
        self._closed = False  # async only

    @classmethod
    def from_url(cls, at: PostgresLocation) -> AsyncPostgresStore:
        store = cls(abuild_pool(at), owned=True, url=at.url)
        store.names, store._plans = at.names, SqlPlans(DIALECT, at.names)
        return store

    async def execute(self, op: Op[R]) -> R:
        return await self._with_connection(
            lambda connection: afollow(self._plans.plan_operation(op), self._build_sender(connection)), use_of((op,))
        )

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Send one statement per kind, all in one pipeline, or else the operations one by one. One commit in both
        cases."""
        if not ops:
            return []
        if not can_batch(ops):
            return await self._with_connection(lambda connection: self._execute_one_by_one(connection, ops), "batch")
        replies = await self._execute_batch(ops, self._claims)
        if HELD in replies:
            await self._wait_for_held(ops, replies)
        if CLAIM_AGAIN in replies or SEND_UNBATCHED in replies:
            await self._complete_replies(ops, replies)
        self._claims = batches.choose_claims(replies, self._claims)
        if HELD in replies:
            raise held_rows_error(replies)
        return replies

    async def _execute_batch(self, ops: Sequence[Op[Any]], claims: batches.BatchStatement) -> list[Any]:
        try:
            sent = batches.group_by_kind(self._plans.texts, ops, claims)
        except (UnicodeError, struct.error) as error:
            raise unstorable_value_error(error) from error
        settings = batches.settings_part(self._plans.texts)
        answers = await self._with_line(lambda line: self._run_pipeline(line, settings, sent), use_of(ops), batch=True)
        return batches.read_replies(ops, sent, answers)

    async def _wait_for_held(self, ops: Sequence[Op[Any]], replies: list[Any]) -> None:
        """Send renewals whose rows were locked once more, and wait for the rows: most locks last for a moment. HELD
        stays where the wait was too long. They wait together, so that the wait does not grow with their number."""
        held: list[Any] = [op for op, reply in zip(ops, replies, strict=True) if reply is HELD]
        settings, group = batches.build_waiting_renewals(self._plans.texts, held)
        try:
            found = await self._with_line(
                lambda line: self._run_pipeline(line, settings, [group]), "renewal", batch=True
            )
        except BatchRefused:
            return
        except StoreUnavailable as error:
            raise partly_committed_error(error) from error
        left = iter(batches.read_replies(held, [group], found))
        replies[:] = [next(left) if reply is HELD else reply for reply in replies]

    async def _complete_replies(self, ops: Sequence[Op[Any]], replies: list[Any]) -> None:
        """Replace what stands in `replies` for operations that the batch could not decide. The batch is committed: if
        this fails, the caller must not believe that nothing happened."""
        try:
            again = [place for place, reply in enumerate(replies) if reply is CLAIM_AGAIN]
            if again:
                found = await self._execute_batch([ops[place] for place in again], batches.WHOLE_CLAIMS)
                for place, reply in zip(again, found, strict=True):
                    replies[place] = reply
            for place, reply in enumerate(replies):
                if reply is SEND_UNBATCHED:
                    replies[place] = await self.execute(ops[place])
        except (BatchRefused, StoreUnavailable) as error:
            raise partly_committed_error(error) from error

    async def _run_pipeline(
        self, line: AsyncLine, settings: BoundStatement, sent: Sequence[OpGroup]
    ) -> list[StatementRows]:
        parts = [settings, *(group.part for group in sent)]
        connection = line.connection
        if not line.checked:
            await self._check_line(line)
        exchange = pipeline.run_pipeline(connection.pgconn, parts, line.names if self._prepared.usable else None)
        try:
            _, *answers = await line.adrive(exchange)
        except psycopg.Error as error:
            raise (
                RetryNow if self._prepared.disable_on(error) else translate_error(error, self._url, batch=True)
            ) from error
        return [StatementRows(answer, connection) for answer in answers]

    async def _check_line(self, line: AsyncLine) -> None:
        if not self._prepared.is_checked(line.connection):
            line.leave_loop()  # async only
            await self._check_backend(line.connection)
        line.names, line.checked = self._prepared.names_for(line.connection), True

    async def _execute_one_by_one(self, connection: psycopg.AsyncConnection[Any], ops: Sequence[Op[Any]]) -> list[Any]:
        """Execute in the order of ids, so that two batches cannot deadlock."""
        replies: list[Any] = [None] * len(ops)
        async with connection.transaction():
            for place, op in sort_by_id(ops):
                replies[place] = await afollow(
                    self._plans.plan_operation(op), self._build_sender(connection, batch=True)
                )
        return replies

    async def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        async def upgrade_locked(connection: psycopg.AsyncConnection[Any]) -> list[str]:
            async with connection.transaction():
                lock = "SELECT pg_advisory_xact_lock(hashtext(%s))"
                await connection.execute(lock, [f"retrysafe:{self.names.meta}"])
                plan = migrations.upgrade(DIALECT, self.names, recreate=recreate)
                return await afollow(plan, self._build_sender(connection))

        return await self._with_connection(upgrade_locked)

    async def announce(self, record_id: bytes) -> None:
        values = (notify.channel_name(self.names), record_id.hex())
        await self._with_connection(lambda connection: connection.execute(notify.NOTIFY_QUERY, values, prepare=False))

    async def wait(self, record_id: bytes, seconds: float) -> None:
        await self._listener.wait(record_id, seconds)

    async def _listen(self, on_notify: OnNotify, should_continue: ShouldContinue) -> None:
        await notify.alisten(await aread_conninfo(self._pool), self.names, on_notify, should_continue)

    async def aclose(self) -> None:
        self._closed = True  # async only
        await self._listener.aclose()
        await self._lines.close()
        if self._owned:
            # sync: self._pool.close()
            # A caller that is opening the pool right now would leave it open.
            async with self._opening:
                if self._opened:
                    await self._pool.close()

    async def _with_connection(
        self, work: Callable[[psycopg.AsyncConnection[Any]], Awaitable[R]], use: Use = "alone"
    ) -> R:
        async def work_on(line: AsyncLine) -> R:
            line.leave_loop()  # async only
            if not line.checked:
                await self._check_line(line)
            return await work(line.connection)

        return await self._with_line(work_on, use, batch=use == "batch")

    async def _with_line(self, work: Callable[[AsyncLine], Awaitable[R]], use: Use, *, batch: bool = False) -> R:
        # async only
        if not self._opened:
            await self._open()
        for _ in range(MAX_SERIALIZATION_TRIES):
            try:
                return await self._try_on_line(work, use)
            except RetryNow:
                continue
            except LockNotAvailable as error:
                raise lock_timeout_error() from error
            except StoreUnclear:
                # After a restart of the server every idle connection is dead. Replace all of them now: otherwise each
                # of the next callers would meet one.
                if self._owned:
                    await self._lines.drain()
                raise
            except StoreUnavailable as error:
                # The server takes no writes any more (a failover). A new connection may lead to the new primary.
                if self._owned and is_demoted(error):
                    await self._lines.drain()
                raise
        raise serialization_error(MAX_SERIALIZATION_TRIES, batch=batch)

    async def _try_on_line(self, work: Callable[[AsyncLine], Awaitable[R]], use: Use) -> R:
        """Run `work` on a connection in autocommit mode, with a deadline."""
        try:
            line = await self._lines.take(use)
            try:
                # sync: timer = self._watch.start(line.connection, deadline.STATEMENT_TIMEOUT_SECONDS)
                line.start_deadline()
                try:
                    return await work(line)
                finally:
                    line.stop_deadline()  # sync: timer.cancel()
            finally:
                await self._lines.give_back(line, use)
        except Exception as error:
            found = translate_error(self._connecting.refine_error(error, self._pool), self._url)
            if found is error:
                raise  # already translated: an error must not become its own cause
            raise found from error

    # async only
    async def _open(self) -> None:
        async with self._opening:
            if self._closed:
                raise StoreUnavailable("this store was closed; open a new one")
            if not self._opened:
                await self._pool.open()
                self._opened = True

    def _build_sender(
        self, connection: psycopg.AsyncConnection[Any], batch: bool = False
    ) -> Callable[[Statement], Awaitable[Any]]:
        async def send(statement: Statement) -> Any:
            keep = self._prepared.prepare_flag(connection, statement)
            try:
                cursor = await connection.execute(statement.sql, statement.values or None, prepare=keep, binary=True)
                return await cursor.fetchall() if cursor.rownumber is not None else []
            except psycopg.Error as error:
                raise (
                    RetryNow if self._prepared.disable_on(error) else translate_error(error, self._url, batch)
                ) from error

        return send

    async def _check_backend(self, connection: psycopg.AsyncConnection[Any]) -> None:
        async with connection.cursor(row_factory=tuple_row) as cursor:
            await cursor.execute(pipeline.BACKEND_PID_QUERY, prepare=False)
            found = await cursor.fetchone()
        assert found is not None, "a SELECT without FROM has one row"
        self._prepared.record_backend(connection, found[0])
