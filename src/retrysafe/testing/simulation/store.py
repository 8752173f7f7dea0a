"""A store at the other end of the simulated network: any store's operations, carried out on the store's own host.

The records are those of a memory store, which is the definition of what every store does. Time is the store's clock.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from random import Random
from typing import Any, TypeVar

from retrysafe.core.jobs import ListJobs, Namespaces
from retrysafe.core.ops import Claim, ClaimReply, List, Lookup, Op, Stats
from retrysafe.core.records import Record
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear, StoreUnreachable
from retrysafe.stores.base import Capabilities, Store
from retrysafe.stores.memory import CAPABILITIES, MemoryStore
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.network import ConnectionRefused, Network, Unanswered

R = TypeVar("R")

STORE_TIMEOUT_SECONDS = 5.0
LOCK_TIMEOUT_SECONDS = 2.0
"""How long an operation waits for a row that is locked. Then it is refused: nothing was done."""
LOCK_LOOK_SECONDS = 0.25

DURABLE = replace(CAPABILITIES, name="simulated", durable=True, shared=True)
LOSSY = replace(DURABLE, name="simulated, replicated asynchronously", durable=False)
"""A store that may lose what it has acknowledged, and says so."""

READS = frozenset((Lookup, List, Stats, ListJobs, Namespaces))
"""What a read-only primary, and one with a full disk, still does."""


class RemoteStore:
    """An async store of one application host. All hosts that share a database share `records`."""

    def __init__(self, network: Network, server: StoreServer) -> None:
        self._network = network
        self._server = server
        self.capabilities: Capabilities = server.capabilities

    async def execute(self, op: Op[R]) -> R:
        reply: R = (await self.execute_many([op]))[0]
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """Everything that is sent passes here (an ablation stands in its place)."""
        server, names = self._server, "+".join([type(op).__name__ for op in ops])
        if not server.host.alive or server.is_down:
            raise StoreUnreachable("the simulated store is down")
        for op in ops:
            if type(op) is Claim:
                server.on_claim(op)
        try:
            replies: list[Any] = await self._network.call(
                server.host, lambda: server.apply(ops), seconds=STORE_TIMEOUT_SECONDS, what=names
            )
        except Unanswered as error:
            raise self._report_failure(ops, StoreUnclear(str(error))) from None
        except ConnectionRefused as error:
            raise self._report_failure(ops, StoreUnavailable(str(error))) from None
        except StoreError as error:
            self._report_failure(ops, error)
            raise
        for op, reply in zip(ops, replies, strict=True):
            if type(op) is Claim:
                server.on_claim_reply(op, reply)
        return replies

    def _report_failure(self, ops: Sequence[Op[Any]], error: StoreError) -> StoreError:
        for op in ops:
            if type(op) is Claim:
                self._server.on_failed_claim(op, error)
        return error

    async def migrate(self) -> list[str]:
        return []

    async def aclose(self) -> None:
        """Nothing is open."""


class StoreServer:
    """The database itself, on a host with a clock of its own."""

    def __init__(self, host: Host, records: Store, capabilities: Capabilities = DURABLE) -> None:
        self.host = host
        self.records = records
        self.capabilities = capabilities
        self.is_down = False
        self.is_read_only = False
        self.is_full = False
        self.rows: Mapping[bytes, Record] = getattr(records, "_records", {})
        self.locked: set[bytes] = set()
        """The records whose rows a stranger has locked."""

    on_claim: Callable[[Claim], None] = staticmethod(lambda op: None)
    """Called at the sender, before a claim is sent (`watch.py`)."""
    on_failed_claim: Callable[[Claim, StoreError], None] = staticmethod(lambda op, error: None)
    """Called at the sender, when a sending of a claim has failed."""
    on_claim_reply: Callable[[Claim, ClaimReply], None] = staticmethod(lambda op, reply: None)
    """Called at the sender, when a claim was answered."""

    def open_client(self, network: Network) -> RemoteStore:
        """The store of one application host."""
        return RemoteStore(network, self)

    def apply(self, ops: Sequence[Op[Any]]) -> Any:
        """Runs in the context of the store's host, so that the records see the store's clock."""
        if self.locked and any(type(op) not in READS and getattr(op, "id", None) in self.locked for op in ops):
            return self._wait_for_lock(ops)
        return self.carry_out(ops)

    def carry_out(self, ops: Sequence[Op[Any]]) -> list[Any]:
        if self.is_down:
            raise StoreUnclear("the simulated store went down while the request was under way")
        if (self.is_read_only or self.is_full) and not all(type(op) in READS for op in ops):
            raise StoreUnavailable(f"the simulated store {'is read-only' if self.is_read_only else 'has a full disk'}")
        return [self.records.execute(op) for op in ops]

    async def _wait_for_lock(self, ops: Sequence[Op[Any]]) -> Any:
        for _ in range(round(LOCK_TIMEOUT_SECONDS / LOCK_LOOK_SECONDS)):
            await asyncio.sleep(LOCK_LOOK_SECONDS)
            if not any(getattr(op, "id", None) in self.locked for op in ops):
                return self.apply(ops)
        raise StoreUnavailable(f"the row was locked by another transaction for {LOCK_TIMEOUT_SECONDS:g} s")

    def choose_lock(self, chance: Random) -> bytes | None:
        """Lock the row of one record, if there is any. A read does not wait for it."""
        known = sorted(self.rows)
        if not known:
            return None
        chosen = chance.choice(known)
        self.locked.add(chosen)
        return chosen

    def unlock(self, record_id: bytes) -> None:
        self.locked.discard(record_id)

    def fail_over(self, seconds: float) -> int:
        """A replica takes over that is some seconds behind. How many records it lost or has in an earlier state."""
        raise NotImplementedError("only a ReplicatedServer says that it may lose what it has acknowledged")


class ReplicatedServer(StoreServer):
    """A database whose replica is behind, and becomes the primary. It says that it is not durable."""

    def __init__(self, host: Host, records: MemoryStore, now: Callable[[], float]) -> None:
        super().__init__(host, records, LOSSY)
        self._kept: dict[bytes, Record] = records._records
        self._now = now
        self._versions: list[tuple[float, dict[bytes, Record]]] = [(0.0, {})]
        """What the records were after each change, for the last few seconds."""

    def carry_out(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies = super().carry_out(ops)
        if self._kept != self._versions[-1][1]:
            self._versions = [*self._versions[-20:], (self._now(), dict(self._kept))]
        return replies

    def fail_over(self, seconds: float) -> int:
        replicated = self._now() - seconds
        left = next((records for at, records in reversed(self._versions) if at <= replicated), self._versions[0][1])
        lost = sum(left.get(record_id) != record for record_id, record in self._kept.items())
        self._kept.clear()
        self._kept.update(left)
        self._versions = [(self._now(), dict(left))]
        return lost
