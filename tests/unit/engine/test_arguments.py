"""A call's arguments as plain data: calls that differ are described differently."""

from __future__ import annotations

import copy
import dataclasses
import inspect
from enum import Enum, IntEnum, IntFlag
from itertools import combinations
from typing import Annotated, Any, Literal, NamedTuple

import attrs
import msgspec
import pydantic
import pytest

from retrysafe.engine.arguments import bind_arguments, fingerprint_call
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


class Rights(IntFlag):
    READ = 1
    WRITE = 2


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
    return fingerprint_call("app.f", {"a": value}, ignore)


VALUES: list[Any] = [
    Order(1, []), Order(2, []), Order(1, [1]), Order(1, [Order(1, [])]), Refund(1, []), {"id": 1, "lines": []},
    {"type": "Order", "fields": {"id": 1, "lines": []}}, {"\0type": "Order", "\0fields": {"id": 1, "lines": []}},
    Colour.RED, Colour.BLUE, "red", {"enum": "Colour.RED"}, {"\0enum": "Colour.RED"}, {"\0\0enum": "Colour.RED"},
    Rights(0), Rights.READ, Rights(8), Rights(16), Rights(9), [Rights(8)], [Rights(16)],
    Size.SMALL, 1, 1.0, True, "1", b"1", None,
    Point(1, 2), (1, 2), [1, 2], {1, 2}, Model(id=1), Model(id=2), Model(id=1, name="y"), Struct(1), Struct(2),
    {"a": Colour.RED}, {"a": "Colour.RED"}, [Model(id=1)], (Model(id=1),),
]  # fmt: skip


def test_values_that_differ_differ() -> None:
    """justonce counted an object as its type and id: `total` did not matter."""
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
    assert of(value, frozenset({"a"})) == fingerprint_call("app.f", {}, frozenset())


def test_only_bits_without_a_name_take_the_newer_form() -> None:
    """A call of the release before keeps its fingerprint."""
    assert {of(Rights(0)).algorithm, of(Rights.READ).algorithm, of(Rights(3)).algorithm} == {"call1"}
    assert of(Rights(8)).algorithm == "call2"


def test_names_count() -> None:
    none: frozenset[str] = frozenset()
    assert fingerprint_call("f", {"a": 1, "b": 2}, none) != fingerprint_call("f", {"a": 2, "b": 1}, none)
    assert fingerprint_call("f", {"a": 1}, none) != fingerprint_call("f", {"b": 1}, none)


def test_positional_and_keyword_and_default_are_one_call() -> None:
    def f(a: int, b: int = 2, *rest: int, c: int = 3, **more: int) -> None: ...

    signature = inspect.signature(f)
    assert (
        bind_arguments(signature, (1,), {})
        == bind_arguments(signature, (), {"a": 1})
        == bind_arguments(signature, (1, 2), {"c": 3})
    )
    assert bind_arguments(signature, (1, 2, 9), {"d": 4}) == {"a": 1, "b": 2, "rest": (9,), "c": 3, "more": {"d": 4}}
    with pytest.raises(TypeError, match="missing a required argument"):
        bind_arguments(signature, (), {})


# Attributes, not what a class shows of itself ------------------------------------------------


class Card(pydantic.BaseModel):
    last4: str = ""
    number: str = pydantic.Field(default="", exclude=True)


class Method(pydantic.BaseModel):
    currency: str = "EUR"


class ByCard(Method):
    card: str


class ByIban(Method):
    card: str


class Payment(pydantic.BaseModel):
    amount: int
    method: Method = Method()
    also: list[Method] = []
    by_name: dict[str, Method] = {}


class Open(pydantic.BaseModel, extra="allow"):
    id: int
    _seen: int = pydantic.PrivateAttr(default=0)


class Told(pydantic.BaseModel):
    at: str

    @pydantic.field_serializer("at")
    def _short(self, at: str) -> str:
        return at[:1]


class Either(pydantic.BaseModel):
    which: ByCard | ByIban


class Numbers(pydantic.RootModel[list[int]]):
    pass


@dataclasses.dataclass
class Holder:
    payment: Payment
    note: str = dataclasses.field(default="", compare=False)


@dataclasses.dataclass(frozen=True)
class Frozen:
    id: int


@attrs.define
class Attrs:
    id: int
    card: Card


