"""A client per event loop, for libraries whose connections belong to the loop they were opened on."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

C = TypeVar("C")


class ClientPerLoop(Generic[C]):
    """Made when a loop first asks for it; forgotten with the loop."""

    def __init__(self, make: Callable[[], Awaitable[C]]) -> None:
        self._make = make
        self._made: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, asyncio.Future[C]] = (
            weakref.WeakKeyDictionary()
        )

    async def get(self) -> C:
        loop = asyncio.get_running_loop()
        making = self._made.get(loop)
        if making is None or (making.done() and (making.cancelled() or making.exception() is not None)):
            self._made[loop] = making = asyncio.ensure_future(self._make())
        return await asyncio.shield(making)  # several wait for it; one that is cancelled does not take it along

    def get_existing(self) -> C | None:
        """The one of the running loop, if it was made."""
        making = self._made.get(asyncio.get_running_loop())
        return making.result() if making is not None and making.done() else None
