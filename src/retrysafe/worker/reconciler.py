"""The reconciler: compares what we think happened with what the other system says, and reports both differences.

A small protocol: iterate ours, iterate theirs, and say what makes two of them the same thing. It changes nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable


@runtime_checkable
class Reconciliation(Protocol):
    """What a user writes: three methods, or `Pairs` with three functions."""

    def ours(self) -> Iterable[Any]: ...
    def theirs(self) -> Iterable[Any]: ...
    def key(self, item: Any) -> Hashable: ...


@dataclass(frozen=True)
class Pairs:
    """A Reconciliation out of three functions."""

    our_items: Callable[[], Iterable[Any]]
    their_items: Callable[[], Iterable[Any]]
    same: Callable[[Any], Hashable]

    def ours(self) -> Iterable[Any]:
        return self.our_items()

    def theirs(self) -> Iterable[Any]:
        return self.their_items()

    def key(self, item: Any) -> Hashable:
        return self.same(item)


@dataclass(frozen=True)
class Differences:
    """Ours that they do not know, theirs that we do not know, and what stands twice on one side."""

    matched: int = 0
    missing_there: list[Any] = field(default_factory=list)
    missing_here: list[Any] = field(default_factory=list)
    doubled_there: list[Any] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.missing_there or self.missing_here or self.doubled_there)


def reconcile(given: Reconciliation) -> Differences:
    """Compare. Memory grows with the number of keys, not with the size of the items that match."""
    waiting: dict[Hashable, Any] = {given.key(item): item for item in given.ours()}
    seen: set[Hashable] = set()
    found = Differences()
    for item in given.theirs():
        key = given.key(item)
        if key in seen:
            found.doubled_there.append(item)
        elif key in waiting:
            del waiting[key]
        else:
            found.missing_here.append(item)
        seen.add(key)
    matched = len(seen) - len({given.key(item) for item in found.missing_here})
    return Differences(matched, list(waiting.values()), found.missing_here, found.doubled_there)
