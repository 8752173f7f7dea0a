"""The async colour of SQLite: reads happen in the loop (an indexed read from the page cache takes microseconds,
a thread hop takes longer), writes in one thread of their own, because a commit waits for the disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sqlite.file import CAPABILITIES, SqliteFile

R = TypeVar("R")


class AsyncSqliteStore:
    """One writer thread per store. A caller that is cancelled leaves its write to finish by itself."""

    capabilities = CAPABILITIES

    def __init__(self, file: SqliteFile | str | Path) -> None:
        self._file = file if isinstance(file, SqliteFile) else SqliteFile(file)
        self.names = self._file.names
        self._writer = ThreadPoolExecutor(max_workers=1, thread_name_prefix="retrysafe-sqlite")
        self._prepared = False

    async def execute(self, op: Op[R]) -> R:
        await self._prepare()
        return await afollow(self._file.plans.of(op), self._send)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._in_writer(self._file.execute_many, ops)

    def glance(self, op: Claim) -> ClaimReply | None:
        """A replay or a refusal, read beside the writer; None when the claim has to write."""
        return self._file.glance(op)

    async def migrate(self) -> list[str]:
        return await self._in_writer(self._file.migrate)

    async def aclose(self) -> None:
        await self._in_writer(self._file.close)
        self._writer.shutdown(wait=False)

    async def _prepare(self) -> None:
        if not self._prepared:
            await self._in_writer(self._file.prepare)
            self._prepared = True

    async def _send(self, statement: Statement) -> list[Any]:
        if statement.writes:
            return await self._in_writer(self._file.write, statement)
        return self._file.read(statement)

    async def _in_writer(self, function: Callable[..., R], *args: Any) -> R:
        return await asyncio.get_running_loop().run_in_executor(self._writer, function, *args)
