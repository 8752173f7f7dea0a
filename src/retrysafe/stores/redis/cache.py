"""Redis as a cache in front of a durable store (stores/tiered.py): all processes share what one of them has read.

Nothing depends on it. What it does not know, does not say in time or says wrongly, the store is asked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from redis import Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from retrysafe.errors import UsageError
from retrysafe.stores.redis import urls
from retrysafe.stores.tiered import TTL, Seen
from retrysafe.stores.written import dump, load

TIMEOUT = 0.25
"""Seconds, unless told otherwise: a cache that is slower than the store is none."""

_FAILED = (RedisError, OSError, TimeoutError, asyncio.TimeoutError)


def _name(prefix: str, record_id: bytes) -> str:
    return f"{prefix}cache:{record_id.hex()}"


def _written(seen: Seen) -> str:
    return f"{seen.now} {dump(seen.record)}"


def _read(text: Any) -> Seen | None:
    """What was stored by somebody else, or by another version of us, is not there."""
    try:
        now, _, record = bytes(text).decode().partition(" ")
        return Seen(load(record), int(now))
    except (TypeError, ValueError, KeyError):
        return None


def _at(url: str, ttl: float) -> tuple[str, str]:
    if ttl <= 0:
        raise UsageError(f"ttl={ttl}: give seconds, more than zero")
    at = urls.target(url)
    if at.kind != "single":
        raise UsageError("a cache is one server: give its URL as redis://host:port, it may be lost at any time")
    return at.url, at.layout.prefix


class RedisCache:
    """`RedisCache("redis://…")`, in threads."""

    def __init__(self, url: str, *, ttl: float = TTL, timeout: float = TIMEOUT) -> None:
        address, self._prefix = _at(url, ttl)
        self.ttl = ttl
        self._client = Redis.from_url(address, socket_timeout=timeout, socket_connect_timeout=timeout)

    def get(self, record_id: bytes) -> Seen | None:
        with suppress(*_FAILED):
            return _read(self._client.get(_name(self._prefix, record_id)))
        return None

    def put(self, seen: Seen, seconds: float) -> None:
        if seconds >= 0.001:
            with suppress(*_FAILED):
                self._client.set(_name(self._prefix, seen.record.id), _written(seen), px=int(seconds * 1000))

    def drop(self, record_id: bytes) -> None:
        with suppress(*_FAILED):
            self._client.delete(_name(self._prefix, record_id))

    def close(self) -> None:
        self._client.close()


class AsyncRedisCache:
    """`AsyncRedisCache("redis://…")`, on one event loop."""

    def __init__(self, url: str, *, ttl: float = TTL, timeout: float = TIMEOUT) -> None:
        address, self._prefix = _at(url, ttl)
        self.ttl = ttl
        self._client = AsyncRedis.from_url(address, socket_timeout=timeout, socket_connect_timeout=timeout)

    async def get(self, record_id: bytes) -> Seen | None:
        with suppress(*_FAILED):
            return _read(await self._client.get(_name(self._prefix, record_id)))
        return None

    async def put(self, seen: Seen, seconds: float) -> None:
        if seconds >= 0.001:
            with suppress(*_FAILED):
                await self._client.set(_name(self._prefix, seen.record.id), _written(seen), px=int(seconds * 1000))

    async def drop(self, record_id: bytes) -> None:
        with suppress(*_FAILED):
            await self._client.delete(_name(self._prefix, record_id))

    async def aclose(self) -> None:
        await self._client.aclose()
