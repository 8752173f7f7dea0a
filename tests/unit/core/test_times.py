"""Times and ages for people."""

from __future__ import annotations

import pytest

from retrysafe.core.times import (
    DAY_MICROS,
    FOREVER_MICROS,
    SECOND_MICROS,
    add_micros,
    age_seconds,
    format_age,
    format_time,
)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(-5, "0 s"), (0, "0 s"), (119, "119 s"), (120, "2 min"), (7_199, "119 min"), (7_200, "2 h"), (172_800, "2 d")],
)
def test_an_age_in_the_largest_unit_of_which_there_are_two(seconds: int, text: str) -> None:
    assert format_age(seconds * SECOND_MICROS) == text


def test_moments() -> None:
    assert format_time(FOREVER_MICROS) == "never"
    assert format_time(DAY_MICROS) == "1970-01-02T00:00:00Z"
    assert add_micros(FOREVER_MICROS - 1, 5) == FOREVER_MICROS
    assert (age_seconds(0, 7), age_seconds(SECOND_MICROS, 3 * SECOND_MICROS), age_seconds(9, 3)) == (None, 2.0, 0.0)
