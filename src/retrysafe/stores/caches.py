"""`cache=` of `RetrySafe`: from the URL of a cache to a cache for each process and event loop.

`memory://` is a cache in the memory of each process, `redis://host` one that processes share. `?ttl=` says for how many
seconds an entry lives at most; `memory://` has `entries` and `size`, too. What a cache may do is in `tiered.py`.

An entry belongs to one store. Two applications with a database each may share a cache and a namespace: one must not get
the other's answers, because its own work would never run. A shared cache tells stores apart by their URL and, where the
store has one, by the id of its installation: two databases may have the same URL, each on its own `localhost`.
"""

from __future__ import annotations

import hashlib
import os
from importlib import import_module
from typing import Any
from urllib.parse import parse_qsl, urlencode

from retrysafe.core.urls import safe_url
from retrysafe.errors import StoreURLError, UsageError
from retrysafe.stores.base import AsyncStore, Capabilities, Store
from retrysafe.stores.tiered import AsyncTiered, MemoryCache, Tiered, add_caching

_READERS: dict[str, dict[str, type[float] | type[int]]] = {
    "memory": {"ttl": float, "entries": int, "size": int},
    "redis": {"ttl": float},
    "rediss": {"ttl": float},
}
"""The schemes of caches, and the options that are read here. A cache in Redis reads the others itself."""


class CacheSetting:
    """What `cache=` was given: the URL of a cache, or a `MemoryCache`. `place` names the store behind it."""

    def __init__(self, given: str | MemoryCache, place: str = "") -> None:
        if not isinstance(given, str | MemoryCache):
            raise UsageError(
                f"cache={given!r}: give a URL, memory:// or redis://host:6379, or a MemoryCache; "
                "put a cache of your own into Tiered(store, cache)"
            )
        self._memory = given if isinstance(given, MemoryCache) else None
        if self._memory is not None:
            self._memory.use_for(place)
        self._pid = os.getpid()
        self._url, self._options = ("", {}) if isinstance(given, MemoryCache) else parse_cache_url(given)
        if self._url == "memory://":
            self._memory = MemoryCache(**self._options)
        elif self._url:
            self._options["place"] = place
            _shared().check_cache_url(self._url, given=given, **self._options)

    def declare(self, capabilities: Capabilities) -> Capabilities:
        """What a store behind the cache declares."""
        return add_caching(capabilities)

    def wrap(self, store: Store) -> Store:
        if (cache := self._memory_cache()) is not None:
            return Tiered(store, cache)
        shared = _shared().RedisCache(self._url, **self._options)
        on_install = shared.use_for if store.capabilities.has_install_id else None
        return Tiered(store, shared, on_close=shared.close, on_install=on_install)

    def wrap_async(self, store: AsyncStore) -> AsyncStore:
        if (cache := self._memory_cache()) is not None:
            return AsyncTiered(store, cache)
        shared = _shared().AsyncRedisCache(self._url, **self._options)
        on_install = shared.use_for if store.capabilities.has_install_id else None
        return AsyncTiered(store, shared, on_close=shared.aclose, on_install=on_install)

    def _memory_cache(self) -> MemoryCache | None:
        """One for the whole process. A forked child makes its own: another thread may have held the parent's lock."""
        if self._memory is not None and self._pid != os.getpid():
            self._memory, self._pid = self._memory.make_empty(), os.getpid()
        return self._memory


def name_place(store_url: str) -> str:
    """A short name of a store, for the keys of a shared cache. It does not depend on a password, which may change."""
    return hashlib.sha256(safe_url(store_url).encode()).hexdigest()[:16]


def _shared() -> Any:
    """The module of the shared cache. As with stores, its driver is loaded only if somebody names it."""
    return import_module("retrysafe.stores.redis.cache")


def parse_cache_url(url: str) -> tuple[str, dict[str, Any]]:
    """The URL without the options that are read here, and these."""
    address, _, query = url.partition("?")
    scheme = address.partition("://")[0].lower()
    if scheme not in _READERS or "://" not in address or (scheme == "memory" and address.lower() != "memory://"):
        raise StoreURLError(f"cache={safe_url(url)!r}: a cache is memory://?ttl=60 or redis://host:6379/0?ttl=60")
    options: dict[str, Any] = {}
    rest = []
    for name, value in parse_qsl(query, keep_blank_values=True):
        read = _READERS[scheme].get(name)
        if read is None and scheme == "memory":
            raise StoreURLError(f"cache={safe_url(url)!r} has no option {name!r}; it has ttl, entries and size")
        if read is None:
            rest.append((name, value))
            continue
        try:
            options[name] = read(value)
        except ValueError:
            raise StoreURLError(f"cache={safe_url(url)!r}: {name}={value!r} is not a number") from None
    return scheme + address[len(scheme) :] + ("?" + urlencode(rest) if rest else ""), options
