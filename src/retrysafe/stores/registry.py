"""From a URL to a store. Third parties join by the entry point group `retrysafe.stores` (see docs/howto/)."""

from __future__ import annotations

from importlib import import_module

from retrysafe.core.urls import safe_url
from retrysafe.errors import StoreURLError
from retrysafe.stores.base import AsyncStore, Backend, Store
from retrysafe.stores.lifetime import ForkSafeStore, PerLoopStore

_OURS = {
    "memory": "retrysafe.stores.memory",
    "sqlite": "retrysafe.stores.sqlite",
    "postgresql": "retrysafe.stores.postgres",
    "postgres": "retrysafe.stores.postgres",
    "mysql": "retrysafe.stores.mysql",
    "mariadb": "retrysafe.stores.mysql",
    "mongodb": "retrysafe.stores.mongo",
    "mongodb+srv": "retrysafe.stores.mongo",
    "redis": "retrysafe.stores.redis",
    "rediss": "retrysafe.stores.redis",
    "valkey": "retrysafe.stores.redis",
    "redis+cluster": "retrysafe.stores.redis",
    "rediss+cluster": "retrysafe.stores.redis",
    "valkey+cluster": "retrysafe.stores.redis",
    "redis+sentinel": "retrysafe.stores.redis",
    "rediss+sentinel": "retrysafe.stores.redis",
    "valkey+sentinel": "retrysafe.stores.redis",
    "dynamodb": "retrysafe.stores.dynamodb",
    "duckdb": "retrysafe.stores.duckdb",
    "mssql": "retrysafe.stores.mssql",
}

_EXAMPLES = "sqlite:///app.db, postgresql://user@host/db, redis://host:6379/0, memory://"


def open_store(url: str, *, batching: bool = False) -> Store:
    """A store, sync. It connects when it is first used, and again in each process that was forked from this one.

    With `batching`, calls of many threads that have to wait anyway go together (stores/batching).
    """
    backend = find_backend(url)
    return ForkSafeStore(
        backend.capabilities, lambda: _wrap_batching(backend.open(url)) if batching else backend.open(url)
    )


def open_async_store(url: str, *, batching: bool = False) -> AsyncStore:
    """A store, async. It connects when it is first used, once per event loop."""
    backend = find_backend(url)
    return PerLoopStore(
        backend.capabilities,
        lambda: _wrap_async_batching(backend.open_async(url)) if batching else backend.open_async(url),
    )


def _wrap_batching(store: Store) -> Store:
    from retrysafe.stores.batching.sync import Batching

    return Batching(store)


def _wrap_async_batching(store: AsyncStore) -> AsyncStore:
    if getattr(store, "native_batching", False):
        return store
    from retrysafe.stores.batching.aio import AsyncBatching  # it loads asyncio, which sync programs need not

    return AsyncBatching(store)


def find_backend(url: str) -> Backend:
    """The backend that answers to the URL's scheme."""
    if not isinstance(url, str) or "://" not in url:
        raise StoreURLError(f"{safe_url(str(url))!r} is not a store URL; write one like {_EXAMPLES}")
    scheme = url.partition("://")[0].lower()
    module = _OURS.get(scheme)
    if module is not None:
        found: Backend = import_module(module).backend
        return found
    from importlib.metadata import entry_points  # slow to import, and only third parties need it

    for entry in entry_points(group="retrysafe.stores"):
        if entry.name == scheme:
            loaded: Backend = entry.load()
            return loaded
    raise StoreURLError(
        f"no store answers to {scheme!r} in {safe_url(url)!r}; the schemes here are {', '.join(_OURS)}: {_EXAMPLES}"
    )


def backends() -> dict[str, Backend]:
    """Our own kinds of store, each under the first of its schemes. Loads all of them: for pages and checks."""
    first = {module: scheme for scheme, module in reversed(_OURS.items())}
    return {scheme: import_module(module).backend for module, scheme in sorted(first.items())}


def sibling_schemes(scheme: str) -> list[str]:
    """Every scheme that names the same kind of store as this one of ours."""
    return [each for each, module in _OURS.items() if module == _OURS[scheme]]


__all__ = ["backends", "find_backend", "open_async_store", "open_store", "safe_url", "sibling_schemes"]
