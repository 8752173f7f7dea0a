"""The store of MySQL and MariaDB, through PyMySQL (sync) and asyncmy (async): READ COMMITTED, a commit per operation,
the database's own clock.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.stores.base import AsyncStore, Store, driver_import
from retrysafe.stores.mysql.dialect import CAPABILITIES, dialect_of, parse_url
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.names import TableNames

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis


class MysqlBackend:
    """Opens `mysql://…` and `mariadb://…`. Imports the driver when a store is opened, not before."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        at = parse_url(url)
        with driver_import("MySQL", "pymysql", "mysql"):
            from retrysafe.stores.mysql.sync import MysqlStore
        return MysqlStore.from_url(at)

    def open_async(self, url: str) -> AsyncStore:
        at = parse_url(url)
        with driver_import("MySQL", "asyncmy", "mysql"):
            from retrysafe.stores.mysql.aio import AsyncMysqlStore
        return AsyncMysqlStore.from_url(at)

    def names(self, url: str) -> TableNames:
        return parse_url(url).names

    def schema(self, url: str) -> str:
        return migrations.build_script(dialect_of(url.partition(":")[0]), parse_url(url).names)

    def diagnose(self, url: str) -> Diagnosis:
        with driver_import("MySQL", "pymysql", "mysql"):
            from retrysafe.stores.mysql import doctor
        return doctor.diagnose(parse_url(url))


backend = MysqlBackend()

__all__ = ["backend"]
