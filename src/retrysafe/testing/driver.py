"""`Do`: run operations on the store under test, sync or async, from a plain test function."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from retrysafe.core.deprecation import warn_renamed
from retrysafe.core.ops import List, Op
from retrysafe.core.records import Record
from retrysafe.stores.base import AsyncStore, Capabilities, Store
from retrysafe.testing.builders import KeyHolder, lookup

R = TypeVar("R")

OPERATION_TIMEOUT_SECONDS = 120.0
"""An operation that takes longer fails its test, instead of blocking the test run."""


class Do:
    """`do(op)` runs one operation, `do.many(ops)` a batch.

    `Do.sync(store)` and `Do.asynchronous(store)` make one. `do.through(execute, execute_many)` returns one that calls
    these functions instead of the store.
    """

    def __init__(
        self,
        capabilities: Capabilities,
        execute: Callable[[Op[Any]], Any],
        execute_many: Callable[[Sequence[Op[Any]]], list[Any]],
        migrate: Callable[[], list[str]],
        close: Callable[[], None],
    ) -> None:
        self.capabilities = capabilities
        self._execute = execute
        self._execute_many = execute_many
        self._migrate = migrate
        self._close = close

    @classmethod
    def sync(cls, store: Store) -> Do:
        return cls(store.capabilities, store.execute, store.execute_many, store.migrate, store.close)

    @classmethod
    def asynchronous(cls, store: AsyncStore) -> Do:
        """Run an async store on its own event loop in a thread. The loop also runs between operations, as in
        production."""
        loop = LoopThread()

        def close() -> None:
            loop.run(store.aclose())
            loop.close()

        return cls(
            store.capabilities,
            lambda op: loop.run(store.execute(op)),
            lambda ops: loop.run(store.execute_many(ops)),
            lambda: loop.run(store.migrate()),
            close,
        )

    def through(self, execute: Callable[[Op[Any]], Any], execute_many: Callable[[Sequence[Op[Any]]], list[Any]]) -> Do:
        return Do(self.capabilities, execute, execute_many, self._migrate, self._close)

    def __call__(self, op: Op[R]) -> R:
        reply: R = self._execute(op)
        return reply

    def many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return self._execute_many(ops)

    def record(self, owner: KeyHolder | str | Any, *, now: float | None = 0) -> Record:
        """The current record. Fails if there is none."""
        found = self(lookup(owner, now=now)).record
        assert found is not None, f"no record for {owner}"
        return found

    def pages(self, op: List, *, max_pages: int = 10_000) -> list[tuple[Record, ...]]:
        """All pages of a listing, in order."""
        pages: list[tuple[Record, ...]] = []
        while len(pages) < max_pages:
            page = self(op)
            pages.append(page.records)
            if not page.cursor:
                return pages
            op = replace(op, cursor=page.cursor)
        raise AssertionError(f"the listing did not end within {max_pages} pages")

    def list_all(self, op: List) -> dict[bytes, Record]:
        """All records of a listing, by id. A later page may repeat a record of an earlier one."""
        return {record.id: record for page in self.pages(op) for record in page}

    def listed(self, op: List) -> dict[bytes, Record]:
        """Deprecated: `list_all`."""
        warn_renamed("Do.listed", "Do.list_all")
        return self.list_all(op)

    def migrate(self) -> list[str]:
        return self._migrate()

    def close(self) -> None:
        self._close()


class LoopThread:
    """An event loop that runs in its own thread."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retrysafe-test-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(OPERATION_TIMEOUT_SECONDS)

    def close(self) -> None:
        self.run(_cancel_other_tasks())
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(OPERATION_TIMEOUT_SECONDS)
        self._loop.close()


async def _cancel_other_tasks() -> None:
    """Cancel the tasks that a store left running on the loop, as asyncio.run does."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
