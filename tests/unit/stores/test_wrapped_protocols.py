"""A wrapper that passes members on by `__getattr__` provides the protocols of the store inside it, on every Python.

Since Python 3.12 `isinstance` with a runtime-checkable protocol looks at classes only.
"""

from __future__ import annotations

from typing import Any

from retrysafe.stores.base import FastRead, HasTables, InOrder, find_node_lookup, find_ordered, provides


class Inner:
    names = "tables"
    in_order = True

    def try_read_claim(self, op: Any) -> None:
        return None

    def node(self, record_id: bytes) -> str:
        return "node-1"


class Wrapper:
    def __init__(self, inner: object) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)


def test_what_is_inside_is_seen_through_a_wrapper() -> None:
    wrapped: Any = Wrapper(Inner())
    assert provides(wrapped, HasTables)
    assert provides(wrapped, FastRead)
    assert provides(wrapped, InOrder)
    assert find_ordered(wrapped) is wrapped
    assert find_node_lookup(wrapped)(b"") == "node-1"


def test_what_is_not_inside_is_not_seen() -> None:
    empty: Any = Wrapper(object())
    assert not provides(empty, HasTables)
    assert not provides(empty, FastRead)
    assert find_ordered(empty) is None
    assert find_node_lookup(empty)(b"") == ""
