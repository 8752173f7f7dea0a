"""The MongoDB store: one findAndModify per operation. The server decides and writes in one step, by its own clock. A
majority of the members and their journals acknowledge.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from retrysafe.stores.base import AsyncStore, Store, driver_import
from retrysafe.stores.mongo import schema
from retrysafe.stores.mongo.settings import CAPABILITIES, Collections, parse_url

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis


class MongoBackend:
    """Opens `mongodb://…` and `mongodb+srv://…`. The driver is imported when a store is opened."""

    capabilities = CAPABILITIES

    def open(self, url: str) -> Store:
        at = parse_url(url)
        with driver_import("MongoDB", "pymongo", "mongodb"):
            from retrysafe.stores.mongo.sync import MongoStore
        return MongoStore.open(at)

    def open_async(self, url: str) -> AsyncStore:
        at = parse_url(url)
        with driver_import("MongoDB", "pymongo", "mongodb"):
            from retrysafe.stores.mongo.aio import AsyncMongoStore
        return AsyncMongoStore.open(at)

    def names(self, url: str) -> Collections:
        at = parse_url(url)
        return Collections(at.database, at.names)

    def schema(self, url: str) -> str:
        return schema.build_script(parse_url(url).names)

    def diagnose(self, url: str) -> Diagnosis:
        with driver_import("MongoDB", "pymongo", "mongodb"):
            from retrysafe.stores.mongo import doctor
        return doctor.diagnose(parse_url(url))


backend = MongoBackend()

__all__ = ["backend"]
