"""SQL Server, through pymssql; async by threads. It was written to the manual and checked by a parser. It has run on
Babelfish 4.3 in part, and never on SQL Server (docs/howto/sql-server.md).

Importing this package registers its part of transactions: how to join a pymssql connection, and what SQL Server's
error numbers mean. retrysafe imports it when a `mssql://` URL is opened (entry point group `retrysafe.stores`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.stores.base import AsyncStore, Store, driver_import
from retrysafe.stores.sql.names import TableNames
from retrysafe.transactions.failures import register_error_numbers
from retrysafe.transactions.sources import Adapter, register_adapter
from retrysafe_mssql import schema
from retrysafe_mssql.dialect import CAPABILITIES, parse_url
from retrysafe_mssql.errors import classify_number
from retrysafe_mssql.protocol import error_number

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis


class MssqlBackend:
    """Opens `mssql://…`. The driver is imported when a store is opened."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        at = parse_url(url)
        with driver_import("SQL Server", "pymssql", "mssql"):
            from retrysafe_mssql.store import MssqlStore
        return MssqlStore(at)

    def open_async(self, url: str) -> AsyncStore:
        at = parse_url(url)
        with driver_import("SQL Server", "pymssql", "mssql"):
            from retrysafe_mssql.store import AsyncMssqlStore
        return AsyncMssqlStore(at)

    def names(self, url: str) -> TableNames:
        return parse_url(url).names

    def schema(self, url: str) -> str:
        return schema.build_script(parse_url(url).names)

    def diagnose(self, url: str) -> Diagnosis:
        with driver_import("SQL Server", "pymssql", "mssql"):
            from retrysafe_mssql import doctor
        return doctor.diagnose(parse_url(url))


backend = MssqlBackend()

register_adapter("pymssql", "Connection", Adapter("sync", "retrysafe_mssql.on_pymssql", "connection", closes=True))
register_error_numbers(error_number, classify_number)

__all__ = ["backend"]
