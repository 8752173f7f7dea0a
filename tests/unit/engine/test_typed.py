"""Values of the user's own types come back as they were, or it is said why not."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from decimal import Decimal
from typing import Annotated, Any, NamedTuple, NewType

import msgspec
import pydantic
import pytest

from retrysafe import Answer
from retrysafe.core.values import NotPlain
from retrysafe.engine import typed
from retrysafe.errors import UsageError


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


@dataclass
class Line:
    item: str
    price: Decimal
    colour: Colour = Colour.RED
    total: Decimal = field(init=False, default=Decimal(0))

    def __post_init__(self) -> None:
        self.total = self.price * 2


@dataclass(frozen=True)
class Order:
    lines: list[Line]
    by_name: dict[str, Line]
    placed: date
    note: str | None = None


class Point(NamedTuple):
    x: int
    of: Line


class Model(pydantic.BaseModel):
    number: int = pydantic.Field(alias="Number")
    line: Line


class Struct(msgspec.Struct):
    line: Line
    many: tuple[int, ...] = ()


OrderId = NewType("OrderId", int)
NamedLine = NewType("NamedLine", Line)
LINE = Line("a", Decimal("1.50"))


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (LINE, Line),
        (Order([LINE], {"x": LINE}, date(2026, 1, 2)), Order),
        (Order([], {}, date(2026, 1, 2), "n"), Order),
        (Point(1, LINE), Point),
        (Model(Number=3, line=LINE), Model),
        (Struct(LINE, (1, 2)), Struct),
        ([LINE], Sequence[Line]),
        ((LINE, 1), tuple[Line, int]),
        ((LINE, LINE), tuple[Line, ...]),
        ({"a": LINE}, Mapping[str, Line]),
        ({Colour.RED: LINE}, dict[Colour, Line]),
        ({Colour.RED}, set[Colour]),
        (Colour.PAIR, Colour),
        (LINE, NamedLine),
        (LINE, Line | None),
        (None, Line | None),
        (LINE, Annotated[Line, "checked"]),
        (OrderId(7), OrderId),
        (b"\x00", bytes),
        ("text", str | int),
        (Answer(201, {"a": 1}, {"x": "y"}), Answer),
        ({"plain": [1, (2, 3)]}, Any),
    ],
    ids=repr,
)
def test_values_come_back_as_they_were(value: Any, annotation: Any) -> None:
    assert typed.load(typed.dump(value), annotation) == value


def test_without_an_annotation_it_comes_back_as_plain_data() -> None:
    assert typed.load(typed.dump(Point(1, LINE)), None)["x"] == 1


def test_what_has_no_plain_form_is_refused() -> None:
    with pytest.raises(NotPlain, match="object"):
        typed.dump({"a": object()})


def test_types_that_cannot_be_told_apart_are_refused() -> None:
    with pytest.raises(UsageError, match="use one type"):
        typed.load(typed.dump(LINE), Line | Point)
