"""A primary and its replica, for tests in which the one takes the place of the other."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests.opening import with_option
from tests.servers.base import ServerUnavailable
from tests.servers.valkey import ValkeyServer
from tests.waiting import until

PATIENCE = 120.0

PATIENT = {"wait": "1", "wait_timeout": "50", "socket_timeout": "60"}
"""One replica, however long it takes on a busy machine."""


@dataclass
class Pair:
    """A primary and its replica."""

    primary: ValkeyServer
    replica: ValkeyServer

    def follow(self) -> None:
        with self.replica.client() as client:
            client.replicaof("127.0.0.1", self.primary.port)
        until(lambda: linked(self.replica) and replicas(self.primary) == 1, PATIENCE, "the replica to follow")
        until(lambda: persistent(self.replica), PATIENCE, "what the replica was given to be in its AOF")

    def promote(self) -> None:
        with self.replica.client() as client:
            client.replicaof("NO", "ONE")

    def swap(self) -> None:
        self.primary, self.replica = self.replica, self.primary

    def restore(self) -> None:
        """Both alive, the second following the first."""
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


def started(kind: type[ValkeyServer]) -> Iterator[Pair]:
    """For a fixture: two servers that do not know of each other yet."""
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


def linked(server: ValkeyServer) -> bool:
    """Whether it follows another, and has everything of it."""
    with server.client() as client:
        return str(client.info("replication").get("master_link_status")) == "up"


def persistent(server: ValkeyServer) -> bool:
    """A replica that was given everything anew writes its AOF anew; killed before that, it comes back with the old."""
    with server.client() as client:
        told = client.info("persistence")
    return not (int(told["aof_rewrite_in_progress"]) or int(told["aof_rewrite_scheduled"]))


def replicas(server: ValkeyServer) -> int:
    with server.client() as client:
        return int(client.info("replication")["connected_slaves"])


def address(url: str, prefix: str, **options: str) -> str:
    url = with_option(url, "prefix", prefix)
    for name, value in options.items():
        url = with_option(url, name, value)
    return url
