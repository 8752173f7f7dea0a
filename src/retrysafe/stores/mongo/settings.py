"""The URL of a MongoDB store, its collections, and the options of its client. Imports no driver.

mongodb://[user:password@]host[:port][,…]/database?collection=…&patience=…&(any option of MongoDB's drivers)
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from retrysafe.core.urls import safe_url
from retrysafe.errors import BadName, StoreURLError
from retrysafe.stores.base import Capabilities
from retrysafe.stores.url_options import parse_number_option, split_options

CAPABILITIES = Capabilities(
    name="mongodb",
    durable=True,
    shared=True,
    transactions=True,
    clock="store",
    outbox=True,
    lists_by_id=True,
    backlog="index",
    mixed_batches=True,
    has_install_id=True,
)

DEFAULT_PREFIX = "retrysafe"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_OPTIONS = frozenset({"collection", "patience"})

LOCK_TIMEOUT_SECONDS = 5.0
"""How long a write may take: while an open transaction holds the document (I28), or while the server is busy."""

WRITE_CONCERN_TIMEOUT_MS = 10_000
"""How long a write waits for the majority. After that its outcome is unclear, and the operation is sent again."""

WRITE_CONCERN = {"w": "majority", "j": True, "wtimeout": WRITE_CONCERN_TIMEOUT_MS}
"""Sent with every write, so that no default of the server and no URL can weaken it (I10)."""

FIXED_CLIENT_OPTIONS: dict[str, Any] = {"retryWrites": False}
"""The URL cannot change them. The driver need not repeat writes: an operation recognises its own earlier success."""

DEFAULT_CLIENT_OPTIONS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "waitQueueTimeoutMS": 10_000,
    "socketTimeoutMS": 20_000,
    "appname": "retrysafe",
}
"""Used unless the URL has another value."""


class CollectionNames(NamedTuple):
    """The collections of one installation."""

    keys: str
    meta: str
    outbox: str


class Collections(NamedTuple):
    """The database and the collections of an installation. A transaction on the user's client needs both."""

    database: str
    names: CollectionNames


class MongoLocation(NamedTuple):
    url: str
    """The URL for the driver, without our own options."""
    database: str
    collection: str = DEFAULT_PREFIX
    patience: float = LOCK_TIMEOUT_SECONDS

    @property
    def names(self) -> CollectionNames:
        return build_names(self.collection)


def build_names(prefix: str = DEFAULT_PREFIX) -> CollectionNames:
    if not _NAME.fullmatch(prefix):
        raise BadName(
            f"collection={prefix!r} cannot begin the names of collections: use 1 to 48 of a-z, 0-9 and _, "
            "not starting with a digit"
        )
    return CollectionNames(f"{prefix}_keys", f"{prefix}_meta", f"{prefix}_outbox")


def parse_url(url: str) -> MongoLocation:
    plain, options = split_options(url, _OPTIONS)
    # urlsplit does not accept a URL with several hosts.
    hosts, _, path = plain.partition("?")[0].partition("://")[2].partition("/")
    database = unquote(path)
    if not hosts or not database:
        raise StoreURLError(f"{safe_url(url)!r} names no database; write mongodb://host:27017/database?replicaSet=rs0")
    if any(mark in database for mark in '/\\. "$\0') or len(database.encode()) > 63:
        raise StoreURLError(f"{safe_url(url)!r}: MongoDB takes no database named {database!r}; choose a plain name")
    collection = options.get("collection", DEFAULT_PREFIX)
    build_names(collection)  # raises BadName
    return MongoLocation(plain, database, collection, parse_number_option(options, "patience", LOCK_TIMEOUT_SECONDS))
