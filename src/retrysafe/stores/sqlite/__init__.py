"""SQLite, the embedded default: one file, any number of processes, full durability."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.stores.base import AsyncStore, Store
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sqlite.file import CAPABILITIES, DIALECT, SqliteFile, has_tables, parse_url
from retrysafe.stores.sqlite.store import AsyncSqliteStore, SqliteStore

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis


class SqliteBackend:
    """Opens `sqlite:///path`. The store creates the file and its tables."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        return SqliteStore(SqliteFile.from_url(url))

    def open_async(self, url: str) -> AsyncStore:
        return AsyncSqliteStore(SqliteFile.from_url(url))

    def names(self, url: str) -> TableNames:
        return parse_url(url).names

    def has_tables(self, url: str) -> bool:
        return has_tables(parse_url(url))

    def schema(self, url: str) -> str:
        return migrations.build_script(DIALECT, parse_url(url).names)

    def diagnose(self, url: str) -> Diagnosis:
        from retrysafe.stores.sqlite import doctor  # only the doctor needs it

        file = SqliteFile.from_url(url)
        return doctor.diagnose(file.path, file.connect, DIALECT, file.names)


backend = SqliteBackend()

__all__ = ["AsyncSqliteStore", "SqliteFile", "SqliteStore", "backend"]
