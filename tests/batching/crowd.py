"""Company for an operation: others of its kind that are refused and leave nothing behind."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from retrysafe.core.ops import Complete, Op, Release, Renew, Withdraw
from retrysafe.core.records import Fence
from retrysafe.stores.base import AsyncStore, Capabilities

FENCED_LANES = (Complete, Renew, Release, Withdraw)


def decoy(op: Op[Any]) -> Op[Any]:
    """The same operation on a record that is nowhere. A claim has none: it would create one."""
    assert isinstance(op, FENCED_LANES)
    return replace(op, id=secrets.token_bytes(32), fence=Fence(1, secrets.token_bytes(16)))


class Crowded:
    """A batched store that is never idle: each fenced operation finds one in flight and travels with another."""

    def __init__(self, store: AsyncStore) -> None:
        self._store = store

    @property
    def capabilities(self) -> Capabilities:
        return self._store.capabilities

    async def execute(self, op: Op[Any]) -> Any:
        if not isinstance(op, FENCED_LANES):
            return await self._store.execute(op)
        sent = (decoy(op), decoy(op), op)
        ahead, beside, reply = await asyncio.gather(*(self._store.execute(each) for each in sent))
        assert (ahead, beside) == (False, False), "an operation on a record that is nowhere was done"
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return await self._store.execute_many(ops)

    async def migrate(self) -> list[str]:
        return await self._store.migrate()

    async def aclose(self) -> None:
        await self._store.aclose()
