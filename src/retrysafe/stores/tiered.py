"""A cache in front of a durable store, for completed records, which do not change any more.

    safe = RetrySafe(url, cache="memory://")                # or redis://…: see caches.py
    store = Tiered(open_store(url), MemoryCache())          # the same by hand, for a store or cache of your own

The cache answers only replays. Every grant comes from the store: a cache may lose entries, and the operation of a lost
claim would run twice. An entry ends with its record at the latest (I12). `ttl` limits how long another process may
replay an answer after `Forget` was sent here.

If the cache fails, the store answers, and nothing else changes.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol, TypeVar

from retrysafe.core.ops import Claim, ClaimReply, Forget, Install, Op
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import SECOND_MICROS
from retrysafe.errors import UsageError
from retrysafe.stores.base import AsyncStore, Capabilities, Store
from retrysafe.stores.wrappers import AsyncStoreWrapper, StoreWrapper

R = TypeVar("R")

DEFAULT_TTL_SECONDS = 60.0


class CachedRecord(NamedTuple):
    """A completed record, and the time of the store's clock when it was read."""

    record: Record
    now: int


class Cache(Protocol):
    """A cache of completed records. It raises no errors of its own: `get` returns None instead."""

    ttl: float

    def get(self, record_id: bytes) -> CachedRecord | None: ...
    def put(self, seen: CachedRecord, seconds: float) -> None: ...
    def drop(self, record_id: bytes) -> None: ...


class AsyncCache(Protocol):
    """The async twin of `Cache`."""

    ttl: float

    async def get(self, record_id: bytes) -> CachedRecord | None: ...
    async def put(self, seen: CachedRecord, seconds: float) -> None: ...
    async def drop(self, record_id: bytes) -> None: ...


# Decisions, for sync and async --------------------------------------------------------------------


def replay_from_cache(op: Claim, seen: CachedRecord | None) -> ClaimReply | None:
    """The cache's answer to a claim. It is never a grant, and never a record that has expired by the claim's `now`."""
    if seen is None or seen.record.id != op.id or (op.now is not None and seen.record.expired(op.now)):
        return None
    return ClaimReply(False, seen.record, seen.now if op.now is None else op.now)


def build_cache_entry(op: Op[Any], reply: Any) -> CachedRecord | None:
    """The entry to cache for a reply; None if nothing may be cached."""
    if not isinstance(op, Claim) or reply.granted or reply.record is None:
        return None
    record: Record = reply.record
    final = record.state is State.COMPLETED and not record.expired(reply.now)
    return CachedRecord(record, reply.now) if final and record.answer is not None and not record.answer.gone else None


def compute_seconds_left(seen: CachedRecord, ttl: float) -> float:
    return min(ttl, (seen.record.expires - seen.now) / SECOND_MICROS)


def uses_cache(ops: Sequence[Op[Any]]) -> bool:
    """Whether one of the operations reads, fills or drops an entry."""
    return any(isinstance(op, Claim | Forget) for op in ops)


@lru_cache(maxsize=32)
def add_caching(declared: Capabilities) -> Capabilities:
    """What a tiered store declares: all that the inner store declares, and `caches`."""
    return replace(declared, caches=True)


# The stores ---------------------------------------------------------------------------------------


