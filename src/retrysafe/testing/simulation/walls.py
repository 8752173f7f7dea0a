"""Two applications in one store: no reply shows the one anything of the other (I34)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from retrysafe.core.jobs import StagedJob
from retrysafe.core.keys import observed_namespace
from retrysafe.core.ops import Op
from retrysafe.core.records import Record

R = TypeVar("R")


class WalledStore:
    """The store of one process, with a look at every operation and every reply."""

    def __init__(self, store: Any, namespace: str, rows: Mapping[bytes, Record], report: Callable[[str], None]) -> None:
        self.capabilities = store.capabilities
        self._store, self._rows, self._report = store, rows, report
        self._owned = (namespace, observed_namespace(namespace))

    async def execute(self, op: Op[R]) -> R:
        reply: R = await self._store.execute(op)
        self._look(op, reply)
        return reply

    async def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies: list[Any] = await self._store.execute_many(ops)
        for op, reply in zip(ops, replies, strict=True):
            self._look(op, reply)
        return replies

    async def migrate(self) -> list[str]:
        found: list[str] = await self._store.migrate()
        return found

    async def aclose(self) -> None:
        await self._store.aclose()

    def _look(self, op: Op[Any], reply: Any) -> None:
        for namespace in find_namespaces(op, reply, self._rows):
            if namespace not in self._owned:
                name = type(op).__name__
                self._report(f"I34 walls: {name} of {self._owned[0]} touched what belongs to {namespace or 'nobody'}")


def find_namespaces(op: Op[Any], reply: Any, rows: Mapping[bytes, Record]) -> Iterator[str]:
    """The namespaces of everything that an operation named, and of everything that its reply shows."""
    record = rows.get(getattr(op, "id", b""))
    if record is not None:
        yield record.namespace
    shown = getattr(reply, "record", None)
    for each in (shown, *getattr(reply, "records", ()), *(reply if isinstance(reply, tuple) else ())):
        if isinstance(each, Record | StagedJob):
            yield each.namespace
