"""Whether an endpoint was entered: the decision by enumeration, the mark on endpoints, and the probe."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

from retrysafe import Policy
from retrysafe.web.asgi import IdempotencyMiddleware
from retrysafe.web.endpoint_entry import (
    ENTERED,
    REDIRECTED,
    REFUSED,
    UNKNOWN,
    EndpointEntry,
    EntryProbe,
    is_marked,
    mark_endpoint,
    should_withdraw,
)
from retrysafe.web.exchange_context import reset_current_exchange, set_current_exchange
from tests.web.unit.harness import Counting, World, call, who

STORE, WITHDRAW = Policy(), Policy(invalid="withdraw")


@pytest.mark.parametrize(
    ("entry", "stored", "withdrawn"),
    [
        (UNKNOWN, False, False), (ENTERED, False, False), (REFUSED, False, True), (REDIRECTED, True, True),
        (EndpointEntry(True, redirected=True), False, False), (EndpointEntry(None, redirected=True), False, False),
    ],
)  # fmt: skip
def test_only_what_is_known_not_to_have_been_entered_is_withdrawn(
    entry: EndpointEntry, stored: bool, withdrawn: bool
) -> None:
    assert should_withdraw(STORE, *entry) is stored
    assert should_withdraw(WITHDRAW, *entry) is withdrawn


def plain(a: int, *, b: int = 2) -> int:
    return a + b


async def looped() -> str:
    return "done"


def test_the_mark_changes_nothing_else() -> None:
    """Frameworks inspect signatures, sync or async, names, and the file and line that they show in messages."""
    marked = mark_endpoint(plain)
    assert (marked(1), marked(1, b=1)) == (3, 2)
    assert (inspect.signature(marked), marked.__qualname__) == (inspect.signature(plain), plain.__qualname__)
    assert inspect.getsourcefile(marked) == __file__
    assert is_marked(marked)
    assert not is_marked(plain)
    assert mark_endpoint(marked) is marked, "put on once"
    assert inspect.iscoroutinefunction(inspect.unwrap(mark_endpoint(looped)))


async def test_who_passes_the_mark_has_entered() -> None:
    class Seen:
        endpoint_entry: Any = None

    exchange: Any = Seen()
    token = set_current_exchange(exchange)
    try:
        assert await mark_endpoint(looped)() == "done"
    finally:
        reset_current_exchange(token)
    assert exchange.endpoint_entry is ENTERED


class Knowing(IdempotencyMiddleware):
    """An adapter whose probe returns the given entry."""

    said: Any = REFUSED

    def make_entry_probe(self, scope: Any) -> EntryProbe | None:
        def tell(code: int) -> EndpointEntry:
            if isinstance(self.said, Exception):
                raise self.said
            entry: EndpointEntry = self.said
            return entry

        return tell


@pytest.mark.parametrize(
    ("status", "said", "state"),
    [
        (422, REFUSED, "released"), (422, ENTERED, "completed"), (422, UNKNOWN, "completed"),
        (201, REFUSED, "completed"), (422, ValueError("broken"), "completed"),
    ],
    ids=["refused", "entered", "unknown", "a success was entered", "a broken witness knows nothing"],
)  # fmt: skip
async def test_the_adapter_is_asked_when_the_answer_is_there(status: int, said: Any, state: str) -> None:
    world = World()
    app = Knowing(Counting(status), safe=world.safe, scope=who, policy=WITHDRAW)
    app.said = said
    assert (await call(app)).status == status
    (record,) = world.records
    assert record.state.value == state


async def test_a_bare_application_is_not_known() -> None:
    world = World()
    app = IdempotencyMiddleware(Counting(307), safe=world.safe, scope=who, policy=WITHDRAW)
    assert [(await call(app)).status for _ in range(2)] == [307, 307]
    assert [record.state.value for record in world.records] == ["completed"]
