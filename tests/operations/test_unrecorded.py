"""A store that goes away while the end of an operation is written down: the error says that it ran, never that
nothing was done (I11). The next call gets the answer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import Answer, Undo
from retrysafe.core.ops import Advance, Complete
from retrysafe.engine import resending
from retrysafe.errors import NotFinished, OutcomeUnrecorded, StoreOutage
from retrysafe.testing import AsyncFaultStore, Fault, FaultStore, Script
from tests.operations.world import World


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resending, "RESEND_DELAYS_SECONDS", (0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(resending, "RESEND_LIMIT_SECONDS", 0.2)


def declare(w: World, sent: list[str], *, undone: bool) -> Any:
    op = w.safe.operation("unrecorded")

    def take_back(*, key: str) -> None:
        sent.append("undo ship")

    @w.foreign(op, undo=w.in_mode(take_back))
    def ship(*, key: str) -> str:
        sent.append("ship")
        return "shipped"

    @w.body(op)
    def body() -> Answer:
        shipped = yield ship
        if undone:
            raise Undo(409, {"undone": True})
        return Answer(201, {"did": shipped})

    return op


def put_faults(w: World, *faults: Fault) -> Script:
    script = Script(faults)
    w.safe._sync = FaultStore(w.safe.store, script)
    w.safe._async = AsyncFaultStore(w.safe.async_store, script)
    return script


@pytest.mark.parametrize("point", ["before", "applied"])
@pytest.mark.parametrize("op", [Advance, Complete])
@pytest.mark.parametrize("undone", [False, True])
def test_it_ran_and_that_is_not_written_down(new: Callable[[], World], op: type[Any], point: Any, undone: bool) -> None:
    w = new()
    counted = put_faults(w)
    right = w.run(declare(w, [], undone=undone)(key="k"))
    after = 0
    for call in range(1, counted.seen.count(op) + 1):
        w, sent = new(), []
        script = put_faults(w, Fault(call, point, lasting=True, only=op))
        run = declare(w, sent, undone=undone)
        with pytest.raises((OutcomeUnrecorded, StoreOutage)) as told:
            w.run(run(key="k"))
        assert isinstance(told.value, OutcomeUnrecorded if sent else StoreOutage), "it says whether anything was sent"
        after += bool(sent)
        script.repair()
        w.lapse()
        assert w.run(run(key="k")) == right
    assert after, "the store went away after the step at least once, as this test means it"


@pytest.mark.parametrize("point", ["before", "applied"])
def test_a_store_that_goes_away_between_two_steps(new: Callable[[], World], point: Any) -> None:
    """Found by simulated seed 389: the store went away after the first step. The caller was told `StoreUnreachable`,
    "nothing was done", because not even the release could be written down."""

    def declare_two(w: World, sent: list[str]) -> Any:
        op = w.safe.operation("between")

        @w.foreign(op)
        def charge(*, key: str) -> str:
            sent.append("charge")
            return "charged"

        @w.foreign(op)
        def ship(*, key: str) -> str:
            sent.append("ship")
            return "shipped"

        @w.body(op)
        def body() -> Answer:
            charged = yield charge
            shipped = yield ship
            return Answer(201, {"did": [charged, shipped]})

        return op

    w = new()
    counted = put_faults(w)
    right = w.run(declare_two(w, [])(key="k"))
    halfway = 0
    for call in range(1, len(counted.seen) + 1):
        w, sent = new(), []
        script = put_faults(w, Fault(call, point, lasting=True))
        run = declare_two(w, sent)
        with pytest.raises((OutcomeUnrecorded, NotFinished, StoreOutage)) as told:
            w.run(run(key="k"))
        assert isinstance(told.value, StoreOutage) != bool(sent), f"at call {call}, after {sent}: {told.value!r}"
        halfway += sent == ["charge"]
        script.repair()
        w.lapse()
        assert w.run(run(key="k")) == right
    assert halfway, "the store went away between the two steps"
