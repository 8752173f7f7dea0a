"""How an error becomes one line."""

from __future__ import annotations

import pytest

from retrysafe.core.texts import first_line, name_and_message


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no such order"), "no such order"),
        (ValueError("\n  syntax error\nLINE 1: SELEC\n"), "syntax error"),
        (ValueError(), "ValueError"),
        (ValueError(" \n"), "ValueError"),
    ],
)
def test_the_first_line_of_the_message_or_the_name_of_the_class(error: Exception, line: str) -> None:
    assert first_line(error) == line


def test_a_driver_may_name_the_part_that_is_the_message() -> None:
    error = ValueError(1064, "syntax error\nnear 'SELEC'")
    assert first_line(error, str(error.args[1])) == "syntax error"
    assert first_line(error, "") == "ValueError"


def test_the_name_and_the_message_are_cut_off_where_a_note_ends() -> None:
    error = KeyError("order")
    assert name_and_message(error) == "KeyError: 'order'"
    assert name_and_message(error, 12) == "KeyError: 'o"
