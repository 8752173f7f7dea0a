"""Results of every kind come back from the store as they were when the function ran: one property per codec."""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple
from uuid import uuid4

import attrs
import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from retrysafe.engine.codecs import JsonCodec, ResultCodec, TypedCodec
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import AnswerGone, ResultNotStorable, StoredFailure
from retrysafe.policy import Policy

FEW = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

texts = st.text(st.characters(codec="utf-8"), max_size=20)
decimals = st.decimals(allow_nan=False, allow_infinity=False)
moments = st.datetimes()
numbers = st.integers(-(2**70), 2**70)


class Size(enum.Enum):
    SMALL = "s"
    LARGE = "l"


@dataclass
class Data:
    name: str
    price: Decimal
    at: datetime
    size: Size | None = None


class Model(pydantic.BaseModel):
    name: str
    price: Decimal
    inner: Data


class Struct(msgspec.Struct):
    name: str
    many: list[Data]


@attrs.define
class Attrs:
    name: str
    number: int
    data: Data


class Pair(NamedTuple):
    left: Data
    right: int


data = st.builds(Data, name=texts, price=decimals, at=moments, size=st.sampled_from([None, *Size]))
plain = st.recursive(
    st.none() | st.booleans() | numbers | st.floats(allow_nan=False)
    | texts | st.binary(max_size=9) | decimals | moments,
    lambda inner: st.lists(inner, max_size=4) | st.tuples(inner, inner) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=10,
)  # fmt: skip

KINDS: dict[str, tuple[Any, st.SearchStrategy[Any]]] = {
    "json": (Any, plain),
    "enum": (Size, st.sampled_from(list(Size))),
    "dataclass": (Data, data),
    "pydantic": (Model, st.builds(Model, name=texts, price=decimals, inner=data)),
    "msgspec": (Struct, st.builds(Struct, texts, st.lists(data, max_size=3))),
    "attrs": (Attrs, st.builds(Attrs, texts, numbers, data)),
    "named tuple": (Pair, st.builds(Pair, data, numbers)),
    "optional": (Data | None, st.none() | data),
    "list": (list[Data], st.lists(data, max_size=3)),
    "dict": (dict[str, Model], st.dictionaries(texts, st.builds(Model, name=texts, price=decimals, inner=data))),
}


@pytest.fixture(scope="module")
def safe() -> RetrySafe:
    return RetrySafe("memory://")


def returning(safe: RetrySafe, annotation: Any, value: Any) -> Callable[[str], Any]:
    def function(key: str) -> Any:
        return value

    function.__annotations__["return"] = annotation
    return safe.once("r:{key}")(function)


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_comes_back_as_it_was(safe: RetrySafe, kind: str) -> None:
    annotation, strategy = KINDS[kind]

    @FEW
    @given(strategy)
    def check(value: Any) -> None:
        call, key = returning(safe, annotation, value), uuid4().hex
        first, again = call(key), call(key)
        assert first is value
        assert again == value
        assert type(again) is type(value)

    check()


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, {"vat": 1, "base": {"z": [{"d": 1, "c": 2}], "a": None}}),
        (Any, {2: "x", "1": "y", (1, 2): "z"}),
        (dict[str, Size], {"z": Size.LARGE, "a": Size.SMALL}),
    ],
    ids=["text keys", "other keys", "typed"],
)
def test_a_dict_comes_back_in_its_own_order(safe: RetrySafe, annotation: Any, value: Any) -> None:
    """A replay that is written as JSON has the bytes of the first answer."""
    call = returning(safe, annotation, value)
    key = uuid4().hex
    assert repr(call(key)) == repr(call(key))


@pytest.mark.parametrize("value", [None, 0, 0.0, "", b"", False, [], (), {}, set(), frozenset(), Decimal(0)], ids=repr)
@pytest.mark.parametrize("annotation", [Any, Data | None, None])
def test_what_is_false_is_a_result_like_any_other(safe: RetrySafe, value: Any, annotation: Any) -> None:
    call, key = returning(safe, annotation, value), uuid4().hex
    call(key)
    assert call(key) == value
    assert type(call(key)) is type(value)


def test_plain_data_is_never_made_into_something_it_was_not(safe: RetrySafe) -> None:
    """A wrong annotation does not lose a result that has a stored form."""
    call, key = returning(safe, Data, {"name": "a"}), uuid4().hex
    call(key)
    assert call(key) == {"name": "a"}


