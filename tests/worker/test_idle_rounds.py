"""A worker with nothing to do asks for what is due, by index: it never counts the store and never walks it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Complete, List, Op, Release, Stats
from retrysafe.core.records import Answer
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim
from retrysafe.worker import Worker
from tests.opening import store_url

STORES = [pytest.param(name, marks=pytest.mark.store(name)) for name in ("sqlite", "redis", "dynamodb", "mongodb")]


class Noting:
    """A store that notes its operations, and the length of its lists."""

    def __init__(self, url: str) -> None:
        self._store = open_store(url)
        self.asked: list[Op[Any]] = []
        self.listed = 0

    def execute(self, op: Op[Any]) -> Any:
        reply = self._store.execute(op)
        self._note(op, reply)
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies = self._store.execute_many(ops)
        for op, reply in zip(ops, replies, strict=True):
            self._note(op, reply)
        return replies

    def _note(self, op: Op[Any], reply: Any) -> None:
        self.asked.append(op)
        if isinstance(op, List):
            self.listed += len(reply.records)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("store", STORES)
def test_an_idle_round_neither_counts_nor_walks(request: pytest.FixtureRequest, tmp_path: Path, store: str) -> None:
    noting = Noting(store_url(request, tmp_path, store))
    noting.migrate()
    for number in range(30):
        held = noting.execute(claim(f"k{number}", namespace="default", now=None)).record
        ended = Release(held.id, held.fence) if number % 2 else Complete(held.id, held.fence, Answer(200, b"x"))
        assert noting.execute(ended)
    with RetrySafe(noting) as safe:
        noting.asked.clear()
        Worker(safe).run_once()
        assert noting.asked
        assert [op for op in noting.asked if isinstance(op, Stats)] == []
        assert noting.listed == 0, "thirty settled records need no work"
