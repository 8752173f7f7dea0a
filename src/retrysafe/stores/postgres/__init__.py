"""The PostgreSQL store, through psycopg 3: READ COMMITTED, a commit per operation, the database's own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.stores.base import AsyncStore, Store, driver_import
from retrysafe.stores.postgres.dialect import CAPABILITIES, DIALECT, parse_url
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.names import TableNames

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis


class PostgresBackend:
    """Opens `postgresql://…`. Imports the driver when a store is opened, not before."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        at = parse_url(url)
        with driver_import("PostgreSQL", "psycopg", "postgres"):
            from retrysafe.stores.postgres.sync import PostgresStore
        return PostgresStore.from_url(at)

    def open_async(self, url: str) -> AsyncStore:
        at = parse_url(url)
        with driver_import("PostgreSQL", "psycopg", "postgres"):
            from retrysafe.stores.postgres.aio import AsyncPostgresStore
        return AsyncPostgresStore.from_url(at)

    def names(self, url: str) -> TableNames:
        return parse_url(url).names

    def schema(self, url: str) -> str:
        return migrations.build_script(DIALECT, parse_url(url).names)

    def diagnose(self, url: str) -> Diagnosis:
        with driver_import("PostgreSQL", "psycopg", "postgres"):
            from retrysafe.stores.postgres import doctor
        return doctor.diagnose(parse_url(url))


backend = PostgresBackend()

__all__ = ["backend"]
