"""Two releases on one store, as in the hours of a deployment: one begins, dies or fails, and the other goes on."""

from __future__ import annotations

import random
import signal
from itertools import cycle

import pytest

from tests.releases.golden import derived
from tests.releases.places import World

pytestmark = pytest.mark.xdist_group("releases")

KILLED = {"signal": signal.SIGKILL, "said": None}


@pytest.mark.parametrize("moment", ["insert:after", "charge:before", "charge:after", "ship:after"])
def test_begun_by_one_that_dies_is_finished_by_the_other(world: World, first: str, moment: str) -> None:
    begins, goes_on = world.sides(first)
    assert begins.dying("call", kind="operation", key="k", cents=500, item="book", die=moment) == KILLED
    busy = goes_on.call("operation", "k", item="book")
    assert busy["error"] == "InProgress", "its lease is alive, whoever wrote it"
    world.lapse()
    run = world.record()["run"]
    done = goes_on.call("operation", "k", item="book")
    assert done["result"]["status"] == 201
    assert begins.call("operation", "k", item="book") == done, "replayed by who began, byte for byte"
    assert world.orders() == ["book"], "the row of a local step, once"
    # Under the very keys that the first one used, or would have used: the provider recognises them.
    assert world.keys("charge") == {derived(run, "charge", 1)}
    assert world.keys("ship") == {derived(run, "ship", 2)}
    assert world.record()["attempt"] == 2


def test_a_chain_of_takeovers(everywhere: World, first: str) -> None:
    """old, new, old, new: each dies a step further, and all speak with one voice to the outside."""
    world = everywhere
    sides = cycle(world.sides(first))
    run = b""
    for moment in ("insert:after", "charge:before", "charge:after", "ship:before", "ship:after"):
        assert next(sides).dying("call", kind="operation", key="k", cents=500, item="book", die=moment) == KILLED
        world.lapse()
        run = run or world.record()["run"]
        assert world.record()["run"] == run
    done = next(sides).call("operation", "k", item="book")
    assert done["result"]["status"] == 201
    assert next(sides).call("operation", "k", item="book") == done
    assert world.orders() == ["book"]
    assert world.keys("charge") == {derived(run, "charge", 1)}
    assert world.keys("ship") == {derived(run, "ship", 2)}
    assert world.record()["attempt"] == 6


def test_released_at_a_point_by_one_goes_on_there_with_the_other(world: World, first: str) -> None:
    begins, goes_on = world.sides(first)
    assert begins.call("operation", "k", item="book", fail="ship:before")["error"] == "NotFinished"
    record = world.record()
    assert (record["state"], record["point"]) == ("released", "ship")
    refused = goes_on.call("operation", "k", cents=501, item="book")
    assert refused["error"] == "FingerprintMismatch"
    assert goes_on.call("operation", "k", item="book")["result"]["status"] == 201
    assert world.counted("charge") == {"book": 1}, "its result was in the journal"
    assert world.keys("ship") == {derived(record["run"], "ship", 2)}


def test_undoing_begun_by_one_is_ended_by_the_other(world: World, first: str) -> None:
    begins, goes_on = world.sides(first)
    died = begins.dying("call", kind="operation", key="k", cents=500, item="undone", die="refund:after")
    assert died == KILLED
    world.lapse()
    done = goes_on.call("operation", "k", item="undone")
    assert done["result"]["status"] == 502
    run = world.record()["run"]
    assert world.keys("refund") == {derived(run, "charge", 1, undo=True)}
    assert begins.call("operation", "k", item="undone") == done


def test_what_may_not_be_repeated_is_repeated_by_neither(world: World, first: str) -> None:
    begins, meets = world.sides(first)
    died = begins.dying("call", kind="operation", key="k", cents=500, item="wired", die="wire:after")
    assert died == KILLED
    world.lapse()
    assert meets.call("operation", "k", item="wired")["error"] == "OutcomeUnknown"
    assert begins.call("operation", "k", item="wired")["error"] == "OutcomeUnknown"
    assert world.counted("wire") == {"wired": 1}


def test_a_guard_that_died_is_uncertain_to_both(world: World, first: str) -> None:
    begins, meets = world.sides(first)
    assert begins.dying("call", kind="function", key="k", cents=500, die="pay:after") == KILLED
    world.lapse()
    assert meets.call("function", "k")["error"] == "OutcomeUnknown"
    assert begins.call("function", "k")["error"] == "OutcomeUnknown"
    assert meets.call("function", "k", 501)["error"] == "FingerprintMismatch"
    assert world.counted("pay") == {"k": 1}


def test_accepted_by_one_is_run_by_the_worker_of_the_other(world: World, first: str) -> None:
    accepts, works = world.sides(first)
    assert accepts("submit", key="k", cents=500, item="book") == {"result": "accepted"}
    done = works("work")
    assert done["finished"] == 1, done
    told = accepts("submit", key="k", cents=500, item="book")
    assert told["result"]["status"] == 201
    assert works("submit", key="k", cents=500, item="book") == told
    assert world.counted("charge") == {"book": 1}


@pytest.mark.parametrize("colour", ["sync", "async"])
def test_both_race_for_the_same_keys(everywhere: World, colour: str) -> None:
    """200 keys, both releases at once: every key runs once, and everybody gets its one result."""
    world = everywhere
    keys = [f"key-{number}" for number in range(200)]
    orders = [random.Random(seed).sample(keys, len(keys)) for seed in (1, 2)]
    sides = (world.old, world.new)
    for side, order in zip(sides, orders, strict=True):
        side.begin("race", keys=order, cents=7, colour=colour)
    told = [dict(zip(order, side.ended(), strict=True)) for side, order in zip(sides, orders, strict=True)]
    assert world.counted("pay" if colour == "sync" else "apay") == dict.fromkeys(keys, 1)
    assert told[0] == told[1]
    assert {record["state"] for record in world.old.all()} == {"completed"}


def test_what_one_staged_is_published_by_the_other(with_outbox: World, first: str) -> None:
    world = with_outbox
    begins, publishes = world.sides(first)
    if not world.tx["stages"]:
        begins.op("Stage", jobs=[["0" * 32, "receipts", b"{}", ""]])
        assert publishes("publish")["jobs"] == [{"id": "0" * 32, "topic": "receipts", "payload": b"{}", "order": ""}]
        return
    for sealed in (False, True):
        here, there = (begins.sealed(), publishes.sealed()) if sealed else (begins, publishes)
        for number in range(3):
            here.call("operation", f"k{number}{sealed}", item=f"book{number}")
        done = there("publish")
        assert [job["topic"] for job in done["jobs"]] == ["receipts"] * 3
        assert [job["payload"].startswith(b'{"item":"book') for job in done["jobs"]] == [True] * 3
        assert len({job["id"] for job in done["jobs"]}) == 3
        assert here("publish")["published"] == 0
