"""The sync colour of SQLite."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.stores.sqlite.file import CAPABILITIES, SqliteFile

R = TypeVar("R")


class SqliteStore:
    """Blocks the calling thread for the commit, and only for that."""

    capabilities = CAPABILITIES
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(self, file: SqliteFile | str | Path) -> None:
        self._file = file if isinstance(file, SqliteFile) else SqliteFile(file)
        self.names = self._file.names

    def execute(self, op: Op[R]) -> R:
        return self._file.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._file.execute_many(ops)

    def try_read_claim(self, op: Claim) -> ClaimReply | None:
        """A replay or a refusal, read beside the writer; None when the claim has to write."""
        return self._file.try_read_claim(op)

    def migrate(self) -> list[str]:
        return self._file.migrate()

    def close(self) -> None:
        self._file.close()
