"""The DuckDB stores, sync and async. The async store runs the sync one in a thread: DuckDB has no async driver, and its
writers take turns anyway.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.stores.duckdb.dialect import CAPABILITIES
from retrysafe.stores.duckdb.file import Connection, DuckdbFile
from retrysafe.stores.threaded import ThreadedStore

R = TypeVar("R")


class DuckdbStore:
    """A sync store, made from a path or from a connection of yours. The store does not close your connection."""

    capabilities = CAPABILITIES
    recreates_tables = True

    def __init__(self, file: DuckdbFile | str | Path | Connection) -> None:
        self._file = file if isinstance(file, DuckdbFile) else DuckdbFile(file)
        self.names = self._file.names

    def execute(self, op: Op[R]) -> R:
        return self._file.execute(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._file.execute_many(ops)

    def migrate(self, recreate: Collection[str] = ()) -> list[str]:
        return self._file.migrate(recreate)

    def close(self) -> None:
        self._file.close()


class AsyncDuckdbStore(ThreadedStore):
    """An async store with one thread. If a caller is cancelled, its operation still runs to its end."""

    def __init__(self, file: DuckdbFile | str | Path | Connection) -> None:
        store = DuckdbStore(file)
        super().__init__(store, threads=1, name="retrysafe-duckdb")
        self.names = store.names
