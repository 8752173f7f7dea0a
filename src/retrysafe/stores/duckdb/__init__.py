"""DuckDB: a file that one process uses, next to the data that is analysed there. It is durable and has transactions; it
is not made for load.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrysafe.stores.base import AsyncStore, Store, driver_import
from retrysafe.stores.duckdb.dialect import CAPABILITIES, DIALECT, parse_url
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.names import TableNames

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis
    from retrysafe.stores.duckdb.store import AsyncDuckdbStore, DuckdbStore


class DuckdbBackend:
    """Opens `duckdb:///path`; creates the file and its tables. The driver is imported when a store is opened."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        parse_url(url)
        with driver_import("DuckDB", "duckdb", "duckdb"):
            from retrysafe.stores.duckdb.file import DuckdbFile
            from retrysafe.stores.duckdb.store import DuckdbStore
        return DuckdbStore(DuckdbFile.from_url(url))

    def open_async(self, url: str) -> AsyncStore:
        parse_url(url)
        with driver_import("DuckDB", "duckdb", "duckdb"):
            from retrysafe.stores.duckdb.file import DuckdbFile
            from retrysafe.stores.duckdb.store import AsyncDuckdbStore
        return AsyncDuckdbStore(DuckdbFile.from_url(url))

    def names(self, url: str) -> TableNames:
        return parse_url(url).names

    def has_tables(self, url: str) -> bool:
        with driver_import("DuckDB", "duckdb", "duckdb"):
            from retrysafe.stores.duckdb.file import has_tables
        return has_tables(parse_url(url))

    def schema(self, url: str) -> str:
        return migrations.build_script(DIALECT, parse_url(url).names)

    def diagnose(self, url: str) -> Diagnosis:
        with driver_import("DuckDB", "duckdb", "duckdb"):
            from retrysafe.stores.duckdb import doctor
        return doctor.diagnose(parse_url(url))


backend = DuckdbBackend()


def __getattr__(name: str) -> Any:
    """`DuckdbStore` and `AsyncDuckdbStore`, imported late: they need the driver."""
    if name not in ("AsyncDuckdbStore", "DuckdbStore"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from retrysafe.stores.duckdb import store

    return getattr(store, name)


__all__ = ["AsyncDuckdbStore", "DuckdbStore", "backend"]