ONE = Payment(amount=1)
HIDDEN: list[Any] = [
    Card(number="4111"), Card(number="5500"), [Card(number="4111")], [Card(number="5500")],
    ONE, Payment(amount=1, method=ByCard(card="4111")), Payment(amount=1, method=ByCard(card="5500")),
    Payment(amount=1, method=ByIban(card="4111")),
    Payment(amount=1, also=[ByCard(card="4111")]), Payment(amount=1, also=[ByCard(card="5500")]),
    Payment(amount=1, by_name={"a": ByCard(card="4111")}), Payment(amount=1, by_name={"a": ByCard(card="5500")}),
    Holder(ONE), Holder(ONE, "b"), Holder(Payment(amount=1, method=ByCard(card="4111"))),
    Holder(Payment(amount=1, method=ByCard(card="5500"))),
    Either(which=ByCard(card="1")), Either(which=ByIban(card="1")), Told(at="ab"), Told(at="ac"),
    Open(id=1), Open(id=1, more=Card(number="4111")), Open(id=1, more=Card(number="5500")),
    Numbers([1]), Numbers([2]), Attrs(1, Card(number="4111")), Attrs(1, Card(number="5500")),
    {Frozen(1)}, {Frozen(2)}, {1}, {Colour.RED}, {Colour.BLUE}, frozenset({Colour.RED}),
]  # fmt: skip


def test_what_a_model_does_not_show_counts() -> None:
    """Card 5500 got the receipt of card 4111: `model_dump()` leaves out what is excluded and what a subclass adds."""
    assert [pair for pair in combinations(HIDDEN, 2) if of(pair[0]) == of(pair[1])] == []
    assert [value for value in HIDDEN if of(value) != of(copy.deepcopy(value))] == []


def test_private_attributes_do_not_count() -> None:
    seen = Open(id=1)
    seen._seen = 7
    assert of(seen) == of(Open(id=1))


class Address(pydantic.BaseModel):
    street: str
    zip: int | None = None


class CardOf(pydantic.BaseModel):
    kind: Literal["card"] = "card"
    id: int


class IbanOf(pydantic.BaseModel):
    kind: Literal["iban"] = "iban"
    id: int


class Customer(pydantic.BaseModel):
    name: str
    home: Address
    others: list[Address] = []
    by_name: dict[str, Address | None] = {}
    pair: tuple[Address, int] | None = None
    pays: Annotated[CardOf | IbanOf, pydantic.Field(discriminator="kind")] = CardOf(id=1)
    colour: Colour = Colour.RED
    line: Order | None = None
    sizes: set[int] = set()

    @pydantic.computed_field  # type: ignore[prop-decorator]
    @property
    def shout(self) -> str:
        return self.name.upper()


HOME = Address(street="a", zip=7)
CUSTOMER = Customer(
    name="x", home=HOME, others=[HOME], by_name={"a": HOME, "b": None}, pair=(HOME, 3), line=Order(1, [2]), sizes={2, 1}
)
GOLDEN: list[tuple[Any, str]] = [
    (Order(1, [Colour.RED]), "call1:100:d5270cc8e8"),
    (Model(id=1), "call1:73:7545c4051b9"),
    (CUSTOMER, "call1:356:6d2582c052"),
    ([CUSTOMER, {"b": (HOME,)}], "call1:440:2de30a260a"),
    (Struct(2), "call1:63:2e320cbddf0"),
    ({(1, 2), (3, 4)}, "call1:60:5bf685360d1"),
]


@pytest.mark.parametrize(("value", "written"), GOLDEN, ids=lambda given: type(given).__name__)
def test_where_the_older_form_told_everything_it_is_written_still(value: Any, written: str) -> None:
    """Rule 17: the release before this one wrote these, and runs beside it."""
    assert str(of(value)).startswith(written)


@pytest.mark.parametrize("value", [HIDDEN[0], HIDDEN[5], HIDDEN[8], HIDDEN[16], HIDDEN[18]], ids=repr)
def test_where_the_older_form_left_something_out_it_is_not_compared_with(value: Any) -> None:
    assert of(value).algorithm == "call2"


def test_a_default_in_an_excluded_field_is_no_reason_to_trust_the_older_form() -> None:
    """The older release may have written the same text for a card with a number."""
    assert of(Card()).algorithm == "call2"


def test_a_value_inside_itself_is_refused() -> None:
    order = Order(1, [])
    order.lines.append(order)
    payment = Open(id=1)
    payment.more = {"again": [payment]}  # type: ignore[attr-defined]
    for value in (order, payment, order.lines):
        with pytest.raises(ArgumentError, match="contains itself"):
            of(value)


def test_a_value_nested_too_deeply_is_refused() -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ArgumentError, match="nested too deeply"):
        of(deep)


def test_one_value_in_two_places_is_no_cycle() -> None:
    assert of([HOME, HOME]) == of([HOME, Address(street="a", zip=7)])
