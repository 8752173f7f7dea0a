"""The async colour of a store whose driver only blocks: the sync one, in threads of its own.

A caller that is cancelled leaves its operation to finish in its thread: it may be half way to the disk, and the next
one who sends it learns what became of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Capabilities, Store

R = TypeVar("R")


class ThreadedStore:
    """At most `threads` operations at once; the others wait for a thread."""

    def __init__(self, store: Store, *, threads: int, name: str) -> None:
        self._store = store
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def execute(self, op: Op[R]) -> R:
        return await self._call(self._store.execute, op)

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._call(self._store.execute_many, ops)

    async def migrate(self) -> list[str]:
        return await self._call(self._store.migrate)

    async def aclose(self) -> None:
        """After what was asked before."""
        await self._call(self._store.close)
        self._threads.shutdown(wait=False)

    async def _call(self, function: Callable[..., R], *args: Any) -> R:
        try:
            waiting = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        except RuntimeError as error:  # the threads are gone
            raise StoreUnavailable("this store was closed; open a new one") from error
        return await waiting
