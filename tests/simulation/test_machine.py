"""The simulator's own parts: clocks, slow and sleeping hosts, the store's faults, walls, campaigns."""

from __future__ import annotations

import asyncio
import functools
import gc
import inspect
import sys
import typing
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from retrysafe.core.keys import Key
from retrysafe.core.ops import Claim, List, Lookup
from retrysafe.core.records import Fingerprint
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation import World, check, queue_shop, ways_shop
from retrysafe.testing.simulation.campaign import (
    format_progress,
    list_chunks,
    load_scenario,
    read_rss_mib,
    run_campaigns,
    run_seeds,
)
from retrysafe.testing.simulation.declared import read_hints, read_signature
from retrysafe.testing.simulation.history import History
from retrysafe.testing.simulation.hosts import Host
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import NO_FAULTS, Network
from retrysafe.testing.simulation.plan import Plan, draw_plan
from retrysafe.testing.simulation.progress import Progress, ScenarioProgress, open_progress
from retrysafe.testing.simulation.shop import SHOP
from retrysafe.testing.simulation.store import DURABLE, LOSSY, ReplicatedServer, StoreServer
from retrysafe.testing.simulation.tally import Tally
from retrysafe.testing.simulation.virtual import virtual_machine
from retrysafe.testing.simulation.walls import find_namespaces
from tests.simulation.kept import KEPT, KeptSeed
from tests.simulation.scenarios.web import WEB

CALM = Plan(purchases=1)
OUR_SHOP = "retrysafe.testing.simulation.shop:SHOP"
OUR_WAYS = "retrysafe.testing.simulation.ways_shop:SCENARIO"


class Machine:
    """A loop with two hosts, and what happened on them: (true time, what)."""

    def __init__(self) -> None:
        self.loop = SimulatedLoop(Random(1), 10_000)
        self.history = History()
        self.network = Network(self.loop, self.history, 1, NO_FAULTS)
        self.host = self.loop.add_host(Host("host"))
        self.store_host = self.loop.add_host(Host("store"))
        self.seen: list[tuple[float, Any]] = []

    def run(self, work: Any, seconds: float = 1000.0) -> None:
        """Run a coroutine function on the host, and everything else for some seconds."""

        async def wait() -> None:
            await asyncio.sleep(seconds)

        with virtual_machine(self.loop, 1):
            self.host.run_inside(self.loop.call_soon, lambda: self.loop.create_task(work()))
            self.loop.run_until(wait())
        self.loop.abandon(self.loop.hosts)

    def note(self, what: Any = None) -> None:
        self.seen.append((round(self.loop.now, 6), what))


def test_a_suspended_machine_does_not_count_the_time_and_its_timers_wait() -> None:
    machine = Machine()

    async def work() -> None:
        before, wall = machine.host.monotonic(machine.loop.now), machine.host.wall(machine.loop.now)
        await asyncio.sleep(10.0)
        machine.note((machine.host.monotonic(machine.loop.now) - before, machine.host.wall(machine.loop.now) - wall))

    machine.loop.call_at_true_time(4.0, lambda: machine.loop.suspend(machine.host, 104.0))
    machine.run(work)
    [(at, (monotonic, wall))] = machine.seen
    assert (at, monotonic, wall) == (110.0, 10.0, 110.0)


def test_a_frozen_process_counts_the_time_and_goes_on_at_once() -> None:
    machine = Machine()

    async def work() -> None:
        before = machine.host.monotonic(machine.loop.now)
        await asyncio.sleep(10.0)
        machine.note(machine.host.monotonic(machine.loop.now) - before)

    machine.loop.call_at_true_time(4.0, lambda: machine.loop.freeze(machine.host, 104.0))
    machine.run(work)
    assert machine.seen == [(104.0, 104.0)]


def test_each_callback_of_a_slow_host_takes_its_time() -> None:
    machine = Machine()
    machine.host.lag = 2.0

    async def work() -> None:
        for _ in range(3):
            await asyncio.sleep(0)
            machine.note()

    machine.run(work)
    assert [at for at, _ in machine.seen] == [4.0, 6.0, 8.0]


def test_two_hosts_that_are_cut_off_do_not_hear_of_each_other() -> None:
    machine = Machine()
    machine.network.part("host", "store", 50.0)

    async def work() -> None:
        for seconds in (5.0, 100.0, 5.0):
            try:
                machine.note(
                    await machine.network.call(machine.store_host, lambda: "heard", seconds=seconds, what="hello")
                )
            except Exception as error:
                machine.note(type(error).__name__)

    machine.run(work)
    assert [what for _, what in machine.seen] == ["Unanswered", "Unanswered", "heard"]


# Declarations ------------------------------------------------------------------------------------


