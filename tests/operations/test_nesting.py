"""Operations inside operations, and beside each other."""

from __future__ import annotations

from typing import Any

import pytest

from retrysafe import Answer
from retrysafe.errors import NotFinished, OperationError
from tests.operations.world import World


def inner_operation(w: World, fail: list[BaseException]) -> Any:
    op = w.safe.operation("inner")

    @w.local(op)
    def book(tx: Any, item: str) -> int:
        return (yield from w.insert(tx, item))

    @w.foreign(op)
    def tell(number: int, *, key: str) -> int:
        w.sent.append(key)
        if fail:
            raise fail.pop()
        return number

    @w.body(op)
    def body(item: str) -> Answer:
        number = yield lambda: book(item)
        yield lambda: tell(number)
        return Answer(200, {"number": number})

    return op


def test_an_operation_inside_a_foreign_step_runs_once_under_that_steps_key(w: World) -> None:
    failing: list[BaseException] = [ValueError("x")] * 9
    inner = inner_operation(w, failing)
    outer = w.safe.operation("outer")

    @w.foreign(outer)
    def delegate(item: str, *, key: str) -> int:
        answer = yield lambda: inner(item, key=key)
        return int(answer.json()["number"])

    @w.local(outer)
    def finish(tx: Any, number: int) -> Answer:
        yield from w.insert(tx, "outer")
        return Answer(201, {"inner": number})

    @w.body(outer)
    def body(item: str) -> Answer:
        number = yield lambda: delegate(item)
        return (yield lambda: finish(number))

    with pytest.raises(NotFinished, match="outer"):
        w.run(outer("a", key="k"))
    failing.clear()
    assert w.run(outer("a", key="k")) == Answer(201, {"inner": 1})
    assert w.items() == ["a", "outer"]
    assert len(set(w.sent)) == 1
    assert {record.target for record in w.records()} == {"inner@1", "outer@1"}


def test_an_operation_inside_a_local_step_is_refused(w: World) -> None:
    """Its claim would wait for the very transaction that is waiting for it."""
    inner = inner_operation(w, [])
    outer = w.safe.operation("outer")

    @w.local(outer)
    def wrong(tx: Any) -> Answer:
        yield from w.insert(tx, "rolled back")
        yield lambda: inner("a", key="k")
        return Answer(200, {})

    @w.body(outer)
    def body() -> Answer:
        return (yield wrong)

    with pytest.raises(OperationError, match="call it from a foreign step"):
        w.run(outer(key="k"))
    assert w.items() == []


def test_a_step_of_another_operation_is_refused(w: World) -> None:
    one, two = w.safe.operation("one"), w.safe.operation("two")

    @w.foreign(one)
    def theirs(*, key: str) -> int:
        return 1

    @w.body(two)
    def body() -> Answer:
        yield theirs
        return Answer(200, {})

    with pytest.raises(OperationError, match="outside the body of 'one'"):
        w.run(two(key="k"))