@dataclass
class More(Data):
    extra: int = 0


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Data, More("a", Decimal(1), datetime(2026, 1, 1), None, 7)),  # its extra would be lost
        (None, Data("a", Decimal(1), datetime(2026, 1, 1))),  # nobody says what it is
        (list[int], [Data("a", Decimal(1), datetime(2026, 1, 1))]),
    ],
    ids=["a subclass", "no annotation", "another annotation"],
)
def test_what_would_come_back_as_something_else_is_told_at_once(safe: RetrySafe, annotation: Any, value: Any) -> None:
    call, key = returning(safe, annotation, value), uuid4().hex
    with pytest.raises(ResultNotStorable, match="codec="):
        call(key)
    with pytest.raises(AnswerGone, match="unstorable"):
        call(key)


def test_an_annotation_may_name_what_is_defined_later(safe: RetrySafe) -> None:
    call, key = safe.once("later:{key}")(later), uuid4().hex
    assert call(key) == Later(1)
    assert call(key) == Later(1)


def later(key: str) -> Later:
    return Later(1)


@dataclass
class Later:
    number: int


def test_an_annotation_nobody_can_read_leaves_plain_results(safe: RetrySafe) -> None:
    def function(key: str) -> Unknown:  # type: ignore[name-defined]  # noqa: F821  as under `if TYPE_CHECKING`
        return [1, (2, 3)]

    call, key = safe.once("unknown:{key}")(function), uuid4().hex
    assert call(key) == call(key) == [1, (2, 3)]


def test_what_was_stored_before_the_function_was_annotated_can_still_be_read() -> None:
    """One format: a program that is annotated meanwhile reads what its older self has stored."""
    assert TypedCodec(Data).media_type == JsonCodec.media_type
    assert TypedCodec(Data).decode(JsonCodec().encode({"a": (1, 2)})) == {"a": (1, 2)}
    assert ResultCodec(later).decode(JsonCodec().encode(None)) is None


def test_a_user_s_own_key_cannot_pose_as_a_typed_value(safe: RetrySafe) -> None:
    value = {"$typed": {"number": 1}}
    call, key = returning(safe, Later, value), uuid4().hex
    call(key)
    assert call(key) == value


# Size -----------------------------------------------------------------------------------------------------------------


async def test_a_result_above_the_cap_is_given_once_and_not_kept(safe: RetrySafe) -> None:
    runs: list[str] = []
    small = Policy.preset("function", max_answer=100)

    @safe.once("big:{key}", policy=small)
    def big(key: str) -> str:
        runs.append(key)
        return "x" * 200

    @safe.once("abig:{key}", policy=small)
    async def abig(key: str) -> str:
        runs.append(key)
        return "x" * 200

    assert big("a") == await abig("b") == "x" * 200, "the caller that ran it has the result"
    with pytest.raises(AnswerGone, match="too_large"):
        big("a")
    with pytest.raises(AnswerGone, match="too_large"):
        await abig("b")
    assert runs == ["a", "b"]


def test_a_result_as_large_as_the_cap_is_kept(safe: RetrySafe) -> None:
    @safe.once("edge:{key}", policy=Policy.preset("function", max_answer=12))
    def edge(key: str) -> str:
        return "x" * 10  # and two quotes

    assert edge("a") == edge("a") == "x" * 10


# Exceptions as results ------------------------------------------------------------------------------------------------


def test_some_exceptions_may_be_answers_and_others_not(safe: RetrySafe) -> None:
    """`failures=` may be a function: a declined card is an answer, a time-out is not."""
    runs: list[str] = []

    def final(status: int, error: BaseException | None) -> bool:
        return error is None or isinstance(error, ValueError)

    @safe.once("pay:{key}", policy=Policy.preset("function", failures=final))
    def pay(key: str) -> str:
        runs.append(key)
        raise ValueError("declined") if key == "declined" else TimeoutError("no answer")

    for key, first, then in (("declined", ValueError, StoredFailure), ("slow", TimeoutError, TimeoutError)):
        with pytest.raises(first):
            pay(key)
        with pytest.raises(then, match="declined" if key == "declined" else "no answer"):
            pay(key)
    assert runs == ["declined", "slow", "slow"]