class Tiered(StoreWrapper):
    """A sync store behind a cache. `on_close` is called after the store was closed, to close the cache. `on_install` is
    called with the id of the installation before the cache is used: the store must answer `Install`."""

    def __init__(
        self,
        store: Store,
        cache: Cache,
        *,
        on_close: Callable[[], None] | None = None,
        on_install: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(store)
        self._cache = cache
        self._on_close = on_close
        self._on_install = on_install

    @property
    def capabilities(self) -> Capabilities:
        return add_caching(self._store.capabilities)

    def execute(self, op: Op[R]) -> R:
        [reply] = self.execute_many([op])
        return reply  # type: ignore[no-any-return]  # the reply to this operation

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        on_install = self._on_install
        if on_install is not None and uses_cache(ops):
            on_install(self._store.execute(Install()))
            self._on_install = None  # only now: another thread must not use the cache before
        replies = [replay_from_cache(op, self._cache.get(op.id)) if isinstance(op, Claim) else None for op in ops]
        missed = [place for place, reply in enumerate(replies) if reply is None]
        sent = [ops[place] for place in missed]
        found = [self._store.execute(sent[0])] if len(sent) == 1 else self._store.execute_many(sent) if sent else []
        for place, op, reply in zip(missed, sent, found, strict=True):
            replies[place] = reply
            self._update_cache(op, reply)
        return replies

    def _update_cache(self, op: Op[Any], reply: Any) -> None:
        if isinstance(op, Forget):
            self._cache.drop(op.id)
        seen = build_cache_entry(op, reply)
        if seen is not None:
            self._cache.put(seen, compute_seconds_left(seen, self._cache.ttl))

    def close(self) -> None:
        super().close()
        if self._on_close is not None:
            self._on_close()


class AsyncTiered(AsyncStoreWrapper):
    """An async store behind a cache. One MemoryCache can serve a sync and an async store."""

    def __init__(
        self,
        store: AsyncStore,
        cache: AsyncCache | MemoryCache,
        *,
        on_close: Callable[[], Awaitable[None]] | None = None,
        on_install: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(store)
        self._on_close = on_close
        self._on_install = on_install
        self._cache: AsyncCache = AsyncMemoryCache(cache) if isinstance(cache, MemoryCache) else cache

    @property
    def capabilities(self) -> Capabilities:
        return add_caching(self._store.capabilities)

    async def execute(self, op: Op[R]) -> R:
        [reply] = await self.execute_many([op])
        return reply  # type: ignore[no-any-return]  # the reply to this operation

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        on_install = self._on_install
        if on_install is not None and uses_cache(ops):
            on_install(await self._store.execute(Install()))
            self._on_install = None
        replies = [replay_from_cache(op, await self._cache.get(op.id)) if isinstance(op, Claim) else None for op in ops]
        missed = [place for place, reply in enumerate(replies) if reply is None]
        sent = [ops[place] for place in missed]
        found = await self._send(sent)
        for place, op, reply in zip(missed, sent, found, strict=True):
            replies[place] = reply
            await self._update_cache(op, reply)
        return replies

    async def _send(self, ops: list[Op[Any]]) -> list[Any]:
        if len(ops) == 1:
            return [await self._store.execute(ops[0])]
        return await self._store.execute_many(ops) if ops else []

    async def _update_cache(self, op: Op[Any], reply: Any) -> None:
        if isinstance(op, Forget):
            await self._cache.drop(op.id)
        seen = build_cache_entry(op, reply)
        if seen is not None:
            await self._cache.put(seen, compute_seconds_left(seen, self._cache.ttl))

    async def aclose(self) -> None:
        await super().aclose()
        if self._on_close is not None:
            await self._on_close()


# The cache in this process ------------------------------------------------------------------------


class MemoryCache:
    """A cache in this process's memory (LRU). It keeps at most `entries` records and `size` bytes of answers, each for
    at most `ttl` seconds."""

    def __init__(
        self,
        *,
        entries: int = 10_000,
        size: int = 64 << 20,
        ttl: float = DEFAULT_TTL_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if entries < 1 or size < 1 or not ttl > 0:
            raise UsageError(f"MemoryCache(entries={entries}, size={size}, ttl={ttl}): give numbers above zero")
        self.ttl = ttl
        self._entries, self._limit, self._clock = entries, size, clock
        self._size = 0
        self._place = ""
        self._kept: OrderedDict[bytes, tuple[CachedRecord, float]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, record_id: bytes) -> CachedRecord | None:
        with self._lock:
            found = self._kept.get(record_id)
            if found is None:
                return None
            if self._clock() >= found[1]:
                self._remove(record_id)
                return None
            self._kept.move_to_end(record_id)
            return found[0]

    def put(self, seen: CachedRecord, seconds: float) -> None:
        size = _body_bytes(seen)
        with self._lock:
            self._remove(seen.record.id)
            if seconds <= 0 or size > self._limit:
                return
            self._kept[seen.record.id] = seen, self._clock() + seconds
            self._size += size
            while len(self._kept) > self._entries or self._size > self._limit:
                self._remove(next(iter(self._kept)))

    def drop(self, record_id: bytes) -> None:
        with self._lock:
            self._remove(record_id)

    def use_for(self, place: str) -> None:
        """Note which store this cache is in front of. Records of two stores may have the same id."""
        if self._place not in ("", place):
            raise UsageError("this MemoryCache is in front of another store: make one for each store")
        self._place = place

    def make_empty(self) -> MemoryCache:
        """A cache with the same bounds and nothing in it."""
        return MemoryCache(entries=self._entries, size=self._limit, ttl=self.ttl, clock=self._clock)

    def _remove(self, record_id: bytes) -> None:
        found = self._kept.pop(record_id, None)
        if found is not None:
            self._size -= _body_bytes(found[0])


class AsyncMemoryCache:
    """A memory cache for async stores. Nothing in it waits."""

    def __init__(self, cache: MemoryCache) -> None:
        self._cache = cache
        self.ttl = cache.ttl

    async def get(self, record_id: bytes) -> CachedRecord | None:
        return self._cache.get(record_id)

    async def put(self, seen: CachedRecord, seconds: float) -> None:
        self._cache.put(seen, seconds)

    async def drop(self, record_id: bytes) -> None:
        self._cache.drop(record_id)


def _body_bytes(seen: CachedRecord) -> int:
    answer = seen.record.answer
    return len(answer.body) if answer is not None else 0
