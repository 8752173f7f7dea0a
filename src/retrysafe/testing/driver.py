"""`Do`: run operations on the store under test, whatever its colour, from a plain test function."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from retrysafe.core.ops import List, Op
from retrysafe.core.records import Record
from retrysafe.stores.base import AsyncStore, Capabilities, Store
from retrysafe.testing.builders import KeyHolder, lookup

R = TypeVar("R")

OPERATION_TIMEOUT_SECONDS = 120.0
"""No operation of a test takes this long; one that does is reported instead of hanging the run."""


class Do:
    """`do(op)` runs one operation, `do.many(ops)` a batch.

    `Do.sync(store)` and `Do.asynchronous(store)` make one; `do.through(execute, execute_many)` puts something
    between it and the store.
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
        """The async colour on an event loop of its own, which runs between operations as in production."""
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

    def record(self, held: KeyHolder | str | Any, *, now: float | None = 0) -> Record:
        """The record as it stands; there must be one."""
        found = self(lookup(held, now=now)).record
        assert found is not None, f"there is no record for {held}"
        return found

    def pages(self, op: List, *, at_most: int = 10_000) -> list[tuple[Record, ...]]:
        """Every page of a listing, from its first to its last."""
        pages: list[tuple[Record, ...]] = []
        while len(pages) < at_most:
            page = self(op)
            pages.append(page.records)
            if not page.cursor:
                return pages
            op = replace(op, cursor=page.cursor)
        raise AssertionError(f"the listing did not end within {at_most} pages")

    def listed(self, op: List) -> dict[bytes, Record]:
        """Everything a listing shows, by id. A page may show a record that an earlier one has shown."""
        return {record.id: record for page in self.pages(op) for record in page}

    def migrate(self) -> list[str]:
        return self._migrate()

    def close(self) -> None:
        self._close()


class LoopThread:
    """An event loop in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="retrysafe-test-loop", daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, R]) -> R:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(OPERATION_TIMEOUT_SECONDS)

    def close(self) -> None:
        self.run(_finish_others())
        self.run(self._loop.shutdown_asyncgens())
        self.run(self._loop.shutdown_default_executor())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(OPERATION_TIMEOUT_SECONDS)
        self._loop.close()


async def _finish_others() -> None:
    """What a store left running on the loop is cancelled, as asyncio.run would do."""
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
