"""The reconciler: compares our records with those of the other system, and reports every difference.

You write a small protocol: iterate our items, iterate theirs, and give each item a key. Items with the same key are the
same thing. The reconciler changes nothing.

A double effect shows in two ways. A key that occurs twice on one side is always seen. Two charges for one order have
two keys, and only you know that there may be only one: `one_per` names the order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Reconciliation(Protocol):
    """The user's side: three methods, or `Pairs` with three functions. A fourth method, `one_per(item)`, may name the
    operation that an item belongs to. There may be only one item per operation. None: no operation is known."""

    def ours(self) -> Iterable[Any]: ...
    def theirs(self) -> Iterable[Any]: ...
    def key(self, item: Any) -> Hashable: ...


@dataclass(frozen=True)
class Pairs:
    """A Reconciliation made of functions."""

    our_items: Callable[[], Iterable[Any]]
    their_items: Callable[[], Iterable[Any]]
    same: Callable[[Any], Hashable]
    only_one_per: Callable[[Any], Hashable | None] | None = None

    def ours(self) -> Iterable[Any]:
        return self.our_items()

    def theirs(self) -> Iterable[Any]:
        return self.their_items()

    def key(self, item: Any) -> Hashable:
        return self.same(item)

    def one_per(self, item: Any) -> Hashable | None:
        return self.only_one_per(item) if self.only_one_per is not None else None


@dataclass(frozen=True)
class Differences:
    """Items that are missing on one side, and items that occur more than once.

    `doubled`: further items with a key that the side already has. `several`: all items of an operation with several
    keys."""

    matched: int = 0
    missing_there: list[Any] = field(default_factory=list)
    missing_here: list[Any] = field(default_factory=list)
    doubled_there: list[Any] = field(default_factory=list)
    doubled_here: list[Any] = field(default_factory=list)
    several_there: list[Any] = field(default_factory=list)
    several_here: list[Any] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (
            self.missing_there
            or self.missing_here
            or self.doubled_there
            or self.doubled_here
            or self.several_there
            or self.several_here
        )


def reconcile(given: Reconciliation) -> Differences:
    """Compare both sides. Memory grows with the number of keys, not with the size of the items that match."""
    ours, theirs = SideItems(given), SideItems(given)
    waiting: dict[Hashable, Any] = {key: item for key, item in map(ours.add, given.ours()) if key is not SEEN_BEFORE}
    known = len(waiting)
    missing_here: list[Any] = []
    for item in given.theirs():
        key, _ = theirs.add(item)
        if key is SEEN_BEFORE:
            continue
        if key in waiting:
            del waiting[key]
        else:
            missing_here.append(item)
    return Differences(
        known - len(waiting),
        list(waiting.values()),
        missing_here,
        theirs.doubled,
        ours.doubled,
        theirs.several,
        ours.several,
    )


SEEN_BEFORE = object()
"""Returned instead of a key that the side already has."""


class SideItems:
    """Checks the items of one side for doubles."""

    def __init__(self, given: Reconciliation) -> None:
        self._key = given.key
        self._one_per: Callable[[Any], Hashable | None] = getattr(given, "one_per", lambda item: None)
        self._seen: set[Hashable] = set()
        self._first: dict[Hashable, list[Any]] = {}
        """The first item of each operation. Empty once it is in `several`."""
        self.doubled: list[Any] = []
        self.several: list[Any] = []

    def add(self, item: Any) -> tuple[Hashable, Any]:
        key = self._key(item)
        if key in self._seen:
            self.doubled.append(item)
            return SEEN_BEFORE, item
        self._seen.add(key)
        self._check_one_per(item)
        return key, item

    def _check_one_per(self, item: Any) -> None:
        operation = self._one_per(item)
        if operation is None:
            return
        if operation not in self._first:
            self._first[operation] = [item]
            return
        self.several += [*self._first[operation], item]
        self._first[operation] = []