def declare(default: Any, wanted: str = "int") -> Any:
    def function(one: int, two: Any = default, *, three: Any = default) -> None: ...

    function.__annotations__["one"] = wanted
    return function


def test_what_is_remembered_of_a_declaration_is_what_would_be_read() -> None:
    """Also of functions that differ by a default or an annotation only; `1` and `True` are equal, and are two."""
    for function in (declare(1), declare(True), declare(1), declare(1.0), declare(1, "str"), declare(1), claim):
        for _ in range(2):
            signature = read_signature(function)
            assert signature == inspect.signature(function)
            kinds = [type(each.default) for each in inspect.signature(function).parameters.values()]
            assert [type(each.default) for each in signature.parameters.values()] == kinds
            assert read_hints(function) == typing.get_type_hints(function)
    read_hints(declare(1)).clear()
    assert read_hints(declare(1))["one"] is int
    assert read_signature(declare(1)) is read_signature(declare(1))
    wrapped = functools.wraps(declare(1))(lambda *args: None)
    assert read_signature(wrapped) == inspect.signature(wrapped)
    assert str(read_signature(Machine)) == "() -> 'None'"


# The store ----------------------------------------------------------------------------------------


def claim(key: str = "k", namespace: str = "shop") -> Claim:
    return Claim(
        id=Key(key, "account").id(namespace),
        namespace=namespace,
        kind="http",
        scope="account",
        key=key,
        target="POST /",
        fingerprint=Fingerprint("raw1", b"f" * 32, 1),
        token=key.encode().ljust(16, b"-"),
        run=key.encode().ljust(16, b"+"),
        lease=60_000_000,
        retention=86_400_000_000,
        on_lapse="uncertain",
    )


@pytest.mark.parametrize("fault", ["is_read_only", "is_full"])
def test_a_store_that_refuses_writes_still_reads(fault: str) -> None:
    server = StoreServer(Host("store"), MemoryStore())
    [granted] = server.apply([claim()])
    setattr(server, fault, True)
    with pytest.raises(StoreUnavailable):
        server.apply([claim("other")])
    assert server.apply([Lookup(granted.record.id)])[0].record == granted.record
    assert len(server.apply([List("shop")])[0].records) == 1


@pytest.mark.parametrize(("seconds", "expected"), [(1.0, "granted"), (30.0, "StoreUnavailable")])
def test_an_operation_waits_for_a_row_that_is_locked(seconds: float, expected: str) -> None:
    machine = Machine()
    server = StoreServer(machine.store_host, MemoryStore())
    server.locked.add(claim().id)
    machine.loop.call_at_true_time(seconds, server.unlock, claim().id)

    async def work() -> None:
        store = server.open_client(machine.network)
        assert (await store.execute(Lookup(claim().id))).record is None
        try:
            machine.note("granted" if (await store.execute(claim())).granted else "refused")
        except StoreUnavailable:
            machine.note("StoreUnavailable")

    machine.run(work)
    assert [what for _, what in machine.seen] == [expected]


def test_a_failover_loses_what_was_not_replicated_and_the_store_says_so() -> None:
    now = [10.0]
    server = ReplicatedServer(Host("store"), MemoryStore(), lambda: now[0])
    server.apply([claim("first")])
    now[0] = 20.0
    server.apply([claim("second")])
    now[0] = 21.0
    assert server.fail_over(2.0) == 1
    assert [record.key for record in server.apply([List("shop")])[0].records] == ["first"]
    assert (DURABLE.durable, LOSSY.durable) == (True, False)
    machine = Machine()
    assert not server.open_client(machine.network).capabilities.durable
    machine.loop.close()


def test_what_a_lossy_store_lost_is_no_defect_of_ours_and_work_still_ends() -> None:
    plan = replace(CALM, is_lossy=True, failovers=2)
    for seed in range(5):
        outcome = World(seed, SHOP, kinds=("guard",), plan=plan).run()
        outcome.broken.append("I5 write-once: as a store that lost a record breaks it")
        assert check(outcome) == []


def test_a_reply_that_shows_a_stranger_is_seen() -> None:
    store = MemoryStore()
    ours, theirs = store.execute(claim()), store.execute(claim(namespace="neighbour"))
    rows = store._records
    assert set(find_namespaces(Lookup(theirs.record.id), None, rows)) == {"neighbour"}
    page = store.execute(List(None))
    assert set(find_namespaces(List(None), page, rows)) == {"shop", "neighbour"}
    assert set(find_namespaces(Lookup(ours.record.id), ours, rows)) == {"shop"}


# Plans and campaigns ------------------------------------------------------------------------------


def test_seeds_meet_every_circumstance() -> None:
    plans = [draw_plan(seed) for seed in range(300)]
    for name in Plan.__dataclass_fields__:
        assert len({getattr(plan, name) for plan in plans}) > 1, f"{name} never changes"


