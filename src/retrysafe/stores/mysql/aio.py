# sync.py is generated from this file: run `make twins` after a change.
"""The async store of MySQL and MariaDB, through asyncmy: a connection per operation, a commit per statement."""

from __future__ import annotations

import asyncio  # sync: import time
from collections.abc import Awaitable, Callable, Collection, Sequence
from functools import partial
from typing import Any, TypeVar

import asyncmy
from asyncmy.errors import MySQLError

from retrysafe.core.ops import Op, Renew
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import afollow
from retrysafe.stores.mysql import batches, renewals
from retrysafe.stores.mysql.apool import AsyncConnect, build_pool
from retrysafe.stores.mysql.dialect import CAPABILITIES, DIALECT, READ_TIMEOUT_SECONDS, MysqlLocation, upgrade
from retrysafe.stores.mysql.errors import ERROR_FACTORIES, translate_error
from retrysafe.stores.mysql.protocol import (
    BEGIN,
    COMMIT,
    ROLLBACK,
    PacketPlan,
    PacketReply,
    Rows,
    build_mogrify,
    merge_plans,
    plan_packet,
    plan_packets,
    read_rows,
)
from retrysafe.stores.sql.aretrying import arun_with_retries
from retrysafe.stores.sql.batches import (
    HELD,
    SEND_UNBATCHED,
    held_rows_error,
    partly_committed_error,
    row_held_error,
)
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, build_names
from retrysafe.stores.sql.plans import SqlPlans, sort_by_id
from retrysafe.stores.sql.shares import Use, use_of

R = TypeVar("R")


