"""From a URL to a store. `schemes.SCHEMES` is the only list of the built-in stores. Other packages register a store by
the entry point group `retrysafe.stores` (docs/howto/write-a-store.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING

from retrysafe.core.urls import safe_url
from retrysafe.errors import StoreURLError
from retrysafe.stores.base import AsyncStore, Backend, Store, read_capabilities
from retrysafe.stores.lifetime import ForkSafeStore, PerLoopStore
from retrysafe.stores.schemes import DISTRIBUTIONS, SCHEMES

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

    from retrysafe.stores.batching.queue import OnBatch
    from retrysafe.stores.caches import CacheSetting

ENTRY_POINT_GROUP = "retrysafe.stores"

_EXAMPLES = "sqlite:///app.db, postgresql://user@host/db, redis://host:6379/0, memory://"


def open_store(
    url: str, *, batching: bool = False, on_batch: OnBatch | None = None, cache: CacheSetting | None = None
) -> Store:
    """A sync store. It connects at first use, and again in each process that is forked from this one.

    With `batching`, concurrent calls of several threads are sent together (stores/batching); `on_batch` is called with
    each batch. With `cache`, completed records are replayed from there (stores/caches.py).
    """
    backend = find_backend(url)

    def open_one() -> Store:
        store = _wrap_batching(backend.open(url), on_batch) if batching else backend.open(url)
        return store if cache is None else cache.wrap(store)

    return ForkSafeStore(backend.capabilities if cache is None else cache.declare(backend.capabilities), open_one)


def open_async_store(
    url: str, *, batching: bool = False, on_batch: OnBatch | None = None, cache: CacheSetting | None = None
) -> AsyncStore:
    """An async store. It connects at first use, once per event loop. `batching` and `cache`: as in `open_store`."""
    backend = find_backend(url)

    def open_one() -> AsyncStore:
        store = _wrap_async_batching(backend.open_async(url), on_batch) if batching else backend.open_async(url)
        return store if cache is None else cache.wrap_async(store)

    return PerLoopStore(backend.capabilities if cache is None else cache.declare(backend.capabilities), open_one)


def _wrap_batching(store: Store, on_batch: OnBatch | None = None) -> Store:
    if read_capabilities(store).native_batching:
        return store
    from retrysafe.stores.batching.sync import Batching

    return Batching(store) if on_batch is None else Batching(store, on_batch=on_batch)


def _wrap_async_batching(store: AsyncStore, on_batch: OnBatch | None = None) -> AsyncStore:
    if read_capabilities(store).native_batching:
        return store
    from retrysafe.stores.batching.aio import AsyncBatching  # imported late: sync programs need not load asyncio

    return AsyncBatching(store) if on_batch is None else AsyncBatching(store, on_batch=on_batch)


def find_backend(url: str) -> Backend:
    """The backend of the URL's scheme."""
    if not isinstance(url, str) or "://" not in url:
        raise StoreURLError(f"{safe_url(str(url))!r} is not a store URL; write one like {_EXAMPLES}")
    scheme = url.partition("://")[0].lower()
    module = SCHEMES.get(scheme)
    if module is not None:
        found: Backend = import_module(module).backend
        return found
    for entry in _read_entry_points():
        if entry.name == scheme:
            loaded: Backend = entry.load()
            return loaded
    if scheme in DISTRIBUTIONS:
        raise StoreURLError(
            f"{safe_url(url)!r}: the store for {scheme}:// is a package of its own; "
            f"install it: pip install {DISTRIBUTIONS[scheme]}"
        )
    family, _, driver = scheme.partition("+")
    if driver and family in SCHEMES:
        raise StoreURLError(
            f"{safe_url(url)!r} is a URL of SQLAlchemy: write {family}://… without {'+' + driver!r}; "
            "retrysafe brings its own drivers, and joins your session by tx="
        )
    import difflib  # only for wrong input

    near = difflib.get_close_matches(scheme, [*SCHEMES, *DISTRIBUTIONS], 1, 0.75)
    meant = f"did you mean {near[0]}://…? The" if near else "the"
    raise StoreURLError(
        f"no store answers to {scheme!r} in {safe_url(url)!r}; {meant} schemes here are {', '.join(SCHEMES)}: "
        f"{_EXAMPLES}"
    )


def _read_entry_points() -> Iterator[EntryPoint]:
    from importlib.metadata import entry_points  # slow to import; only stores of other packages need it

    yield from entry_points(group=ENTRY_POINT_GROUP)


def backends() -> dict[str, Backend]:
    """The built-in backends, each under its first scheme, and the backends of `DISTRIBUTIONS` that are installed. This
    imports all of them: use it for pages and checks."""
    first = {module: scheme for scheme, module in reversed(SCHEMES.items())}
    built_in = {scheme: import_module(module).backend for module, scheme in sorted(first.items())}
    installed: dict[str, Backend] = {
        entry.name: entry.load() for entry in _read_entry_points() if entry.name in DISTRIBUTIONS
    }
    return built_in | installed


def sibling_schemes(scheme: str) -> list[str]:
    """All schemes that open the same kind of store as this one."""
    if scheme in DISTRIBUTIONS:
        return [scheme]
    return [each for each, module in SCHEMES.items() if module == SCHEMES[scheme]]


__all__ = ["backends", "find_backend", "open_async_store", "open_store", "safe_url", "sibling_schemes"]
