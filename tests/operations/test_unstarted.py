"""A plain helper of a step that returns a coroutine has done nothing: an undo like that is no undo."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe, Undo
from retrysafe.errors import OperationError, OutcomeUnknown, RetrySafeError

Helper = Callable[..., Any]


@pytest.fixture
def safe(tmp_path: Path) -> Iterator[RetrySafe]:
    with RetrySafe(f"sqlite:///{tmp_path / 'shop.db'}", tx=str(tmp_path / "shop.db")) as made:
        made.migrate()
        yield made


def traced(function: Helper) -> Helper:
    """A decorator as many people write it: it knows nothing of `async def`."""

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call


def charging(safe: RetrySafe, undo: Helper) -> Any:
    order = safe.operation("order", version=1)

    @order.foreign(timeout=5, undo=undo, backoff=(0,))
    def charge(cents: int, *, key: str) -> str:
        return "ch_1"

    @order.body
    def place(cents: int) -> Answer:
        charge(cents)
        raise Undo(502, {"failed": "stock"})

    return order


def test_an_undo_that_nobody_ran_is_not_reported_as_done(safe: RetrySafe) -> None:
    """Before the fix the client was told 502, all undone; the charge stood, and no ledger showed it."""

    async def refund(result: str, *, key: str) -> None: ...

    order = charging(safe, traced(refund))
    for _ in range(2):
        with pytest.raises(OutcomeUnknown, match="the undo of charge failed"):
            order(500, key="k")


def test_an_object_with_an_async_call_is_refused_where_it_is_declared(safe: RetrySafe) -> None:
    class Refund:
        async def __call__(self, result: str, *, key: str) -> None: ...

    with pytest.raises(OperationError, match="the undo of step 'charge' is async"):
        charging(safe, Refund())


def test_a_local_step_that_did_nothing_is_rolled_back(safe: RetrySafe) -> None:
    order = safe.operation("order", version=1)

    @order.local
    @traced
    async def insert(tx: Any, cents: int) -> None: ...

    @order.body
    def place(cents: int) -> Answer:
        insert(cents)
        return Answer(201)

    with pytest.raises(RetrySafeError) as refused:
        order(500, key="k")
    assert not isinstance(refused.value, OutcomeUnknown)
