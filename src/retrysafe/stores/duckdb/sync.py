"""The sync colour of DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.duckdb.dialect import CAPABILITIES
from retrysafe.stores.duckdb.file import Connection, DuckdbFile

R = TypeVar("R")


class DuckdbStore:
    """Made from a path, or around a connection of yours, which stays yours to close."""

    capabilities = CAPABILITIES
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(self, file: DuckdbFile | str | Path | Connection) -> None:
        self._file = file if isinstance(file, DuckdbFile) else DuckdbFile(file)
        self.names = self._file.names

    def execute(self, op: Op[R]) -> R:
        return self._file.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._file.execute_many(ops)

    def migrate(self) -> list[str]:
        return self._file.migrate()

    def close(self) -> None:
        self._file.close()
