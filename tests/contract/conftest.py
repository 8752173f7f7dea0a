"""`do`: every store × colour × transport.

plain          each operation is sent once
lost-replies   each write is applied, its reply thrown away, and sent again: what the test sees is the second reply,
               so every test proves that the store recognises its own earlier success (I11)
late           after each operation, copies of the earlier ones of its key arrive once more: nothing may change (I32)
many           each operation travels in a batch: with another of its kind that is refused, where there is such a one
               that leaves nothing behind, else alone

and `batched`: each store behind its batching, in one colour, with others of the same kind in flight and in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from retrysafe.core.ops import FENCED, Claim, Op
from retrysafe.stores.base import Capabilities
from retrysafe.stores.registry import find_backend
from retrysafe.testing import Do
from retrysafe.testing.late_copies import with_late_copies
from tests.batching.crowd import FENCED_LANES, decoy
from tests.opening import COLOURS, REDIS_KIN, STORES, Opener

WRITES = (Claim, *FENCED)
"""What carries its own token or fence. Reap is left out: its reply counts what went, and belongs to no key."""


def plain(do: Do) -> Do:
    return do


def lost_replies(do: Do) -> Do:
    def execute(op: Op[Any]) -> Any:
        if isinstance(op, WRITES):
            do(op)
        return do(op)

    def execute_many(ops: Sequence[Op[Any]]) -> list[Any]:
        if any(isinstance(op, WRITES) for op in ops):
            do.many(ops)
        return do.many(ops)

    return do.through(execute, execute_many)


def in_batches(do: Do) -> Do:
    def execute(op: Op[Any]) -> Any:
        if not isinstance(op, FENCED_LANES):
            (reply,) = do.many([op])
            return reply
        refused, reply, also_refused = do.many([decoy(op), op, decoy(op)])
        assert (refused, also_refused) == (False, False), "an operation on a record that is nowhere was done"
        return reply

    return do.through(execute, do.many)


TRANSPORTS: dict[str, Callable[[Do], Do]] = {
    "plain": plain,
    "lost-replies": lost_replies,
    "late": with_late_copies,
    "many": in_batches,
}

PLAIN_ONLY = ("mariadb", *REDIS_KIN)
"""The same code and the same statements as another store of the list, which goes through all transports."""

ONE_EACH = {
    "dynamodb": ("sync-plain", "async-lost-replies"),
    "mongodb": ("sync-plain", "async-lost-replies", "batched"),
    "duckdb": ("sync-plain", "async-lost-replies"),
}
"""A statement takes milliseconds there: both colours and the ambiguous commit in `make test`, the rest in the proof."""


LATE_IN = {"sqlite": "sync", "postgres": "async", "mysql": "sync", "redis": "async"}
"""Late copies in one colour in `make test`, in the other in the proof: what they ask is asked of the store, not of the
colour. The cases of contract/late.py run everywhere."""


def marks(store: str, way: str) -> list[pytest.MarkDecorator]:
    colour, _, transport = way.partition("-")
    long = way not in ONE_EACH.get(store, (way,)) or (transport == "late" and colour != LATE_IN.get(store, colour))
    return [pytest.mark.store(store), *([pytest.mark.campaign] if long else [])]


MATRIX = [
    pytest.param(
        (store, colour, transport), id=f"{store}-{colour}-{transport}", marks=marks(store, f"{colour}-{transport}")
    )
    for store in (*STORES, *REDIS_KIN)
    for colour in COLOURS
    for transport in TRANSPORTS
    if transport == "plain" or store not in PLAIN_ONLY
] + [
    pytest.param((store, "batched", "plain"), id=f"{store}-batched", marks=marks(store, "batched"))
    for store in STORES
    if store not in PLAIN_ONLY
]


def cases_with(capability: str) -> list[Any]:
    """The cases of stores that declare this capability."""
    return [case for case in MATRIX if getattr(find_capabilities(case.values[0][0]), capability)]  # type: ignore[index]


def find_capabilities(store: str) -> Capabilities:
    scheme = "redis" if store in REDIS_KIN else store
    return find_backend(f"{scheme}://").capabilities


@pytest.fixture(params=MATRIX)
def do(request: pytest.FixtureRequest, opener: Opener) -> Iterator[Do]:
    store, colour, transport = request.param
    opened = opener(store, colour)
    yield TRANSPORTS[transport](opened)
    opened.close()
