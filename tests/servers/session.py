"""The servers one test run shares. The process the user started starts them; xdist's workers get addresses.

`RETRYSAFE_TEST_POSTGRES_URL`, `…_REDIS_URL`, `…_MYSQL_URL`, `…_MARIADB_URL`, `…_MONGODB_URL` and
`…_DYNAMODB_URL` name a server of your own to be used instead.
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
from tests.servers.dynamodb import DynoxideServer, dynamodb_version
from tests.servers.mongodb import MongoServer, mongodb_version
from tests.servers.mysql import MariaDBServer, MySQLServer, mysql_version
from tests.servers.postgres import PostgresServer
from tests.servers.valkey import RedisServer, ValkeyCluster, ValkeyServer, cluster_version, redis_version

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
    Source("redis8", "RETRYSAFE_TEST_REDIS8_URL", RedisServer, redis_version, "Debian package"),
    Source("redis_cluster", "RETRYSAFE_TEST_REDIS_CLUSTER_URL", ValkeyCluster, cluster_version, "wheel"),
    Source("mysql", "RETRYSAFE_TEST_MYSQL_URL", lambda: MySQLServer(**RELAXED), mysql_version, "Debian package"),
    Source("mariadb", "RETRYSAFE_TEST_MARIADB_URL", lambda: MariaDBServer(**RELAXED), mysql_version, "Debian package"),
    Source("mongodb", "RETRYSAFE_TEST_MONGODB_URL", lambda: MongoServer(in_memory=True), mongodb_version, "wheel"),
    Source("dynamodb", "RETRYSAFE_TEST_DYNAMODB_URL", DynoxideServer, dynamodb_version, "npm package"),
)

_running: list[Server] = []
_on_demand = False


def start_all() -> None:
    """Start every server, for workers to share, and leave the addresses in the environment, where they find them."""
    with ThreadPoolExecutor(len(SOURCES)) as pool:  # together: some take ten seconds to come up
        _hand_over({source.store: shared for source, shared in zip(SOURCES, pool.map(provide, SOURCES), strict=True)})


def start_on_demand() -> None:
    """This process runs the tests itself, so that a server may wait until a test asks for it."""
    global _on_demand  # noqa: PLW0603  # one run, one process
    _on_demand = True


def shared(store: str) -> Shared | None:
    """The server of this run for a store; None where nobody was told to start any."""
    found = handed_over()
    if store not in found and _on_demand:
        [source] = [source for source in SOURCES if source.store == store]
        _hand_over({**found, store: provide(source)})
    return handed_over().get(store)


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


def _hand_over(servers: dict[str, Shared]) -> None:
    os.environ[HANDOVER] = json.dumps({name: asdict(server) for name, server in servers.items()})


def stop_all() -> None:
    os.environ.pop(HANDOVER, None)
    while _running:
        with suppress(Exception):
            _running.pop().stop()
