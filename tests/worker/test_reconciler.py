"""What is reported of two lists: both kinds of missing, and everything that is there more than once."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

import pytest

from retrysafe.worker import Differences, Pairs, reconcile


class Charge(NamedTuple):
    key: str
    order: str | None = None


def compare(ours: Iterable[Charge], theirs: Iterable[Charge], *, one_per: bool = False) -> Differences:
    return reconcile(
        Pairs(lambda: ours, lambda: theirs, lambda each: each.key, (lambda each: each.order) if one_per else None)
    )


A, B, C = Charge("k-a", "order-1"), Charge("k-b", "order-2"), Charge("k-c", "order-3")
A_AGAIN = Charge("k-a2", "order-1")


def test_both_sides_agree() -> None:
    assert compare([A, B], [B, A], one_per=True) == Differences(matched=2)
    assert compare([], []).clean


def test_what_is_missing_on_either_side() -> None:
    assert compare([A, B], [B, C]) == Differences(1, [A], [C])


def test_a_key_that_stands_twice_on_our_side_is_not_clean() -> None:
    found = compare([A, B, A], [A, B])
    assert found == Differences(matched=2, doubled_here=[A])
    assert not found.clean
    assert compare([A, A], []) == Differences(0, [A], doubled_here=[A])


def test_a_key_that_stands_twice_on_their_side_is_not_clean() -> None:
    found = compare([A, B], [A, B, A, A])
    assert found == Differences(matched=2, doubled_there=[A, A])
    assert not found.clean
    assert compare([], [A, A]) == Differences(0, [], [A], [A])


def test_two_charges_of_one_operation_are_not_clean_though_both_sides_agree() -> None:
    """We charged an order twice, under two keys, and know of both."""
    both = [A, B, A_AGAIN, Charge("k-a3", "order-1")]
    found = compare(both, both, one_per=True)
    assert (found.matched, found.several_here, found.several_there) == (4, [A, *both[2:]], [A, *both[2:]])
    assert not found.clean
    assert compare(both, both).clean, "`one_per` was not given"


def test_items_of_no_operation_are_not_counted() -> None:
    loose = [Charge("k-1"), Charge("k-2")]
    assert compare(loose, loose, one_per=True).clean


class Own:
    """The protocol without `one_per`, as it was written before there was one."""

    def ours(self) -> Iterator[str]:
        yield from "aab"

    def theirs(self) -> Iterator[str]:
        yield from "ab"

    def key(self, item: str) -> str:
        return item


class Grouped(Own):
    def one_per(self, item: str) -> str:
        return "everything"


@pytest.mark.parametrize(("given", "several"), [(Own(), []), (Grouped(), ["a", "b"])])
def test_the_fourth_method_may_be_left_out(given: Own, several: list[str]) -> None:
    found = reconcile(given)
    assert (found.doubled_here, found.several_there) == (["a"], several)
