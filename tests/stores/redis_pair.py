"""A primary and its replica, for tests of a failover."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.opening import with_option
from tests.servers.base import ServerUnavailable
from tests.servers.valkey import ValkeyServer
from tests.waiting import until

TIMEOUT_SECONDS = 120.0

WAIT_OPTIONS = {"wait": "1", "wait_timeout": "50", "socket_timeout": "60"}
"""Options that wait for one replica, long enough for a busy machine."""


@dataclass
class Pair:
    """A primary and its replica."""

    primary: ValkeyServer
    replica: ValkeyServer

    def follow(self) -> None:
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.primary.port)
        until(
            lambda: is_linked(self.replica) and count_replicas(self.primary) == 1,
            TIMEOUT_SECONDS,
            "the replica to follow",
        )
        until(lambda: is_persistent(self.replica), TIMEOUT_SECONDS, "the replica's copy to be in its AOF")

    def promote(self) -> None:
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")

    def swap(self) -> None:
        self.primary, self.replica = self.replica, self.primary

    def restore(self) -> None:
        """Start both servers again if needed, and let the replica follow the primary."""
        for server in self.servers:
            if server.process is None:
                server.resume()
        with self.primary.client() as client:
            client.replicaof("NO", "ONE")
            client.config_set("min-replicas-to-write", "0")
        self.follow()

    @property
    def servers(self) -> list[ValkeyServer]:
        return [self.primary, self.replica]


def start_pair(kind: type[ValkeyServer]) -> Iterator[Pair]:
    """Start two servers that do not know each other yet. For a fixture."""
    pair = Pair(kind(), kind())
    try:
        for server in pair.servers:
            server.start()
    except ServerUnavailable as error:
        if os.environ.get("CI"):
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
    yield pair
    for server in pair.servers:
        server.kill()
        server.stop()


def is_linked(server: ValkeyServer) -> bool:
    """True if the server follows a primary and its copy is complete."""
    with server.client() as client:
        return str(client.info("replication").get("master_link_status")) == "up"


def is_persistent(server: ValkeyServer) -> bool:
    """True if no rewrite of the AOF is pending. A replica rewrites its AOF after a full copy. If it is killed before
    that, it comes back with the old data."""
    with server.client() as client:
        info = client.info("persistence")
    return not (int(info["aof_rewrite_in_progress"]) or int(info["aof_rewrite_scheduled"]))


def count_replicas(server: ValkeyServer) -> int:
    with server.client() as client:
        return int(client.info("replication")["connected_slaves"])


def url_with(url: str, prefix: str, **options: str) -> str:
    url = with_option(url, "prefix", prefix)
    for name, value in options.items():
        url = with_option(url, name, value)
    return url
