"""Values that come back as they were."""

from __future__ import annotations

import json
import math
from collections import OrderedDict, namedtuple
from datetime import UTC, date, datetime, time, timedelta, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from typing import Any
from uuid import UUID
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrysafe.core.values import NotPlain, dumps, loads

zones = st.one_of(
    st.none(),
    st.just(UTC),
    st.integers(min_value=-1439, max_value=1439).map(lambda minutes: timezone(timedelta(minutes=minutes))),
)
hashable = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(),
    st.text().map(lambda text: "$" + text),
    st.sampled_from(["$tuple", "$dict", "$$", "$", "$float", "$bytes"]),
    st.binary(),
    st.decimals(allow_nan=False),
    st.uuids(),
    st.dates(),
    st.times(),
    st.timedeltas(),
    st.datetimes(timezones=zones),
)


def nested(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=4),
        st.lists(inner, max_size=4).map(tuple),
        st.sets(hashable, max_size=4),
        st.frozensets(hashable, max_size=4),
        st.dictionaries(st.text(), inner, max_size=4),
        st.dictionaries(hashable, inner, max_size=4),
    )


anything = st.recursive(hashable, nested, max_leaves=12)


def exact(value: Any) -> Any:
    """A value together with all its types, for comparison: 1 == True == 1.0 in Python, and not here."""
    if isinstance(value, list | tuple):
        return type(value), [exact(item) for item in value]
    if isinstance(value, set | frozenset):
        return type(value), sorted(repr(exact(item)) for item in value)
    if isinstance(value, dict):
        return type(value), sorted((repr(exact(key)), repr(exact(item))) for key, item in value.items())
    return type(value), repr(value)


@given(anything)
def test_what_went_in_comes_back(value: Any) -> None:
    back = loads(dumps(value))
    assert back == value
    assert exact(back) == exact(value)


@given(anything)
def test_the_text_is_canonical(value: Any) -> None:
    assert dumps(loads(dumps(value))) == dumps(value)


@pytest.mark.parametrize(
    "value",
    [
        None, False, True, 0, -0.0, 0.0, "", b"", [], (), {}, set(), frozenset(), [[]], ((),), {"": None},
        math.inf, -math.inf, 2**200, 1e-320, "\ud800", "\0", "\u2028",
        {"$tuple": [1]}, {"$dict": [[1, 2]]}, {"$": 1}, {"$$x": {"$y": 1}}, {"$unknown": 1}, {"$a": 1, "b": 2},
        {1: "a", "1": "b"}, {None: 1}, {(1, 2): 3}, {True: 1, "true": 2}, {b"x": frozenset({1, (2, 3)})},
        datetime(2026, 11, 15, 12, 0, 3, 7, tzinfo=timezone(timedelta(hours=5, minutes=30))),
        datetime(2026, 10, 25, 2, 30, fold=1), datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"), fold=1),
        time(2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
        datetime(1, 1, 1), datetime.max, time(23, 59, 59, 999999, tzinfo=UTC), date(2026, 2, 28),
        timedelta(days=-1, microseconds=1), Decimal("1.10"), Decimal("-0"), Decimal("Infinity"), Decimal("1E+50"),
        UUID(int=7),
    ],
    ids=repr,
)  # fmt: skip
def test_the_corners(value: Any) -> None:
    assert exact(loads(dumps(value))) == exact(value)


def test_not_a_number_comes_back_as_not_a_number() -> None:
    assert math.isnan(loads(dumps(math.nan)))
    assert loads(dumps(Decimal("NaN"))).is_nan()


def test_the_order_of_a_dict_or_set_does_not_matter() -> None:
    assert dumps({"a": 1, "b": {"d": 1, "c": 2}}) == dumps({"b": {"c": 2, "d": 1}, "a": 1})
    assert dumps({1: "x", (2,): "y"}) == dumps({(2,): "y", 1: "x"})
    assert dumps({"one", "two", "three"}) == dumps({"three", "two", "one"})


def test_plain_json_stays_plain_json() -> None:
    value = {"a": [1, 2.5, None, True, "x"]}
    assert json.loads(dumps(value)) == value
    assert loads('{"a":[1,2.5,null,true,"x"]}') == value


def test_values_that_differ_are_written_differently() -> None:
    same_in_python = [1, 1.0, True, Decimal(1)]
    assert len({dumps(value) for value in same_in_python}) == len(same_in_python)
    assert dumps([1]) != dumps((1,))
    assert dumps({1}) != dumps(frozenset({1}))


class Whole(IntEnum):
    ONE = 1


class Colour(Enum):
    RED = "red"


class Name(str):
    pass


class Moment(datetime):
    pass


Pair = namedtuple("Pair", "a b")


@pytest.mark.parametrize(
    "value",
    [
        Whole.ONE,
        Colour.RED,
        Name("x"),
        Pair(1, 2),
        OrderedDict(a=1),
        Moment(2026, 1, 1),
        object(),
        len,
        1j,
        bytearray(b"x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_would_come_back_as_something_else_is_refused(value: Any) -> None:
    with pytest.raises(NotPlain, match=type(value).__qualname__):
        dumps(value)
    with pytest.raises(NotPlain):
        dumps({value: 1} if isinstance(value, str) else [value])


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"order": {"lines": [1, object()]}}, ".order.lines[1]"),
        ([(1, object())], "[0][1]"),
        ({1: object()}, "[1]"),
        ({object: 1}, "(key)"),
        (object(), ""),
    ],
)
def test_the_error_says_where(value: Any, path: str) -> None:
    with pytest.raises(NotPlain) as refused:
        dumps(value)
    assert refused.value.path == path
    assert (path or "the value") in str(refused.value)


def test_what_is_inside_itself_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotPlain, match="inside itself"):
        dumps(endless)


def test_a_number_too_long_to_write_is_refused() -> None:
    with pytest.raises(NotPlain, match="cannot be written"):
        dumps([10**5000])