class AsyncMysqlStore:
    """Made from a URL, or from your own function that connects. The pool calls it for each new connection."""

    capabilities = CAPABILITIES
    recreates_tables = True

    def __init__(
        self,
        connect: AsyncConnect,
        *,
        table: str = DEFAULT_PREFIX,
        pool: int = 10,
        pool_timeout: float = 5.0,
        url: str = "URL",
    ) -> None:
        self.names = build_names(table)
        self._url = url
        self._plans = SqlPlans(DIALECT, self.names)
        self._pool = build_pool(connect, pool, pool_timeout)

    @classmethod
    def from_url(cls, at: MysqlLocation) -> AsyncMysqlStore:
        connect = partial(asyncmy.connect, **at.connect)
        return cls(connect, table=at.names.bare, pool=at.pool, pool_timeout=at.pool_timeout, url=at.url)

    async def execute(self, op: Op[R]) -> R:
        if type(op) is Renew:
            [renewed] = await self._renew([op])
            if renewed is HELD:
                raise row_held_error()
            return renewed  # type: ignore[no-any-return]
        return await self._with_retries(
            lambda connection: afollow(self._plans.plan_operation(op), self._build_sender(connection)), use_of((op,))
        )

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Send one statement per kind, all in one packet, or else the statements of each operation. One commit in both
        cases."""
        if not ops:
            return []
        if not batches.can_batch(ops):
            return await self._with_retries(lambda connection: self._execute_one_by_one(connection, ops), "batch")
        if renewals.are_renewals(ops):
            replies = await self._renew(ops)
            if HELD in replies:
                raise held_rows_error(replies)
            return replies
        replies = await self._with_retries(lambda connection: self._execute_batch(connection, ops), use_of(ops))
        try:
            for place, reply in enumerate(replies):
                if reply is SEND_UNBATCHED:
                    replies[place] = await self.execute(ops[place])
        except StoreUnavailable as error:
            raise partly_committed_error(error) from error
        return replies

    async def _renew(self, ops: Sequence[Any]) -> list[Any]:
        """Renew what is not locked. Renewals that met locked rows are sent once more, all together, so that the pause
        does not grow with their number. HELD stays where the row is still locked."""
        replies = await self._renew_unlocked(ops)
        held = renewals.take_held(ops, replies)
        if not held:
            return replies
        await asyncio.sleep(renewals.compute_pause(held))
        try:
            return renewals.replace_held(replies, await self._renew_unlocked(held))
        except StoreUnavailable as error:
            if len(held) == len(ops):
                raise
            raise partly_committed_error(error) from error

    async def _renew_unlocked(self, ops: Sequence[Renew]) -> list[Any]:
        def work(connection: Any) -> Awaitable[list[Any]]:
            plan = renewals.plan_renewals(self._plans.texts, ops, batches.Quoted(connection.escape))
            return afollow(plan, lambda packet: _send_packet(connection, self._url, packet, batch=False))

        return await self._with_retries(work, "renewal")

    async def _execute_batch(self, connection: Any, ops: Sequence[Op[Any]]) -> list[Any]:
        quoted = batches.Quoted(connection.escape)
        plan = batches.plan_batch(self._plans.texts, ops, quoted, self._plans.expects_record)
        replies, met = await self._or_roll_back(
            connection, lambda: afollow(plan, lambda packet: _send_packet(connection, self._url, packet, batch=True))
        )
        if met is not None:
            self._plans.expects_record = met
        return replies

    async def _execute_one_by_one(self, connection: Any, ops: Sequence[Op[Any]]) -> list[Any]:
        """The next statements of all operations share a packet. They are sorted by id, so that two batches lock rows in
        the same order."""
        send = partial(_send, connection, self._url, True)
        ordered = sort_by_id(ops)
        await send([BEGIN])
        plan = merge_plans([self._plans.plan_operation(op) for _, op in ordered])
        found = await self._or_roll_back(connection, lambda: afollow(plan, send))
        await self._or_roll_back(connection, lambda: send([COMMIT]))
        replies: list[Any] = [None] * len(ops)
        for (place, _), reply in zip(ordered, found, strict=True):
            replies[place] = reply
        return replies

    async def _or_roll_back(self, connection: Any, work: Callable[[], Awaitable[R]]) -> R:
        """Do the work. If it fails, roll back what it has begun."""
        try:
            return await work()
        except StoreUnclear:
            raise  # the connection is lost: the server rolls back by itself, unless it has received the COMMIT
        except Exception:
            await _send(connection, self._url, True, [ROLLBACK])
            raise

    async def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        return await self._with_retries(
            lambda connection: afollow(upgrade(self.names, recreate=recreate), self._build_sender(connection)), "alone"
        )

    async def aclose(self) -> None:
        await self._pool.aclose()

    async def _with_retries(self, work: Callable[[Any], Awaitable[R]], use: Use) -> R:
        return await arun_with_retries(self._pool, work, ERROR_FACTORIES, use)

    def _build_sender(self, connection: Any) -> Callable[[Statement], Awaitable[Rows]]:
        """A sender of single statements, as a plan needs it."""

        async def send_one(statement: Statement) -> Rows:
            return (await _send(connection, self._url, False, [statement]))[0]

        return send_one


async def _send(connection: Any, url: str, batch: bool, statements: Sequence[Statement]) -> list[Rows]:
    """Send statements and return the rows of each."""
    mogrify = build_mogrify(connection.escape)
    return await _follow_packets(connection, url, batch, lambda cursor: plan_packets(statements, mogrify))


async def _send_packet(connection: Any, url: str, packet: batches.Packet, *, batch: bool) -> list[Rows]:
    """Send the statements of a batch, which have their values in them, and return the rows of each."""
    return await _follow_packets(connection, url, batch, lambda cursor: plan_packet(packet))


async def _follow_packets(connection: Any, url: str, batch: bool, plan: Callable[[Any], PacketPlan]) -> list[Rows]:
    try:
        # sync: with connection.cursor() as cursor:
        async with asyncio.timeout(READ_TIMEOUT_SECONDS), connection.cursor() as cursor:
            return await afollow(plan(cursor), lambda packet: _receive(cursor, packet))
    except Exception as error:
        found = translate_error(error, url, batch)
        if found is error:
            raise  # already translated: an error must not become its own cause
        raise found from error


async def _receive(cursor: Any, packet: str) -> PacketReply:
    answers: list[Rows] = []
    try:
        await cursor.execute(packet)
        while True:
            rows = await cursor.fetchall() if cursor.description else None
            answers.append(read_rows(rows, cursor.rowcount, cursor.lastrowid))
            if not await cursor.nextset():
                return PacketReply(answers, None)
    except MySQLError as error:
        return PacketReply(answers, error)
