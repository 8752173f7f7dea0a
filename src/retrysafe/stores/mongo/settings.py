"""Where the server is and what is asked of it, whatever its defaults are. No driver is needed to read this file.

mongodb://[user:password@]host[:port][,…]/database?collection=…&patience=…&(anything MongoDB's drivers know)
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple
from urllib.parse import unquote

from retrysafe.core.urls import safe_url
from retrysafe.errors import BadName, StoreURLError
from retrysafe.stores.base import Capabilities
from retrysafe.stores.sql.names import parse_number_option, split_options

CAPABILITIES = Capabilities(
    name="mongodb", durable=True, shared=True, transactions=True, clock="store", outbox=True, lists_by_id=True
)

DEFAULT_PREFIX = "retrysafe"
_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
_OPTIONS = frozenset({"collection", "patience"})

LOCK_TIMEOUT_SECONDS = 5.0
"""Seconds a write waits for a document that an open transaction holds (I28), and a busy server may take."""

WRITE_CONCERN_TIMEOUT_MS = 10_000
"""Milliseconds until "a majority has it" has to be heard. After that nobody knows, and the operation is sent again."""

WRITE_CONCERN = {"w": "majority", "j": True, "wtimeout": WRITE_CONCERN_TIMEOUT_MS}
"""Said with every write, so that no default and no URL can weaken it (I10)."""

FIXED_CLIENT_OPTIONS: dict[str, Any] = {"retryWrites": False}
"""An operation recognises its own success: a driver that repeats it in secret gains nothing."""

DEFAULT_CLIENT_OPTIONS: dict[str, Any] = {
    "serverSelectionTimeoutMS": 5_000,
    "connectTimeoutMS": 5_000,
    "waitQueueTimeoutMS": 10_000,
    "socketTimeoutMS": 20_000,
    "appname": "retrysafe",
}
"""Unless the URL says otherwise."""


class CollectionNames(NamedTuple):
    """The collections of one installation."""

    keys: str
    meta: str
    outbox: str


class Collections(NamedTuple):
    """Where an installation is, on a server: what a transaction of the user's needs to know of it."""

    database: str
    names: CollectionNames


class MongoLocation(NamedTuple):
    url: str
    """As the driver wants to hear it."""
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
    # By hand: a URL with several hosts is none to urlsplit.
    hosts, _, path = plain.partition("?")[0].partition("://")[2].partition("/")
    database = unquote(path)
    if not hosts or not database:
        raise StoreURLError(f"{safe_url(url)!r} names no database; write mongodb://host:27017/database?replicaSet=rs0")
    if any(mark in database for mark in '/\\. "$\0') or len(database.encode()) > 63:
        raise StoreURLError(f"{safe_url(url)!r}: MongoDB takes no database named {database!r}; choose a plain name")
    collection = options.get("collection", DEFAULT_PREFIX)
    build_names(collection)  # is it one that can be used?
    return MongoLocation(plain, database, collection, parse_number_option(options, "patience", LOCK_TIMEOUT_SECONDS))
