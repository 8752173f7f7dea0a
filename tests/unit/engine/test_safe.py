"""RetrySafe: opens nothing until used, explains what is wrong, shows no password, is one store in sync and async."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Policy, RetrySafe, open_async_store, open_store
from retrysafe.core.ops import List
from retrysafe.errors import StoreURLError, SyncAsyncMismatch, UsageError
from retrysafe.stores.memory import AsyncMemoryStore, MemoryStore


def once_on(safe: RetrySafe) -> Any:
    runs: list[int] = []

    @safe.once("x:{n}", scope="x")
    def x(n: int) -> int:
        runs.append(n)
        return len(runs)

    return x


def test_nothing_opens_until_it_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a connection was opened")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    for url in ("postgresql://nobody@127.0.0.1:1/x", "redis://127.0.0.1:1/0", f"sqlite:///{tmp_path / 'x.db'}"):
        safe = RetrySafe(url)

        @safe.once("x:{n}")
        def x(n: int) -> None: ...

        assert safe.store is not None
        assert safe.async_store is not None
        safe.close()
    assert list(tmp_path.iterdir()) == []


def test_sqlite_opens_at_first_use(tmp_path: Path) -> None:
    with RetrySafe(f"sqlite:///{tmp_path / 'deep' / 'x.db'}") as safe:
        assert once_on(safe)(1) == 1
        assert (tmp_path / "deep" / "x.db").exists()


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("app.db", "sqlite:///app.db"),
        ("", "is not a store URL"),
        ("oracle://host/db", "no store answers to 'oracle'"),
        ("postgressql://host/db", "in 'postgressql://host/db'; did you mean postgresql://…?"),
        ("Sqllite:///app.db", "did you mean sqlite://…?"),
        ("://", "no store answers to ''"),
        ("user:hunter2@host/db", "is not a store URL"),
        ("oracle://user:hunter2@host/db", "no store answers to 'oracle'"),
    ],
)
def test_a_url_nobody_answers_to_names_those_that_are(url: str, expected: str) -> None:
    for opened in (RetrySafe, open_store, open_async_store):
        with pytest.raises(StoreURLError) as refused:
            opened(url)
        assert expected in str(refused.value)
        assert "postgresql://user@host/db" in str(refused.value)
        assert "hunter2" not in str(refused.value)


@pytest.mark.parametrize(
    "url", ["sqlite://", "sqlite:///", "sqlite://host/x.db", "sqlite:///:memory:", "sqlite:///x?y=1"]
)
def test_a_bad_sqlite_url_is_told_at_first_use(url: str) -> None:
    with pytest.raises(StoreURLError):
        once_on(RetrySafe(url))(1)


@pytest.mark.parametrize("namespace", ["", "x" * 256, None, 5, "a\0b"])
def test_a_bad_namespace(namespace: Any) -> None:
    with pytest.raises(UsageError, match="1 to 255 characters") as refused:
        RetrySafe("memory://", namespace=namespace)
    assert repr(namespace) in str(refused.value)


def test_no_store_or_something_else() -> None:
    with pytest.raises(StoreURLError, match=r"RetrySafe\('sqlite:///app\.db'\)"):
        RetrySafe()
    with pytest.raises(StoreURLError, match="async_store="):
        RetrySafe(AsyncMemoryStore())  # type: ignore[arg-type]  # that it is refused is what is tested
    with pytest.raises(StoreURLError, match="store="):
        RetrySafe(async_store=MemoryStore())  # type: ignore[arg-type]  # that it is refused is what is tested
    with pytest.raises(UsageError, match="not both"):
        RetrySafe("memory://", async_store=AsyncMemoryStore())


async def test_the_wrong_colour_says_what_to_pass() -> None:
    only_sync, only_async = RetrySafe(MemoryStore()), RetrySafe(async_store=AsyncMemoryStore())
    with pytest.raises(SyncAsyncMismatch, match="async_store="):
        await only_sync.aexecute(List())
    with pytest.raises(SyncAsyncMismatch, match="store="):
        only_async.execute(List())
    only_sync.close()
    await only_async.aclose()


async def test_memory_is_one_store_in_both_colours_and_nobody_else_s() -> None:
    safe, other = RetrySafe("memory://"), RetrySafe("memory://")
    assert once_on(safe)(1) == 1
    assert len((await safe.aexecute(List())).records) == 1
    assert (await other.aexecute(List())).records == ()
    safe.close()


async def test_a_named_memory_store_is_shared(memory_url: str) -> None:
    assert once_on(RetrySafe(memory_url))(1) == 1
    assert len((await RetrySafe(memory_url).aexecute(List())).records) == 1


async def test_one_sqlite_file_in_both_colours(sqlite_url: str) -> None:
    async with RetrySafe(sqlite_url) as safe:
        assert once_on(safe)(1) == 1
        assert len((await safe.aexecute(List())).records) == 1


def test_each_event_loop_has_its_own_connections(sqlite_url: str) -> None:
    safe = RetrySafe(sqlite_url)

    async def once(n: int) -> int:
        found = len((await safe.aexecute(List())).records)
        await safe.aclose()
        return found

    assert [asyncio.run(once(n)) for n in range(3)] == [0, 0, 0]


def test_closed_and_used_again(sqlite_url: str) -> None:
    """Closing gives back what is open; the next use opens it again."""
    safe = RetrySafe(sqlite_url)
    x = once_on(safe)
    with safe:
        assert x(1) == 1
    safe.close()
    assert x(1) == 1
    assert x(2) == 2
    safe.close()


async def test_closed_and_used_again_async(sqlite_url: str) -> None:
    safe = RetrySafe(sqlite_url)
    for _ in range(2):
        async with safe:
            assert (await safe.aexecute(List())).records == ()
        await safe.aclose()


def test_the_password_is_not_shown() -> None:
    shown = repr(RetrySafe("postgresql://user:hunter2@host/db", namespace="shop"))
    assert shown == "RetrySafe('postgresql://user:***@host/db', namespace='shop')"
    assert "MemoryStore" in repr(RetrySafe(MemoryStore()))


def test_a_policy_of_its_own_is_where_functions_start(memory_url: str) -> None:
    safe = RetrySafe(memory_url, policy=Policy(retention=7))
    once_on(safe)(1)
    [record] = safe.execute(List()).records
    assert record.retention == 7_000_000


def test_migrate_says_what_it_did(sqlite_url: str) -> None:
    with RetrySafe(sqlite_url) as safe:
        assert safe.migrate() != []
        assert safe.migrate() == []


async def test_the_hook_hears_of_everything_without_a_key_or_scope(memory_url: str) -> None:
    """S28."""
    heard: list[Any] = []
    safe = RetrySafe(memory_url, on_event=heard.append)

    @safe.once("secret:{n}", scope="tenant-canary")
    def x(n: str) -> None: ...

    x("key-canary")
    x("key-canary")
    assert [event.name for event in heard] == ["new", "completed", "replayed"]
    assert "canary" not in repr(heard)
