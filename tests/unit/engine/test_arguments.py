"""A call's arguments as plain data: calls that differ are described differently."""

from __future__ import annotations

import dataclasses
import inspect
from enum import Enum, IntEnum
from itertools import combinations
from typing import Any, NamedTuple

import msgspec
import pydantic
import pytest

from retrysafe.engine.arguments import bound, fingerprint_of
from retrysafe.errors import ArgumentError


@dataclasses.dataclass
class Order:
    id: int
    lines: list[Any]


@dataclasses.dataclass
class Refund:
    id: int
    lines: list[Any]


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Size(IntEnum):
    SMALL = 1


class Point(NamedTuple):
    x: int
    y: int


class Model(pydantic.BaseModel):
    id: int
    name: str = "x"


class Struct(msgspec.Struct):
    id: int


class Thing:
    pass


def of(value: Any, ignore: frozenset[str] = frozenset()) -> Any:
    return fingerprint_of("app.f", {"a": value}, ignore)


VALUES: list[Any] = [
    Order(1, []), Order(2, []), Order(1, [1]), Order(1, [Order(1, [])]), Refund(1, []), {"id": 1, "lines": []},
    {"type": "Order", "fields": {"id": 1, "lines": []}}, {"\0type": "Order", "\0fields": {"id": 1, "lines": []}},
    Colour.RED, Colour.BLUE, "red", {"enum": "Colour.RED"}, {"\0enum": "Colour.RED"}, {"\0\0enum": "Colour.RED"},
    Size.SMALL, 1, 1.0, True, "1", b"1", None,
    Point(1, 2), (1, 2), [1, 2], {1, 2}, Model(id=1), Model(id=2), Model(id=1, name="y"), Struct(1), Struct(2),
    {"a": Colour.RED}, {"a": "Colour.RED"}, [Model(id=1)], (Model(id=1),),
]  # fmt: skip


def test_values_that_differ_differ() -> None:
    """justonce counted an object as its type and id: `total` did not matter (PEERS 10)."""
    assert [pair for pair in combinations(VALUES, 2) if of(pair[0]) == of(pair[1])] == []


def test_values_that_are_equal_agree() -> None:
    assert of(Order(1, [Colour.RED])) == of(Order(1, [Colour.RED]))
    assert of(Model(id=1)) == of(Model(id=1, name="x"))
    assert of({"a": 1, "b": 2}) == of({"b": 2, "a": 1})


@pytest.mark.parametrize(
    "value",
    [Thing(), [Thing()], {"x": Thing()}, Order(1, [Thing()]), lambda: None, 10**5000],
    ids=lambda v: type(v).__name__,
)
def test_what_cannot_be_described_is_named_with_the_fix(value: Any) -> None:
    with pytest.raises(ArgumentError) as refused:
        of(value)
    message = str(refused.value)
    assert "argument 'a' of app.f cannot be fingerprinted" in message
    assert "ignore=('a',)" in message
    assert of(value, frozenset({"a"})) == fingerprint_of("app.f", {}, frozenset())


def test_names_count() -> None:
    none: frozenset[str] = frozenset()
    assert fingerprint_of("f", {"a": 1, "b": 2}, none) != fingerprint_of("f", {"a": 2, "b": 1}, none)
    assert fingerprint_of("f", {"a": 1}, none) != fingerprint_of("f", {"b": 1}, none)


def test_positional_and_keyword_and_default_are_one_call() -> None:
    def f(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> None: ...

    signature = inspect.signature(f)
    assert bound(signature, (1,), {}) == bound(signature, (), {"a": 1}) == bound(signature, (1, 2), {"c": 3})
    assert bound(signature, (1, 2, 9), {"d": 4}) == {"a": 1, "b": 2, "rest": (9,), "c": 3, "more": {"d": 4}}
    with pytest.raises(TypeError, match="missing a required argument"):
        bound(signature, (), {})
