"""The reference store: core/moves.py on a dictionary. Tests compare the other stores with it. It is not durable.

Each `memory://` is a store of its own. All stores of `memory://name` in one process share their records, sync and
async alike.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from retrysafe.core.backlog import Backlog, BacklogReply, group_open
from retrysafe.core.moves import claim, move, reapable
from retrysafe.core.ops import (
    FENCED,
    Claim,
    ClaimReply,
    List,
    Lookup,
    LookupReply,
    Op,
    Page,
    Reap,
    Stats,
    StatsReply,
)
from retrysafe.core.records import Record
from retrysafe.core.states import OPEN, State
from retrysafe.stores.base import AsyncStore, Capabilities, Store, read_id_cursor
from retrysafe.stores.memory_outbox import MemoryOutbox

if TYPE_CHECKING:
    from retrysafe.stores.diagnosis import Diagnosis

R = TypeVar("R")

CAPABILITIES = Capabilities(
    name="memory",
    durable=False,
    shared=False,
    transactions=False,
    clock="host",
    outbox=True,
    lists_by_id=True,
    backlog="scan",
)


class MemoryStore:
    """A sync store. Every operation runs under one lock, so every operation is atomic."""

    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._records: dict[bytes, Record] = {}
        self._outbox = MemoryOutbox(lambda: {record.namespace for record in self._records.values()})
        self._lock = threading.Lock()

    def execute(self, op: Op[R]) -> R:
        with self._lock:
            return self._apply(op)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        with self._lock:
            return [self._apply(op) for op in ops]

    def migrate(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""

    def _apply(self, op: Op[R]) -> R:
        given: int | None = op.now  # type: ignore[attr-defined]
        now = time.time_ns() // 1000 if given is None else given
        apply = _APPLY.get(type(op))
        reply: R = apply(self, op, now) if apply is not None else self._outbox.apply(op, now)
        return reply

    def _claim(self, op: Claim, now: int) -> ClaimReply:
        record, reply = claim(self._records.get(op.id), op, now)
        if record is not None:
            self._records[op.id] = record
        return reply

    def _move(self, op: Any, now: int) -> bool:
        record, applied = move(self._records.get(op.id), op, now)
        if record is not None:
            self._records[op.id] = record
        return applied

    def _lookup(self, op: Lookup, now: int) -> LookupReply:
        return LookupReply(self._records.get(op.id), now)

    def _reap(self, op: Reap, now: int) -> int:
        found = [r for r in self._records.values() if op.namespace in (None, r.namespace)]
        expired = sorted((r.expires, r.id) for r in found if reapable(r, now))
        for _, record_id in expired[: op.limit]:
            del self._records[record_id]
        return min(len(expired), op.limit)

    def _list(self, op: List, now: int) -> Page:
        after = read_id_cursor(op.cursor)
        found = [r for r in self._records.values() if r.id > after and matches_list(r, op, now)]
        page = sorted(found, key=lambda record: record.id)[: op.limit]
        more = len(found) > len(page)
        return Page(tuple(page), page[-1].id.hex() if more else "")

    def _stats(self, op: Stats, now: int) -> StatsReply:
        records = [r for r in self._records.values() if op.namespace in (None, r.namespace)]
        counts = {state: sum(r.state is state for r in records) for state in State}
        return StatsReply(
            claimed=counts[State.CLAIMED],
            released=counts[State.RELEASED],
            completed=counts[State.COMPLETED],
            uncertain=counts[State.UNCERTAIN],
            lapsed=sum(r.lapsed(now) for r in records),
            expired=sum(reapable(r, now) for r in records),
            now=now,
        )

    def _backlog(self, op: Backlog, now: int) -> BacklogReply:
        found = [r for r in self._records.values() if op.namespace in (None, r.namespace)]
        opened = sorted((r for r in found if r.state in OPEN), key=lambda record: record.lease_until)
        expired = sorted(r.expires for r in found if reapable(r, now))
        truncated = max(len(opened), len(expired)) >= op.limit
        groups = group_open(opened[: op.limit], now)
        return BacklogReply(groups, len(expired[: op.limit]), expired[0] if expired else 0, truncated, now)


def matches_list(record: Record, op: List, now: int) -> bool:
    """Whether a List asks for this record."""
    return (
        op.namespace in (None, record.namespace)
        and op.state in (None, record.state)
        and op.kind in (None, record.kind)
        and op.scope in (None, record.scope)
        and op.key in (None, record.key)
        and (not op.lapsed or record.lapsed(now))
        and (not op.resting or (record.state is State.RELEASED and record.point != ""))
        and not (op.state is State.RELEASED and record.expired(now))
    )


_APPLY: dict[type[Any], Callable[[MemoryStore, Any, int], Any]] = {
    Claim: MemoryStore._claim,
    Lookup: MemoryStore._lookup,
    Reap: MemoryStore._reap,
    List: MemoryStore._list,
    Stats: MemoryStore._stats,
    Backlog: MemoryStore._backlog,
    **dict.fromkeys(FENCED, MemoryStore._move),
}


class AsyncMemoryStore:
    """An async store over a MemoryStore. Nothing in it blocks for longer than a dictionary look-up."""

    capabilities = CAPABILITIES
    in_order = True

    def __init__(self, store: MemoryStore | None = None) -> None:
        self._store = store or MemoryStore()

    async def execute(self, op: Op[R]) -> R:
        return self._store.execute(op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._store.execute_many(ops)

    async def migrate(self) -> list[str]:
        return []

    async def aclose(self) -> None:
        """Nothing is open."""


class MemoryBackend:
    """Opens memory stores by name."""

    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._named: dict[str, MemoryStore] = {}

    def open(self, url: str) -> Store:
        return self._named_store(url)

    def open_async(self, url: str) -> AsyncStore:
        return AsyncMemoryStore(self._named_store(url))

    def schema(self, url: str) -> str:
        return ""

    def diagnose(self, url: str) -> Diagnosis:
        from retrysafe.stores.diagnosis import Diagnosis, bad

        why = "it ends with the process, and no other process sees it"
        return Diagnosis("memory", (bad("durability", "none", "best-effort", why, "use sqlite:///app.db or better"),))

    def _named_store(self, url: str) -> MemoryStore:
        name = url.partition("://")[2]
        return self._named.setdefault(name, MemoryStore()) if name else MemoryStore()


backend = MemoryBackend()
