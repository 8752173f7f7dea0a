"""What is killed, and how it comes back: a server of its own, or, where the process is the server, a process.

A store is entered in VICTIMS in one line: what makes the thing that dies. It is killed with SIGKILL, which is not a
power cut: what the kernel has in memory survives it (the doctor says what a store's settings are worth beyond that).
"""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from itertools import cycle
from pathlib import Path
from typing import Protocol

from tests.faults.load import Load, Told
from tests.opening import open_migrated, patient, unique
from tests.servers import MariaDBServer, MongoServer, MySQLServer, PostgresServer, ValkeyServer
from tests.servers.base import Server
from tests.servers.dynamodb import DynoxideServer
from tests.servers.valkey import RedisServer, ValkeyCluster

ROOT = Path(__file__).parents[2]


class Victim(Protocol):
    """Something under load. `told` grows while it lives; `url` may be looked at after `finish`."""

    url: str
    told: list[Told]

    def kill(self) -> None:
        """Dead on the spot, back again, and the load goes on."""

    def finish(self) -> None:
        """End the load."""

    def close(self) -> None: ...


class KilledServer:
    """The load is in this process and outlives the server."""

    def __init__(self, store: str, server: Server, options: str = "") -> None:
        """`options` make the load impatient, which sends again what was refused; who looks before and after is not."""
        self.server = server
        server.start()
        self.url = patient(store, server.url)
        self.told: list[Told] = []
        open_migrated(self.url, "sync").close()
        hasty = f"{server.url}{'&' if '?' in server.url else '?'}{options}" if options else server.url
        self.load = Load(hasty, self.told.append)

    def kill(self) -> None:
        assert self.server.process is not None
        before = self.server.process.pid
        self.server.restart()
        assert self.server.process.pid != before

    def finish(self) -> None:
        self.load.stop()

    def close(self) -> None:
        self.server.stop()


class KilledNode(KilledServer):
    """A cluster of which one primary after the other is killed; the slots of the others go on meanwhile."""

    def __init__(self, store: str, cluster: ValkeyCluster) -> None:
        super().__init__(store, cluster)
        self.turn = cycle(cluster.primaries)

    def kill(self) -> None:
        node = next(self.turn)
        assert node.process is not None
        before = node.process.pid
        node.restart()
        assert node.process.pid != before


class KilledProcess:
    """The load is in a process of its own and dies with its store; another goes on with other keys."""

    STRIDE = 1_000_000

    def __init__(self, url: str) -> None:
        self.url = url
        self.told: list[Told] = []
        self.deaths = 0
        open_migrated(url, "sync").close()
        self._spawn()

    def kill(self) -> None:
        self._end()
        self.deaths += 1
        self._spawn()

    def finish(self) -> None:
        self._end()

    def close(self) -> None:
        self._end()

    def _spawn(self) -> None:
        command = [sys.executable, "-m", "tests.faults.victims", self.url, str(self.deaths * self.STRIDE)]
        self.process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stdin=subprocess.PIPE, text=True)
        self._reader = threading.Thread(target=self._read, args=(self.process,), daemon=True)
        self._reader.start()

    def _read(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):  # the last one may be torn: then nobody was told
                self.told.append(Told(*line.split()))

    def _end(self) -> None:
        self.process.kill()
        self._reader.join(60)
        for end in (self.process.stdin, self.process.stdout):
            assert end is not None
            end.close()
        self.process.wait()


POOL = "pool=6&pool_timeout=1"

VICTIMS: dict[str, Callable[[Path], Victim]] = {
    "postgres": lambda folder: KilledServer("postgres", PostgresServer(), POOL),
    "mysql": lambda folder: KilledServer("mysql", MySQLServer(), POOL),
    "mariadb": lambda folder: KilledServer("mariadb", MariaDBServer(), POOL),
    # A moment without a majority is no transaction: a claim waits for longer than any restart takes.
    "mongodb": lambda folder: KilledServer("mongodb", MongoServer(), "patience=60&serverSelectionTimeoutMS=1000"),
    "redis": lambda folder: KilledServer("redis", ValkeyServer()),
    "redis8": lambda folder: KilledServer("redis8", RedisServer()),
    "redis_cluster": lambda folder: KilledNode("redis_cluster", ValkeyCluster()),
    "dynamodb": lambda folder: KilledServer("dynamodb", DynoxideServer(), "attempts=1&timeout=20"),
    "sqlite": lambda folder: KilledProcess(f"sqlite:///{folder / unique()}.db"),
    "duckdb": lambda folder: KilledProcess(f"duckdb:///{folder / unique()}.duckdb"),
}


def main(url: str, first: str) -> None:
    """The process that is killed: each line it writes was acknowledged by the store before."""
    out = sys.stdout
    lock = threading.Lock()

    def tell(one: Told) -> None:
        with lock:
            out.write(" ".join(one) + "\n")
            out.flush()

    load = Load(url, tell, first=int(first))
    sys.stdin.read()  # until whoever started us is gone, should it forget to kill us
    load.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
