"""Redis as a shared cache in front of a durable store (stores/tiered.py). Processes share the records they have read.

Correctness does not depend on the cache. On a miss, a timeout or an entry that cannot be read, the store is asked.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any

from redis import ConnectionPool, Redis
from redis.asyncio import Redis as AsyncRedis
from redis.exceptions import RedisError

from retrysafe.core.urls import redact_secrets, safe_url
from retrysafe.errors import StoreURLError, UsageError
from retrysafe.stores.json_records import dump_record, load_record
from retrysafe.stores.redis import urls
from retrysafe.stores.tiered import DEFAULT_TTL_SECONDS, CachedRecord

CACHE_TIMEOUT_SECONDS = 0.25
"""The default socket timeout. A cache that is slower than the store is of no use."""

_CACHE_ERRORS = (RedisError, OSError, TimeoutError, asyncio.TimeoutError)


def _cache_key(prefix: str, record_id: bytes) -> str:
    return prefix + record_id.hex()


def _encode_entry(entry: CachedRecord) -> str:
    return f"{entry.now} {dump_record(entry.record)}"


def _decode_entry(text: Any) -> CachedRecord | None:
    """Parse a cached entry. An entry of another program or of another version is a miss."""
    try:
        now, _, record = bytes(text).decode().partition(" ")
        return CachedRecord(load_record(record), int(now))
    except (TypeError, ValueError, KeyError):
        return None


def check_cache_url(url: str, ttl: float = DEFAULT_TTL_SECONDS, place: str = "", *, given: str) -> None:
    """Raise if no cache can be made of this. `given` is the URL as the user wrote it."""
    try:
        address, _ = _parse_cache_url(url, ttl, place)
        pool = ConnectionPool.from_url(address)
        pool.connection_class(**pool.connection_kwargs)  # it does not connect; an unknown option raises here
    except UsageError:
        raise
    except (ValueError, TypeError) as error:
        reason = redact_secrets(str(error), given)
        raise StoreURLError(
            f"cache={safe_url(given)!r} is not what redis-py takes ({reason}): write redis://host:6379/0?ttl=60"
        ) from None


def _parse_cache_url(url: str, ttl: float, place: str) -> tuple[str, str]:
    """The server's URL, and how our keys begin."""
    if not ttl > 0:
        raise UsageError(f"ttl={ttl}: give seconds, more than zero")
    at = urls.parse_url(url)
    if at.kind != "single":
        raise UsageError("a cache is one server: give its URL as redis://host:port, it may be lost at any time")
    return at.url, f"{at.layout.prefix}cache:" + (f"{place}:" if place else "")


class RedisCache:
    """The sync cache: `RedisCache("redis://…")`. Safe to use from many threads. `place` names the store behind it, and
    `use_for` its installation: caches with another place or installation share no entries."""

    def __init__(
        self,
        url: str,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        timeout: float = CACHE_TIMEOUT_SECONDS,
        place: str = "",
    ) -> None:
        address, self._place_prefix = _parse_cache_url(url, ttl, place)
        self._prefix = self._place_prefix
        self.ttl = ttl
        self._client = Redis.from_url(address, socket_timeout=timeout, socket_connect_timeout=timeout)

    def use_for(self, installation: str) -> None:
        """Keep the entries of this installation apart from those of others, for example of a database with the same
        URL on another machine."""
        self._prefix = f"{self._place_prefix}{installation}:"

    def get(self, record_id: bytes) -> CachedRecord | None:
        with suppress(*_CACHE_ERRORS):
            return _decode_entry(self._client.get(_cache_key(self._prefix, record_id)))
        return None

    def put(self, seen: CachedRecord, seconds: float) -> None:
        if seconds >= 0.001:
            with suppress(*_CACHE_ERRORS):
                self._client.set(_cache_key(self._prefix, seen.record.id), _encode_entry(seen), px=int(seconds * 1000))

    def drop(self, record_id: bytes) -> None:
        with suppress(*_CACHE_ERRORS):
            self._client.delete(_cache_key(self._prefix, record_id))

    def close(self) -> None:
        self._client.close()


class AsyncRedisCache:
    """The async cache: `AsyncRedisCache("redis://…")`. Belongs to one event loop."""

    def __init__(
        self,
        url: str,
        *,
        ttl: float = DEFAULT_TTL_SECONDS,
        timeout: float = CACHE_TIMEOUT_SECONDS,
        place: str = "",
    ) -> None:
        address, self._place_prefix = _parse_cache_url(url, ttl, place)
        self._prefix = self._place_prefix
        self.ttl = ttl
        self._client = AsyncRedis.from_url(address, socket_timeout=timeout, socket_connect_timeout=timeout)

    def use_for(self, installation: str) -> None:
        """Keep the entries of this installation apart from those of others, for example of a database with the same
        URL on another machine."""
        self._prefix = f"{self._place_prefix}{installation}:"

    async def get(self, record_id: bytes) -> CachedRecord | None:
        with suppress(*_CACHE_ERRORS):
            return _decode_entry(await self._client.get(_cache_key(self._prefix, record_id)))
        return None

    async def put(self, seen: CachedRecord, seconds: float) -> None:
        if seconds >= 0.001:
            with suppress(*_CACHE_ERRORS):
                await self._client.set(
                    _cache_key(self._prefix, seen.record.id), _encode_entry(seen), px=int(seconds * 1000)
                )

    async def drop(self, record_id: bytes) -> None:
        with suppress(*_CACHE_ERRORS):
            await self._client.delete(_cache_key(self._prefix, record_id))

    async def aclose(self) -> None:
        await self._client.aclose()
