"""Who holds a connection, and how long; and where a URL leads."""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import tomllib
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Lookup, Stats
from retrysafe.errors import StoreURLError
from retrysafe.stores import registry
from retrysafe.stores.base import Plan, afollow, follow
from retrysafe.stores.lifetime import ForkSafeStore, PerLoopStore
from retrysafe.stores.memory import CAPABILITIES, AsyncMemoryStore, MemoryStore
from retrysafe.testing import builders

# Sync --------------------------------------------------------------------------------------------


class Opened:
    """Counts what is opened and closed."""

    def __init__(self) -> None:
        self.stores: list[Any] = []
        self.closed: list[Any] = []

    def sync(self) -> MemoryStore:
        store = MemoryStore()
        store.close = lambda: self.closed.append(store)  # type: ignore[method-assign]  # to count
        self.stores.append(store)
        return store

    def asynchronous(self) -> AsyncMemoryStore:
        store = AsyncMemoryStore()

        async def close() -> None:
            self.closed.append(store)

        store.aclose = close  # type: ignore[method-assign]  # to count
        self.stores.append(store)
        return store


def test_a_store_opens_at_first_use_and_once() -> None:
    opened = Opened()
    store = ForkSafeStore(CAPABILITIES, opened.sync)
    assert (store.capabilities, opened.stores) == (CAPABILITIES, [])
    store.execute(builders.claim("k"))
    assert store.execute_many([Stats(0), Stats(0)])[1].claimed == 1
    store.migrate()
    assert len(opened.stores) == 1
    store.close()
    store.close()
    assert opened.closed == opened.stores
    store.execute(Stats(0))
    assert len(opened.stores) == 2


def test_many_threads_open_one() -> None:
    opened, together = Opened(), threading.Barrier(16)
    store = ForkSafeStore(CAPABILITIES, opened.sync)

    def use() -> None:
        together.wait(60)
        store.execute(Stats(0))

    threads = [threading.Thread(target=use) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(opened.stores) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_opens_its_own_and_leaves_the_parent_s_alone() -> None:
    opened = Opened()
    store = ForkSafeStore(CAPABILITIES, opened.sync)
    store.execute(builders.claim("k"))
    child = os.fork()
    if child == 0:
        fresh = store.execute(Stats(0)).claimed == 0 and len(opened.stores) == 2
        store.close()
        os._exit(0 if fresh and opened.closed == opened.stores[1:] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert store.execute(Stats(0)).claimed == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork")
def test_a_child_is_not_stuck_on_a_lock_the_parent_held() -> None:
    store = ForkSafeStore(CAPABILITIES, MemoryStore)
    with store._lock:
        child = os.fork()
        if child == 0:
            os._exit(0 if store.execute(Stats(0)).claimed == 0 else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


# Async -------------------------------------------------------------------------------------------


def test_each_loop_has_its_own_and_closes_its_own() -> None:
    opened = Opened()
    store = PerLoopStore(CAPABILITIES, opened.asynchronous)

    async def use(close: bool) -> None:
        await store.execute(builders.claim("k"))
        assert (await store.execute_many([Stats(0)]))[0].claimed == 1
        await store.migrate()
        if close:
            await store.aclose()
            await store.aclose()

    asyncio.run(use(close=True))
    asyncio.run(use(close=False))
    assert len(opened.stores) == 2
    assert opened.closed == opened.stores[:1]


def test_a_loop_that_is_gone_is_forgotten() -> None:
    store = PerLoopStore(CAPABILITIES, AsyncMemoryStore)

    async def use() -> None:
        await store.execute(Stats(0))

    for _ in range(3):
        asyncio.run(use())
    gc.collect()
    assert len(store._opened._values) == 0


# Plans -------------------------------------------------------------------------------------------


def plan(seen: list[Any]) -> Plan[str, str]:
    try:
        seen.append((yield "first"))
    except LookupError as error:
        seen.append(error)
    seen.append((yield "second"))
    return "reply"


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_plans_get_responses_and_errors(colour: str) -> None:
    def drive(seen: list[Any], send: Any) -> str:
        async def asend(request: str) -> Any:
            return send(request)

        return follow(plan(seen), send) if colour == "sync" else asyncio.run(afollow(plan(seen), asend))

    seen: list[Any] = []
    assert drive(seen, str.upper) == "reply"
    assert seen == ["FIRST", "SECOND"]

    error, seen = LookupError("no"), []

    def failing(request: str) -> str:
        if request == "first":
            raise error
        return request

    assert drive(seen, failing) == "reply"
    assert seen == [error, "second"]

    def broken(request: str) -> str:
        raise ValueError(request)

    with pytest.raises(ValueError, match="first"):
        drive([], broken)


# URLs --------------------------------------------------------------------------------------------


def test_a_scheme_in_any_case() -> None:
    assert registry.find_backend("MEMORY://x") is registry.find_backend("memory://y")
    assert registry.find_backend("valkey://h") is registry.find_backend("rediss://h")


def test_third_parties_join_by_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    entry = metadata.EntryPoint("acme", "retrysafe.stores.memory:backend", "retrysafe.stores")

    def entry_points(group: str) -> list[metadata.EntryPoint]:
        return [entry] if group == "retrysafe.stores" else []

    monkeypatch.setattr(metadata, "entry_points", entry_points)
    store = registry.open_store("acme://x")
    assert store.execute(Stats(0)).claimed == 0
    with pytest.raises(StoreURLError, match="'emca'"):
        registry.open_store("emca://x")


def test_built_in_schemes_stand_in_one_place() -> None:
    """The table has the built-in stores, and the entry points have the others. No scheme is in both."""
    declared = {entry.name: entry.value for entry in metadata.entry_points(group="retrysafe.stores")}
    assert set(declared) & set(registry.SCHEMES) == set()
    assert set(registry.DISTRIBUTIONS) <= set(declared), "run `make setup`: it installs distributions/"
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert "retrysafe.stores" not in project.get("entry-points", {})


def test_a_store_in_a_distribution_of_its_own_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "entry_points", lambda group: [])
    with pytest.raises(StoreURLError, match="pip install retrysafe-mssql") as told:
        registry.open_store("mssql://app:secret@db/shop")
    assert "secret" not in str(told.value)


@pytest.mark.parametrize("scheme", sorted({**registry.SCHEMES, **registry.DISTRIBUTIONS}))
def test_every_backend_says_what_it_can(scheme: str) -> None:
    backend = registry.find_backend(f"{scheme}://host/db")
    assert backend.capabilities.name
    assert backend.capabilities.clock in ("store", "host")


# SQLite ------------------------------------------------------------------------------------------


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc lists open files")
def test_closing_an_sqlite_store_leaves_no_file_open(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'x.db'}"
    store = registry.open_store(url)
    store.execute(builders.claim("k"))
    store.execute(Lookup(b"i" * 32))
    store.close()

    async def use() -> None:
        other = registry.open_async_store(url)
        await other.execute(builders.claim("l"))
        await other.execute(Lookup(b"i" * 32))
        await other.aclose()

    asyncio.run(use())
    held = [os.readlink(link) for link in Path("/proc/self/fd").iterdir() if link.is_symlink() and link.exists()]
    assert [name for name in held if str(tmp_path) in name] == []