@pytest.mark.parametrize("kept", KEPT, ids=lambda kept: f"{kept.scenario.rpartition(':')[2]}-{kept.seed}")
def test_a_seed_that_once_failed(kept: KeptSeed) -> None:
    assert run_seeds(range(kept.seed, kept.seed + 1), load_scenario(kept.scenario)).failing == {}


def test_a_history_leaves_nothing_behind() -> None:
    """No task, no timer, no host: so a campaign of a million histories needs no more memory than one of ten."""

    def is_ours(each: Any) -> bool:
        # By type: `isinstance` asks lazy objects of other libraries for their class, and some fail. Loops of earlier
        # tests may still run in threads of their own: their tasks come and go.
        if issubclass(type(each), asyncio.Task):
            return type(each.get_loop()) is SimulatedLoop
        return issubclass(type(each), Host | SimulatedLoop)

    def count() -> int:
        gc.collect()
        return sum(is_ours(each) for each in gc.get_objects())

    run_seeds(range(3), SHOP)
    before = count()
    run_seeds(range(3, 13), SHOP)
    assert count() <= before


def test_killed_code_starts_nothing_in_the_loop_of_a_neighbour() -> None:
    """Code that is closed at the end wants to roll back, and starts a task for it. An earlier test may have left its
    loop as the loop of this thread."""
    loop = asyncio.new_event_loop()
    asyncio.set_event_loop(loop)
    try:
        run_seeds(range(10, 20), queue_shop.SCENARIO)
        assert not loop._ready  # type: ignore[attr-defined]  # nothing else tells
    finally:
        asyncio.set_event_loop(None)
        loop.close()


def test_what_is_collected_later_runs_no_killed_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it fails in the middle of another test, or of another history."""
    failed: list[Any] = []
    for scenario, seed in ((ways_shop.SCENARIO, 67), (WEB, 112)):
        World(seed, scenario).run()
        with monkeypatch.context() as patch:
            patch.setattr(sys, "unraisablehook", failed.append)
            gc.collect()
    assert failed == []


@pytest.mark.campaign
def test_the_memory_of_a_campaign_stays_flat() -> None:
    run_seeds(range(1000), SHOP)
    before = read_rss_mib()
    run_seeds(range(1000, 11_000), SHOP)
    assert read_rss_mib() <= before + 10


def test_a_campaign_goes_on_where_it_was_stopped(tmp_path: Path) -> None:
    file, seeds = tmp_path / "campaign.json", {OUR_SHOP: range(100, 500), OUR_WAYS: range(100, 200)}
    begun = open_progress(file, seeds, "c0ffee")
    begun.scenarios[OUR_SHOP].tally = Tally(histories=100, failing={117: "one effect: twice"})
    begun.scenarios[OUR_SHOP].tally.faults.update({"kill": 3})
    begun.scenarios[OUR_SHOP].done.add(100)
    begun.save(file)
    found = open_progress(file, seeds, "of later")
    assert found == begun
    left = [(chunk.scenario, chunk.first, chunk.last) for chunk in list_chunks(seeds, found)]
    assert left == [(OUR_WAYS, 100, 200), *((OUR_SHOP, first, first + 100) for first in (200, 300, 400))]
    assert format_progress(found, seeds, 2).startswith("100 of 500 histories, 1 with violations; ")
    with pytest.raises(ValueError, match="not 101: resume it with the same first seed"):
        open_progress(file, {OUR_SHOP: range(101, 500)})


def test_a_campaign_of_other_code_is_another_campaign(tmp_path: Path) -> None:
    file, seeds = tmp_path / "campaign.json", {OUR_SHOP: range(100)}
    Progress("of other code", "c0ffee", {OUR_SHOP: ScenarioProgress(0)}).save(file)
    with pytest.raises(ValueError, match="other code \\(commit c0ffee\\)"):
        open_progress(file, seeds)


def test_a_campaign_in_pieces_is_the_campaign(tmp_path: Path) -> None:
    """Played until half of it is done, and then to its end: every history is counted once."""
    file, whole = tmp_path / "campaign.json", {OUR_SHOP: range(3), OUR_WAYS: range(2)}
    run_campaigns({OUR_SHOP: range(3)}, resume=file)
    lines: list[str] = []
    done = run_campaigns(whole, resume=file, say=lines.append)
    again = run_campaigns(whole, resume=file)
    for name, seeds in whole.items():
        alone = run_seeds(seeds, load_scenario(name))
        for played in (done.scenarios[name].tally, again.scenarios[name].tally):
            assert (played.histories, played.steps, played.messages) == (len(seeds), alone.steps, alone.messages)
