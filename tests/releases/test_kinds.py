"""Every kind of record through its own public face: done by one release, met by the other."""

from __future__ import annotations

from typing import Any

import pytest

from tests.releases.places import World

pytestmark = pytest.mark.xdist_group("releases")

KINDS = ("http", "function", "operation", "webhook", "job", "message", "tool")


def same(kind: str, done: Any, again: Any) -> bool:
    """Whether a replay says what the first answer said; HTTP and consumers mark it as one."""
    if kind == "http":
        kept = ("status", "body")
        marks = (done["replayed"], again["replayed"])
        return (
            marks == (False, True)
            and all(done[each] == again[each] for each in kept)
            and done["headers"].items() <= again["headers"].items()
        )
    if kind == "message":
        return (done, again) == tuple({"verdict": "Done", "replayed": replayed} for replayed in (False, True))
    return bool(done == again)


def test_done_by_one_is_replayed_by_the_other_byte_for_byte(everywhere: World, first: str) -> None:
    world = everywhere
    begins, meets = world.sides(first)
    for sealed in (False, True):
        begins, meets = (begins.sealed(), meets.sealed()) if sealed else (begins, meets)
        for kind in KINDS:
            key = f"{kind}-{'sealed' if sealed else 'plain'}"
            done = begins.call(kind, key)
            assert "error" not in done, f"{kind}: {done}"
            again = meets.call(kind, key)
            assert again == begins.call(kind, key), f"{kind}: both replay the same"
            assert same(kind, done["result"], again["result"]), f"{kind}: {done} came back as {again}"
    for kind in ("http", "pay", "webhook", "job", "message", "tool"):
        assert set(world.counted(kind).values()) == {1}, f"{kind} happened more than once"
    assert len(world.orders()) == 2
    assert len(world.keys("charge")) == 2


REFUSED = {
    "function": "FingerprintMismatch",
    "operation": "FingerprintMismatch",
    "job": "FingerprintMismatch",
    "tool": "ToolError",
}


def test_the_key_of_one_is_refused_by_the_other_for_another_request(world: World, first: str) -> None:
    begins, meets = world.sides(first)
    for kind in ("http", *REFUSED, "message"):
        assert "error" not in begins.call(kind, kind, 500)
        before = world.effects()
        told = meets.call(kind, kind, 501)
        if kind == "http":
            assert told["result"]["status"] == 422
        elif kind == "message":
            assert told["result"]["verdict"] == "Dead"
        else:
            assert told["error"] == REFUSED[kind], kind
        assert world.effects() == before, kind


FAILING = {"http": "http:before", "function": "pay:before", "webhook": "webhook:before", "job": "job:before",
           "message": "message:before", "tool": "tool:before", "operation": "charge:before"}  # fmt: skip


def test_released_by_one_is_run_by_the_other(world: World, first: str) -> None:
    """The first attempt fails before it has done anything; what is written down of it lets the other one run."""
    begins, meets = world.sides(first)
    for kind, moment in FAILING.items():
        begins.call(kind, kind, fail=moment)
        assert not [line for line in world.effects() if line[1] == kind], kind
        ran = meets.call(kind, kind)
        assert "error" not in ran, f"{kind}: {ran}"
    attempts = {record["kind"]: (record["state"], record["attempt"]) for record in world.old.all()}
    assert attempts == dict.fromkeys(FAILING, ("completed", 2))
    assert len(world.orders()) == 1
