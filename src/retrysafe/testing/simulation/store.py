"""A store at the other end of the simulated network: any store's operations, carried out on the store's own host.

The records are those of a memory store, which is the definition of what every store does. Time is the store's clock.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.base import Store
from retrysafe.stores.memory import CAPABILITIES
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.network import Network, Refused, Unanswered

R = TypeVar("R")

STORE_TIMEOUT_SECONDS = 5.0


class RemoteStore:
    """An async store of one application host. All hosts that share a database share `records`."""

    capabilities = CAPABILITIES

    def __init__(self, network: Network, server: StoreServer) -> None:
        self._network = network
        self._server = server

    async def execute(self, op: Op[R]) -> R:
        replies = await self.execute_many([op])
        reply: R = replies[0]
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        server, names = self._server, "+".join(type(op).__name__ for op in ops)
        if not server.host.alive or server.is_down:
            raise StoreUnreachable("the simulated store is down")
        try:
            replies: list[Any] = await self._network.call(
                server.host, lambda: server.apply(ops), seconds=STORE_TIMEOUT_SECONDS, what=names
            )
        except Unanswered as error:
            raise StoreUnclear(str(error)) from None
        except Refused as error:
            raise StoreUnavailable(str(error)) from None
        return replies

    async def migrate(self) -> list[str]:
        return []

    async def aclose(self) -> None:
        """Nothing is open."""


class StoreServer:
    """The database itself, on a host with a clock of its own."""

    def __init__(self, host: Host, records: Store) -> None:
        self.host = host
        self.records = records
        self.is_down = False
        self.is_read_only = False

    def open_client(self, network: Network) -> RemoteStore:
        """The store of one application host."""
        return RemoteStore(network, self)

    def apply(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Runs in the context of the store's host, so that the records see the store's clock."""
        if self.is_down:
            raise StoreUnclear("the simulated store went down while the request was under way")
        if self.is_read_only:
            raise StoreUnavailable("the simulated store is read-only: a primary that was demoted")
        return [self.records.execute(op) for op in ops]
