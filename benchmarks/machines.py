"""The servers of a run: the ones the tests use, each on a free port with its data in a temporary folder."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tests.servers import MariaDBServer, MongoServer, MySQLServer, PostgresServer, Server, ValkeyServer
from tests.servers.dynamodb import DynoxideServer

T = TypeVar("T")


@dataclass
class Machines:
    """Started at first use, stopped with the run."""

    stack: ExitStack
    folder: Path
    labels: list[str] = field(default_factory=list)
    _urls: dict[str, str] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    _made: dict[str, Any] = field(default_factory=dict)

    @property
    def postgres(self) -> str:
        """Full durability: fsync and synchronous_commit on."""
        return self._url("postgres", lambda: PostgresServer(shared_buffers="512MB", max_wal_size="4GB"))

    @property
    def redis(self) -> str:
        """Every write on disk before it is answered: appendfsync always."""
        return self._url("redis, AOF always", ValkeyServer)

    @property
    def redis_memory(self) -> str:
        """No append-only file: what the client costs, with as little of the server in it as can be."""
        return self._url("redis, no AOF", lambda: ValkeyServer(appendonly="no"))

    @property
    def mysql(self) -> str:
        return self._url("mysql", lambda: MySQLServer(**{"innodb-buffer-pool-size": "512M"}))

    @property
    def mariadb(self) -> str:
        return self._url("mariadb", lambda: MariaDBServer(**{"innodb-buffer-pool-size": "512M"}))

    @property
    def mongo(self) -> str:
        return self._url("mongodb", MongoServer)

    @property
    def dynamodb(self) -> str:
        """Dynoxide: a small server of DynamoDB's protocol, durable on a file."""
        return self._url("dynamodb", DynoxideServer)

    def sqlite(self, name: str) -> str:
        return str(self.folder / f"{name}.db")

    def once(self, name: str, make: Callable[[], T]) -> T:
        """What several parts need and one of them makes."""
        if name not in self._made:
            self._made[name] = make()
        made: T = self._made[name]
        return made

    def _url(self, name: str, make: Callable[[], Server]) -> str:
        if name not in self._urls:
            server = make().start()
            self.stack.callback(server.stop)
            self._urls[name] = server.url
            self.servers[name] = server
            self.labels.append(f"{server.version()} ({name})")
        return self._urls[name]


@contextmanager
def machines() -> Iterator[Machines]:
    with ExitStack() as stack:
        # Not below a memory file system: a commit must reach a disk.
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="retrysafe-bench-"))
        yield Machines(stack, Path(folder))
