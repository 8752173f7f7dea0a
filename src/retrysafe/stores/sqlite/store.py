"""The SQLite stores, sync and async.

The async store reads in the event loop: an indexed read from the page cache takes microseconds, and a thread switch
takes longer. It writes in a thread of its own, because a commit waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sqlite.file import CAPABILITIES, SqliteFile
from retrysafe.stores.sqlite.usual import is_usual
from retrysafe.stores.sqlite.writer import Writer

R = TypeVar("R")


class SqliteStore:
    """A sync store. It blocks the calling thread only for the commit."""

    capabilities = CAPABILITIES
    recreates_tables = True

    def __init__(self, file: SqliteFile | str | Path) -> None:
        self._file = file if isinstance(file, SqliteFile) else SqliteFile(file)
        self.names = self._file.names

    def execute(self, op: Op[R]) -> R:
        return self._file.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._file.execute_many(ops)

    def try_read_claim(self, op: Claim) -> ClaimReply | None:
        """A replay or a refusal, read beside the writer; None if the claim has to write."""
        return self._file.try_read_claim(op)

    def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        return self._file.migrate(recreate)

    def close(self) -> None:
        self._file.close()


class AsyncSqliteStore:
    """An async store with one writer thread. If a caller is cancelled, its write still runs to its end."""

    capabilities = CAPABILITIES
    in_order = True

    def __init__(self, file: SqliteFile | str | Path) -> None:
        self._file = file if isinstance(file, SqliteFile) else SqliteFile(file)
        self.names = self._file.names
        self._writer = Writer("retrysafe-sqlite")
        self._prepared = False

    async def execute(self, op: Op[R]) -> R:
        if not self._prepared:
            await self._prepare()
        if isinstance(op, Claim):
            reply: Any = self._file.try_read_claim(op)
            if reply is not None:
                return reply  # type: ignore[no-any-return]  # a claim's reply
        if is_usual(op):
            return await self._writer.call(self._file.execute_after_read, op)
        return await afollow(self._file.plans.plan_without_read(op), self._send)

    def submit(self, op: Op[Any]) -> asyncio.Future[Any] | None:
        """The reply that a claim reads, or the future of the usual write. None: it has to be executed."""
        if not self._prepared:
            return None
        if type(op) is Claim:
            found = self._file.try_read_claim(op)
            if found is not None:
                read: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
                read.set_result(found)
                return read
        return self._writer.call(self._file.execute_after_read, op) if is_usual(op) else None

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._writer.call(self._file.execute_many, ops)

    def try_read_claim(self, op: Claim) -> ClaimReply | None:
        """A replay or a refusal, read beside the writer; None if the claim has to write."""
        return self._file.try_read_claim(op)

    async def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        return await self._writer.call(self._file.migrate, recreate)

    async def aclose(self) -> None:
        await self._writer.call(self._file.close)
        self._writer.stop()

    async def _prepare(self) -> None:
        await self._writer.call(self._file.prepare)
        self._prepared = True

    async def _send(self, statement: Statement) -> list[Any]:
        if statement.writes:
            return await self._writer.call(self._file.write, statement)
        return self._file.read(statement)
