"""The async colour of SQL Server: the sync one in as many threads as it has connections.

aioodbc, the usual way, is threads around pyodbc as well, and wants a driver of the system's; pymssql brings its own.
"""

from __future__ import annotations

from retrysafe.stores.mssql.dialect import MssqlLocation
from retrysafe.stores.mssql.sync import MssqlStore
from retrysafe.stores.threaded import ThreadedStore


class AsyncMssqlStore(ThreadedStore):
    """Made from a URL. A caller that is cancelled leaves its operation to finish by itself."""

    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""

    def __init__(self, at: MssqlLocation) -> None:
        super().__init__(MssqlStore(at), threads=at.pool, name="retrysafe-mssql")
        self.names = at.names
