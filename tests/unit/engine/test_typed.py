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
import pydantic.dataclasses
import pytest

from retrysafe import Answer
from retrysafe.core import values
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


# What a model does not show of itself --------------------------------------------------------


class Method(pydantic.BaseModel):
    currency: str = "EUR"


class ByCard(Method):
    card: str


class Receipt(pydantic.BaseModel):
    id: int = pydantic.Field(alias="Id")
    token: str = pydantic.Field(default="", exclude=True)


class Renamed(pydantic.BaseModel):
    id: int = pydantic.Field(validation_alias="in", serialization_alias="out")


class Paid(pydantic.BaseModel):
    receipt: Receipt
    many: list[Receipt] = []
    by: Method = Method()


class When(pydantic.BaseModel):
    at: date

    @pydantic.field_validator("at", mode="before")
    @classmethod
    def _read(cls, told: Any) -> Any:
        return date.fromisoformat(told.removeprefix("on ")) if isinstance(told, str) else told

    @pydantic.field_serializer("at")
    def _write(self, at: date) -> str:
        return f"on {at}"


@pydantic.dataclasses.dataclass
class Keyed:
    id: int
    secret: str = pydantic.Field(default="", exclude=True)


class Numbers(pydantic.RootModel[list[Receipt]]):
    pass


RECEIPT = Receipt(Id=1, token="t0k")


@pytest.mark.parametrize(
    ("value", "annotation"),
    [
        (RECEIPT, Receipt), (Paid(receipt=RECEIPT, many=[RECEIPT]), Paid), ([RECEIPT], list[Receipt]),
        (Keyed(1, "s"), Keyed), (Numbers([RECEIPT]), Numbers),
    ],
    ids=lambda given: getattr(given, "__name__", None) or type(given).__name__,
)  # fmt: skip
def test_an_excluded_field_is_stored_sealed_or_not_at_all(value: Any, annotation: Any) -> None:
    """It came back as its default, without an error."""
    assert typed.load(typed.dump(value, "keep"), annotation) == value
    with pytest.raises(
        typed.SecretField, match=r"exclude=True.*Set a key ring.*or return something without it"
    ) as raised:
        typed.dump(value)
    assert "t0k" not in str(raised.value)
    assert "t0k" not in values.dumps(typed.to_plain(value, "leave out"))


@pytest.mark.parametrize("value", [Renamed(**{"in": 1}), When(at=date(2026, 1, 2))], ids=repr)
def test_a_model_comes_back_by_the_names_and_forms_that_its_validation_asks_for(value: Any) -> None:
    assert typed.load(typed.dump(value), type(value)) == value


def test_the_fields_of_a_subclass_are_told() -> None:
    assert typed.to_plain(Paid(receipt=RECEIPT, by=ByCard(card="4111")), "keep")["by"] == {
        "currency": "EUR",
        "card": "4111",
    }


def test_what_was_stored_before_is_stored_the_same() -> None:
    """Rule 17: an older process reads it."""
    assert typed.dump(Model(Number=3, line=LINE)) == (
        '{"Number":3,"line":{"colour":"red","item":"a","price":{"$Decimal":"1.50"},"total":{"$Decimal":"3.00"}}}'
    )


class Open(pydantic.BaseModel, extra="allow"):
    a: int


def test_what_a_model_took_beside_its_fields_must_come_back_as_it_was() -> None:
    """As JSON it would be a plain dict on a replay."""
    inner = Open(a=2)
    assert typed.has_same_types(Open(a=1, more=[1]), Open(a=1, more=[1]))
    assert not typed.has_same_types(Open(a=1, more=inner), Open(a=1, more={"a": 2}))
    assert not typed.has_same_types(Open(a=1, more=inner), Open(a=1))
    assert typed.has_same_types(Open(a=1), Open(a=1))
