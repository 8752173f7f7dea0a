"""The model of capacity: its parts have the properties that a queue must have, and the page shows what it prints."""

from __future__ import annotations

import random

import pytest
from benchmarks import capacity
from benchmarks.queueing import (
    Clock,
    Cores,
    Cost,
    Disk,
    LoopServer,
    Outcome,
    PartitionedServer,
    Server,
    Setup,
    SqlServer,
    fit_cost,
    simulate,
)

FREE = Cost(0, 0)
SETUP = Setup(processes=1, callers=8, client=FREE, round_trip=0.001)


def sql(cost: Cost, cores: int = 1, flush: float = 0.0) -> capacity.Build:
    return lambda clock, _: [SqlServer(clock, cost, cores, flush)]


def test_cores_serve_in_order_and_as_many_at_once_as_there_are() -> None:
    clock, ended = Clock(), list[tuple[str, float]]()
    cores = Cores(clock, 2)
    for name, seconds in (("a", 3.0), ("b", 1.0), ("c", 1.0)):
        cores.serve(seconds, lambda name=name: ended.append((name, clock.now)))  # type: ignore[misc]
    clock.run_until(10)
    assert ended == [("b", 1.0), ("c", 2.0), ("a", 3.0)]
    assert cores.share_busy() == pytest.approx(5 / 20)


def test_what_waits_for_a_flush_shares_the_next_one() -> None:
    clock, ended = Clock(), list[float]()
    disk = Disk(clock, 1.0)
    for at in (0.0, 0.1, 0.9):
        clock.after(at, lambda: disk.flush(lambda: ended.append(clock.now)))
    clock.run_until(10)
    assert (ended, disk.flushes) == ([1.0, 2.0, 2.0], 2)


def test_a_loop_flushes_once_for_all_that_arrived() -> None:
    clock, ended = Clock(), list[float]()
    server = LoopServer(clock, Cost(0, 0.1), 1.0)
    for at in (0.0, 0.5, 0.6):
        clock.after(at, lambda: server.receive(1, lambda: ended.append(clock.now)))
    clock.run_until(10)
    assert ended == pytest.approx([1.1, 2.3, 2.3])


@pytest.mark.parametrize("cores", [1, 4])
def test_the_server_is_the_limit_when_it_is_busy(cores: int) -> None:
    """Without a cost per batch the rate is cores / (2 operations x cost), whatever the batches are."""
    setup = Setup(processes=8, callers=64, client=FREE, round_trip=0.0002, flights=2)
    outcome = simulate(setup, sql(Cost(0, 0.0001), cores))
    assert outcome.rate == pytest.approx(cores / 0.0002, rel=0.05)
    assert outcome.server_busy > 0.95


def test_callers_in_a_closed_loop_follow_littles_law() -> None:
    outcome = simulate(SETUP, sql(Cost(0.0001, 0.00005), flush=0.002))
    assert outcome.rate * outcome.median == pytest.approx(SETUP.callers, rel=0.1)


def test_batches_grow_with_the_callers_up_to_their_limit() -> None:
    sizes = [simulate(Setup(1, callers, FREE, 0.001), sql(Cost(0.001, 0))).batch for callers in (1, 8, 32, 1000)]
    assert sizes == sorted(sizes)
    assert (sizes[0], sizes[-1] <= 128) == (1.0, True)


def test_three_servers_carry_three_times_one_if_a_batch_costs_nothing() -> None:
    def build(count: int) -> capacity.Build:
        return lambda clock, _: [LoopServer(clock, Cost(0, 0.00002), 0) for _ in range(count)]

    setup = Setup(processes=8, callers=128, client=FREE, round_trip=0.0002, pipelined=True)
    one, three = (simulate(setup, build(count)).rate for count in (1, 3))
    assert three == pytest.approx(3 * one, rel=0.1)


@pytest.mark.parametrize("processes", [2, 16])
def test_partitions_are_a_ceiling(processes: int) -> None:
    def build(clock: Clock, rng: random.Random) -> list[Server]:
        return [PartitionedServer(clock, 4, 1_000, rng)]

    setup = Setup(processes, 64, FREE, 0.005, batch=1, pipelined=True)
    assert simulate(setup, build).rate == pytest.approx(2_000, rel=0.1)


def test_the_same_seed_gives_the_same_outcome() -> None:
    runs = [simulate(SETUP, sql(Cost(0.0001, 0.0001)), seed=7) for _ in range(2)]
    assert isinstance(runs[0], Outcome)
    assert runs[0] == runs[1]


def test_a_fit_finds_the_costs_that_made_the_points() -> None:
    points = [(batches, ops, batches * 0.0002 + ops * 0.00001) for batches, ops in ((100, 100), (100, 800), (50, 3000))]
    assert fit_cost(points) == pytest.approx(Cost(0.0002, 0.00001))


def test_a_cost_is_never_negative() -> None:
    assert fit_cost([(100, 100, 0.001), (10, 100, 0.002)]).batch == 0
    assert fit_cost([(100, 100, 0.1), (10, 100, 0.001)]).op == 0
    assert fit_cost([(100, 100, 0.002)]) == pytest.approx(Cost(0, 0.00002))


def test_a_flush_is_what_the_processors_leave() -> None:
    assert capacity.estimate_flush(500, Cost(0.0002, 0), Cost(0.0003, 0)) == pytest.approx(0.0004)
    assert capacity.estimate_flush(1e6, Cost(0.0002, 0), Cost(0.0003, 0)) == 0


@pytest.mark.parametrize(("rate", "shown"), [(7.4, "7"), (87.6, "88"), (1_949, "1,900"), (53_412, "53,000")])
def test_rates_have_two_digits(rate: float, shown: str) -> None:
    assert capacity.round_rate(rate) == shown


def test_the_page_shows_what_the_model_prints_today() -> None:
    with pytest.raises(SystemExit) as ended:
        capacity.main(["--check"])
    assert ended.value.code == 0, "run: python -m benchmarks.capacity"
