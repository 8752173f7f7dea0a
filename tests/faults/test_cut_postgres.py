"""The link to PostgreSQL is cut at every message boundary of every operation, on both sides of the message (I11).

What is done at each cut is told in cutting.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from retrysafe.core.states import State
from retrysafe.testing import Do
from tests.faults.cutting import (
    Cutting,
    Points,
    after_a_reset,
    both_sides,
    cut_a_batch,
    cut_a_case,
    cut_between_rivals,
    cut_under_once,
    cutting,
)
from tests.faults.proxy import PostgresProxy
from tests.faults.story import CASES, Case, asked, check_truth, resend, stored, warm
from tests.opening import COLOURS, unique, with_option

pytestmark = pytest.mark.store("postgres")


@pytest.fixture(scope="module")
def table_url(postgres_url: str) -> str:
    return with_option(postgres_url, "table", unique("cut_"))


@pytest.fixture
def cut(table_url: str) -> Iterator[Cutting]:
    proxy = PostgresProxy(table_url)
    with cutting(proxy, table_url, with_option(proxy.url, "pool", "1"), points) as made:
        yield made


def points(messages: list[str]) -> Points:
    """Every boundary. An exchange ends with the server's ReadyForQuery."""
    assert messages[-1:] == ["<Z"]
    numbered = list(enumerate(messages, start=1))
    return both_sides(
        [number for number, _ in numbered], [number for number, message in numbered if message in (">S", ">Q")]
    )


WAYS = [
    pytest.param("sync", False, id="sync-first"),
    pytest.param("async", False, id="async-first"),
    pytest.param("sync", True, id="sync-prepared"),
    # The colours differ in how they wait, not in what they send: one of them shows the prepared statements.
    pytest.param("async", True, id="async-prepared", marks=pytest.mark.campaign),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("colour", "prepared"), WAYS)
def test_cut_at_every_message(cut: Cutting, colour: str, prepared: bool, case: Case) -> None:
    """`prepared`: the statement has become a server-side prepared one, which takes other messages."""

    def ready(do: Do) -> None:
        for _ in range(6 if prepared else 0):
            resend(partial(do, case.make(cut.healthy, unique())))
        warm(do)

    cut_a_case(cut, colour, case, ready)


@pytest.mark.parametrize("colour", COLOURS)
def test_cut_a_batch(cut: Cutting, colour: str) -> None:
    """In one transaction: all of them or none."""
    cut_a_batch(cut, colour)


def test_a_rival_between_the_cut_and_the_resending(cut: Cutting) -> None:
    cut_between_rivals(cut)


@pytest.mark.parametrize("colour", COLOURS)
def test_once_through_every_cut(cut: Cutting, colour: str) -> None:
    cut_under_once(cut, colour)


# Below the level of messages ----------------------------------------------------------------------


@pytest.mark.parametrize("colour", COLOURS)
def test_a_reset_is_like_a_cut(cut: Cutting, colour: str) -> None:
    after_a_reset(cut, colour, ["unclear"])


@pytest.mark.parametrize("colour", COLOURS)
def test_one_byte_at_a_time(cut: Cutting, colour: str) -> None:
    cut.proxy.raw("trickle")
    with cut.opened(colour) as do:
        op = asked(unique())
        check_truth(cut.healthy, CASES[0], op, do(op))
        assert stored(cut.healthy, op).state is State.CLAIMED
