"""The async colour of SQLite: reads happen in the loop (an indexed read from the page cache takes microseconds,
a thread hop takes longer), writes in one thread of their own, because a commit waits for the disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.stores.base import afollow
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sqlite.file import CAPABILITIES, SqliteFile
from retrysafe.stores.sqlite.writer import Writer

R = TypeVar("R")


class AsyncSqliteStore:
    """One writer thread per store. A caller that is cancelled leaves its write to finish by itself."""

    capabilities = CAPABILITIES
    in_order = True
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(self, file: SqliteFile | str | Path) -> None:
        self._file = file if isinstance(file, SqliteFile) else SqliteFile(file)
        self.names = self._file.names
        self._writer = Writer("retrysafe-sqlite")
        self._prepared = False

    async def execute(self, op: Op[R]) -> R:
        if not self._prepared:
            await self._prepare()
        if isinstance(op, Claim):
            seen: Any = self._file.try_read_claim(op)
            if seen is not None:
                return seen  # type: ignore[no-any-return]  # a claim's reply
        return await afollow(self._file.plans.plan_without_read(op), self._send)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._writer.call(self._file.execute_many, ops)

    def try_read_claim(self, op: Claim) -> ClaimReply | None:
        """A replay or a refusal, read beside the writer; None when the claim has to write."""
        return self._file.try_read_claim(op)

    async def migrate(self) -> list[str]:
        return await self._writer.call(self._file.migrate)

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
