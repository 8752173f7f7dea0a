"""An async store over a sync one, for drivers that only block. It runs the sync store in threads of its own.

If a caller is cancelled, its operation still runs to its end in the thread: it may be half written already. A caller
that sends the operation again gets its result.
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
    """An async store that runs at most `threads` operations at once. The others wait for a thread."""

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
        """Close the store after all operations before this call."""
        await self._call(self._store.close)
        self._threads.shutdown(wait=False)

    async def _call(self, function: Callable[..., R], *args: Any) -> R:
        try:
            waiting = asyncio.get_running_loop().run_in_executor(self._threads, function, *args)
        except RuntimeError as error:  # the threads were shut down
            raise StoreUnavailable("this store was closed; open a new one") from error
        return await waiting
