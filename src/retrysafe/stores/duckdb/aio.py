"""The async colour of DuckDB: the sync one in a thread. DuckDB has no other, and its writers take turns anyway."""

from __future__ import annotations

from pathlib import Path

from retrysafe.stores.duckdb.file import Connection, DuckdbFile
from retrysafe.stores.duckdb.sync import DuckdbStore
from retrysafe.stores.threaded import ThreadedStore


class AsyncDuckdbStore(ThreadedStore):
    """One thread per store. A caller that is cancelled leaves its operation to finish by itself."""

    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(self, file: DuckdbFile | str | Path | Connection) -> None:
        store = DuckdbStore(file)
        super().__init__(store, threads=1, name="retrysafe-duckdb")
        self.names = store.names
