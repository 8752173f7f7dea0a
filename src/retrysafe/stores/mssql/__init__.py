"""SQL Server, through pymssql; async by threads. Written to the manual and checked by a parser; run on Babelfish 4.3
in part, never on SQL Server (docs/howto/sql-server.md).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.errors import MissingDriver
from retrysafe.stores.base import AsyncStore, Store
from retrysafe.stores.mssql import schema
from retrysafe.stores.mssql.dialect import CAPABILITIES, parse_url
from retrysafe.stores.sql.names import TableNames

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis


class MssqlBackend:
    """Opens `mssql://…`. The driver is imported when a store is opened."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        at = parse_url(url)
        try:
            from retrysafe.stores.mssql.sync import MssqlStore
        except ImportError as error:
            raise MissingDriver("SQL Server", error.name or "pymssql", "mssql") from error
        return MssqlStore(at)

    def open_async(self, url: str) -> AsyncStore:
        at = parse_url(url)
        try:
            from retrysafe.stores.mssql.aio import AsyncMssqlStore
        except ImportError as error:
            raise MissingDriver("SQL Server", error.name or "pymssql", "mssql") from error
        return AsyncMssqlStore(at)

    def names(self, url: str) -> TableNames:
        return parse_url(url).names

    def schema(self, url: str) -> str:
        return schema.build_script(parse_url(url).names)

    def diagnose(self, url: str) -> Diagnosis:
        try:
            from retrysafe.stores.mssql import doctor
        except ImportError as error:
            raise MissingDriver("SQL Server", error.name or "pymssql", "mssql") from error
        return doctor.diagnose(parse_url(url))


backend = MssqlBackend()

__all__ = ["backend"]
