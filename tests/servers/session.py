"""The servers one test run shares. The process the user started starts them; xdist's workers get addresses.

`RETRYSAFE_TEST_POSTGRES_URL`, `…_REDIS_URL`, `…_MYSQL_URL` and `…_MARIADB_URL` name a server of your own to be used
instead.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass

import psycopg

from tests.servers.base import Server, ServerUnavailable
from tests.servers.mysql import MariaDBServer, MySQLServer, mysql_version
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import ValkeyServer, redis_version

HANDOVER = "RETRYSAFE_TEST_SESSION_SERVERS"


@dataclass(frozen=True)
class Shared:
    """A server tests may use, or why there is none."""

    store: str
    url: str = ""
    label: str = ""
    missing: str = ""


@dataclass(frozen=True)
class Source:
    """Where a store's server comes from."""

    store: str
    variable: str
    make: Callable[[], Server]
    version: Callable[[str], str]
    origin: str


def postgres_version(url: str) -> str:
    with psycopg.connect(url) as connection:
        major, minor = divmod(connection.info.server_version, 10_000)
    return f"PostgreSQL {major}.{minor}"


RELAXED = {"innodb-flush-log-at-trx-commit": "2"}
"""A commit is with the kernel when it is acknowledged, not on the disk: it survives the server's death, which is all
that tests on a shared server could tell apart. Those that kill one start their own, which is as it comes."""

SOURCES = (
    Source("postgres", "RETRYSAFE_TEST_POSTGRES_URL", PostgresServer, postgres_version, "embedded wheel"),
    Source("redis", "RETRYSAFE_TEST_REDIS_URL", ValkeyServer, redis_version, "wheel"),
    Source("mysql", "RETRYSAFE_TEST_MYSQL_URL", lambda: MySQLServer(**RELAXED), mysql_version, "Debian package"),
    Source("mariadb", "RETRYSAFE_TEST_MARIADB_URL", lambda: MariaDBServer(**RELAXED), mysql_version, "Debian package"),
)

_running: list[Server] = []


def start_all() -> dict[str, Shared]:
    """Start what is needed and leave the addresses in the environment, where workers find them."""
    with ThreadPoolExecutor(len(SOURCES)) as pool:  # together: some take ten seconds to come up
        shared = dict(zip((source.store for source in SOURCES), pool.map(provide, SOURCES), strict=True))
    os.environ[HANDOVER] = json.dumps({name: asdict(server) for name, server in shared.items()})
    return shared


def provide(source: Source) -> Shared:
    own = os.environ.get(source.variable)
    if own:
        return _yours(source, own)
    try:
        server = source.make().start()
    except ServerUnavailable as error:
        return Shared(source.store, missing=str(error))
    _running.append(server)
    return Shared(source.store, server.url, f"{server.version()} ({source.origin})")


def _yours(source: Source, url: str) -> Shared:
    try:
        return Shared(source.store, url, f"{source.version(url)} (yours, from {source.variable})")
    except Exception as error:
        return Shared(source.store, missing=f"the server {source.variable} names does not answer: {error}")


def handed_over() -> dict[str, Shared]:
    """The servers of this run, as seen from any of its processes."""
    found = json.loads(os.environ.get(HANDOVER, "{}"))
    return {name: Shared(**fields) for name, fields in found.items()}


def stop_all() -> None:
    os.environ.pop(HANDOVER, None)
    while _running:
        with suppress(Exception):
            _running.pop().stop()
