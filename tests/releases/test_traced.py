"""The trace of a first run is kept with the record. A release that does not know of it reads the same record (rule
17)."""

from __future__ import annotations

import signal

import pytest

from retrysafe.core.trace_context import encode_traceparent
from tests.releases.places import World

pytestmark = pytest.mark.xdist_group("releases")

TRACEPARENT = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"
KILLED = {"signal": signal.SIGKILL, "said": None}


def test_a_record_with_a_trace_is_replayed_by_both(everywhere: World, first: str) -> None:
    world = everywhere
    for sealed in (False, True):
        begins, meets = (side.traced(TRACEPARENT) for side in world.sides(first))
        begins, meets = (begins.sealed(), meets.sealed()) if sealed else (begins, meets)
        for kind in ("http", "function", "operation", "job", "message"):
            key = f"{kind}-{sealed}"
            done = begins.call(kind, key)
            assert "error" not in done, f"{kind}: {done}"
            assert meets.call(kind, key) == begins.call(kind, key), f"{kind}: both replay the same"
    kept = [record for record in world.new.all() if record["kind"] in ("http", "operation") and record["input"]]
    if first == "new":  # it was really there: else this test shows nothing
        plain = [record["input"] for record in kept if not record["key"].endswith("True")]
        assert encode_traceparent(TRACEPARENT) in plain
        assert any(each.endswith(encode_traceparent(TRACEPARENT, b"{}")[2:]) for each in plain)


@pytest.mark.parametrize("moment", ["insert:after", "charge:after"])
def test_an_operation_with_a_trace_is_finished_by_the_other(world: World, first: str, moment: str) -> None:
    begins, goes_on = (side.traced(TRACEPARENT) for side in world.sides(first))
    assert begins.dying("call", kind="operation", key="k", cents=500, item="book", die=moment) == KILLED
    written = world.record()["input"]
    world.lapse()
    assert goes_on.call("operation", "k", cents=501, item="book")["error"] == "FingerprintMismatch"
    done = goes_on.call("operation", "k", item="book")
    assert done["result"]["status"] == 201
    assert begins.call("operation", "k", item="book") == done
    assert world.orders() == ["book"]
    assert world.record()["input"] == written, "who goes on keeps the trace of who began"


def test_work_accepted_with_a_trace_is_run_by_the_others_worker(world: World, first: str) -> None:
    begins, works = (side.traced(TRACEPARENT) for side in world.sides(first))
    assert begins("submit", key="k", item="book", cents=500) == {"result": "accepted"}
    works("work")
    done = begins("submit", key="k", item="book", cents=500)["result"]
    assert done["status"] == 201
    assert world.orders() == ["book"]
