"""Figures: what is counted, that no count is lost among threads, and that no label grows without bound (S28)."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator

import pytest

from retrysafe import Policy, RetrySafe
from retrysafe.core.ops import Claim, List
from retrysafe.core.records import Answer
from retrysafe.core.states import State
from retrysafe.engine.events import Events
from retrysafe.engine.exposition import format_metrics
from retrysafe.engine.figures import MAX_LABEL_VALUES, MAX_UNSORTED_TIMES, OTHER, STORE_SECONDS, Buckets, Figures
from retrysafe.engine.instruments import (
    ACTIVE,
    CLAIMS,
    EXECUTIONS,
    INSTRUMENTS,
    SETTLEMENTS,
    STORE_OPERATIONS,
    Instrument,
)
from retrysafe.errors import FingerprintMismatch, OutcomeUnknown, StoreUnavailable


def read(figures: Figures, instrument: Instrument) -> dict[tuple[str, ...], float | Buckets]:
    return next((metric.series for metric in figures.snapshot() if metric.instrument is instrument), {})


def test_each_claim_is_counted_by_outcome_kind_and_target() -> None:
    safe = RetrySafe("memory://")
    failing = [True]

    @safe.once("charge:{order}", policy=Policy.preset("function").replace(failures="release"))
    def charge(order: int, amount: int = 1) -> int:
        if failing:
            raise RuntimeError("down")
        return amount

    with pytest.raises(RuntimeError):
        charge(1)
    failing.clear()
    assert charge(1) == charge(1) == 1
    with pytest.raises(FingerprintMismatch):
        charge(1, 2)
    name = charge.__module__ + "." + charge.__qualname__
    assert read(safe.figures, CLAIMS) == {
        (outcome, "function", name): 1 for outcome in ("new", "reclaimed", "replayed", "mismatched")
    }
    assert read(safe.figures, SETTLEMENTS) == {("released", "function"): 1, ("completed", "function"): 1}
    assert safe.counters == {"new": 2, "released": 1, "completed": 1, "replayed": 1, "mismatched": 1}


def test_an_execution_is_measured_with_its_error() -> None:
    safe = RetrySafe("memory://")

    @safe.once("f:{n}")
    def divide(n: int) -> float:
        assert read(safe.figures, ACTIVE) == {("function",): 1}
        return 1 / n

    divide(1)
    with pytest.raises(ZeroDivisionError):
        divide(0)
    target = divide.__module__ + "." + divide.__qualname__
    measured = read(safe.figures, EXECUTIONS)
    assert set(measured) == {("function", target, ""), ("function", target, "ZeroDivisionError")}
    well = measured["function", target, ""]
    assert isinstance(well, Buckets)
    assert well.total == 1
    assert well.sum > 0
    assert read(safe.figures, ACTIVE) == {("function",): 0}


async def test_async_executions_are_measured_too() -> None:
    safe = RetrySafe("memory://")

    @safe.once("f:{n}")
    async def double(n: int) -> int:
        return 2 * n

    assert await double(4) == await double(4) == 8
    (one,) = read(safe.figures, EXECUTIONS).values()
    assert isinstance(one, Buckets)
    assert one.total == 1
    await safe.aclose()


def test_the_store_is_measured_with_its_errors() -> None:
    safe = RetrySafe("memory://")

    @safe.once("f:{n}")
    def one(n: int) -> int:
        return 1

    one(1)
    found = read(safe.figures, STORE_OPERATIONS)
    assert set(found) == {("claim", "memory", ""), ("complete", "memory", "")}
    safe.figures.observe_store_error(StoreUnavailable, 0.1, "StoreUnavailable")  # as the performer does on an error
    assert ("storeunavailable", "memory", "StoreUnavailable") in read(safe.figures, STORE_OPERATIONS)


def test_a_person_who_resolves_is_counted() -> None:
    safe = RetrySafe("memory://")

    @safe.once("f:{n}")
    def interrupted(n: int) -> int:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted(1)
    with pytest.raises(OutcomeUnknown):
        interrupted(1)
    (found,) = safe.execute(List(state=State.UNCERTAIN)).records
    safe.resolve(found.id, happened=True, answer=Answer(200, 1), because="seen at the provider")
    assert safe.counters["resolved"] == 1
    assert safe.figures.counts["actions", ("resolve", "done")] == 1
    assert read(safe.figures, SETTLEMENTS)["resolved", "function"] == 1


@pytest.fixture
def hasty() -> Iterator[None]:
    """Threads are switched as often as the interpreter can."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


@pytest.mark.usefixtures("hasty")
def test_no_count_is_lost_among_threads_though_there_is_no_lock() -> None:
    events = Events()
    threads, times = 8, 5_000
    start = threading.Barrier(threads)

    def count() -> None:
        start.wait()
        for number in range(times):
            events.emit("replayed", b"", "", ("http", f"target-{number % 3}"))
            events.figures.store_calls.observe(("Lookup", ""), 0.001)
            events.figures.observe_store(Claim, 0.001)
            events.figures.end_execution(("http", "pay"), events.figures.begin_execution("http"))
            events.granted.append(("http", "pay"))  # as plain requests do: a grant, which begins its execution, …
            events.replayed.append(("http", "target-0"))  # … and a replay
            events.figures.end_completed(("http", "pay"), 0.001)

    running = [threading.Thread(target=count) for _ in range(threads)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    assert events.counts() == {"replayed": 2 * threads * times, "new": threads * times, "completed": threads * times}
    assert read(events.figures, ACTIVE) == {("http",): 0}
    (executions,) = read(events.figures, EXECUTIONS).values()
    assert isinstance(executions, Buckets)
    assert executions.total == 2 * threads * times
    measured = read(events.figures, STORE_OPERATIONS)
    assert set(measured) == {("lookup", "", ""), ("claim", "", "")}
    for series in measured.values():
        assert isinstance(series, Buckets)
        assert series.total == threads * times
        assert series.sum == pytest.approx(threads * times * 0.001)


def test_times_of_the_store_are_sorted_into_the_buckets_they_belong_to() -> None:
    one_by_one, together = Figures(), Figures()
    for number in range(3 * MAX_UNSORTED_TIMES + 7):
        seconds = STORE_SECONDS[number % len(STORE_SECONDS)] * (1 + (number % 3 - 1) / 10)
        one_by_one.store_calls.observe(("Claim", ""), seconds)
        together.observe_store(Claim, seconds)
    together.observe_store(Claim, 1e9)
    one_by_one.store_calls.observe(("Claim", ""), 1e9)
    (expected,) = read(one_by_one, STORE_OPERATIONS).values()
    (found,) = read(together, STORE_OPERATIONS).values()
    assert isinstance(expected, Buckets)
    assert isinstance(found, Buckets)
    assert found.counts == expected.counts
    assert found.sum == pytest.approx(expected.sum)
    assert read(together, STORE_OPERATIONS).popitem()[1] == found  # reading takes nothing away


@pytest.mark.usefixtures("hasty")
def test_times_are_sorted_while_others_are_added_and_while_somebody_looks() -> None:
    figures, rounds = Figures(), 200
    start = threading.Barrier(5)

    def add() -> None:
        start.wait()
        for _ in range(rounds * 10):
            figures.observe_store(Claim, 0.001)

    def look() -> None:
        start.wait()
        for _ in range(rounds):
            figures.sort_collected()

    running = [threading.Thread(target=each) for each in (add, add, add, add, look)]
    for thread in running:
        thread.start()
    for thread in running:
        thread.join()
    (found,) = read(figures, STORE_OPERATIONS).values()
    assert isinstance(found, Buckets)
    assert found.total == 4 * rounds * 10


def test_what_is_collected_is_counted_before_it_grows() -> None:
    """A program that nobody asks for its figures keeps no more than a few hundred numbers of each series."""
    figures = Figures()
    events = Events(figures=figures)
    for _ in range(20 * MAX_UNSORTED_TIMES):
        figures.observe_store(Claim, 0.001)
        events.granted.append(("http", "pay"))
        figures.count_begin("http")
        figures.end_completed(("http", "pay"), 0.001)
        figures.observe_store(Claim, 0.001)
        events.replayed.append(("http", "pay"))
        figures.end_execution(("http", "pay"), figures.begin_execution("http"), "RuntimeError")
        figures.end_execution(("http", "pay"), figures.begin_execution("http"))
        collected = (events.granted, events.replayed, figures.begun, *figures._completed_times.values())
        assert all(len(each) <= MAX_UNSORTED_TIMES for each in (*collected, *figures._execution_times.values()))
    number = 20 * MAX_UNSORTED_TIMES
    assert events.counts() == {"new": number, "replayed": number, "completed": number}


def test_a_label_has_so_many_values_and_the_rest_is_other() -> None:
    events = Events()
    for number in range(3 * MAX_LABEL_VALUES):
        events.emit("new", b"", "", ("http", f"target-{number}"))
        series = ("http", f"target-{number}")
        events.figures.end_execution(series, events.figures.begin_execution("http"), f"Error{number}")
        events.figures.end_execution(series, events.figures.begin_execution("http"))
        events.granted.append(series)
        events.figures.end_completed(series, 0.001)
        events.figures.count("requests", ("present", f"target-{number}"))
    targets = {labels[2] for labels in read(events.figures, CLAIMS)}
    assert len(targets) == MAX_LABEL_VALUES + 1
    assert read(events.figures, CLAIMS)["new", "http", OTHER] == 4 * MAX_LABEL_VALUES
    assert {labels[1] for labels in read(events.figures, EXECUTIONS)} == targets
    assert len(events.figures.counts) == MAX_LABEL_VALUES + 1
    assert len(events.figures.event_counts) == 1 + MAX_LABEL_VALUES + 1
    assert events.counts() == {"new": 6 * MAX_LABEL_VALUES, "completed": 3 * MAX_LABEL_VALUES}


def test_a_tap_hears_each_figure_and_its_failure_disturbs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    safe = RetrySafe("memory://")
    heard: list[str] = []

    def tap(what: str, labels: tuple[str, ...], by: float) -> None:
        heard.append(what)
        raise RuntimeError("the exporter is broken")

    safe.figures.add_tap(tap)

    @safe.once("f:{n}")
    def one(n: int) -> int:
        return n

    assert one(1) == 1
    assert heard == ["store", "new", "active", "execution", "active", "store", "completed"]
    assert "an exporter of figures failed on new" in caplog.text


def test_the_text_for_prometheus_is_exact() -> None:
    figures = Figures("sqlite")
    figures.event_counts.clear()
    figures.count("requests", ("present", 'POST /a"b\\c\nd'))
    figures.batches.observe(("Claim",), 3)
    figures.gauges["retrysafe.uncertain.age.max", ()] = 1.5
    assert format_metrics(figures.snapshot()) == (
        "# HELP retrysafe_requests_total HTTP requests to protected routes, by what was sent as key: present, missing, "
        "malformed\n"
        "# TYPE retrysafe_requests_total counter\n"
        'retrysafe_requests_total{key="present",target="POST /a\\"b\\\\c\\nd"} 1\n'
        "# HELP retrysafe_store_batch_size how many operations that had to wait were sent to the store together; "
        "`mixed`: of several kinds\n"
        "# TYPE retrysafe_store_batch_size histogram\n"
        + "".join(
            f'retrysafe_store_batch_size_bucket{{operation="Claim",le="{bound}"}} {int(bound != 1 and bound != 2)}\n'
            for bound in (1, 2, 4, 8, 16, 32, 64, 128, 256, "+Inf")
        )
        + 'retrysafe_store_batch_size_sum{operation="Claim"} 3\n'
        'retrysafe_store_batch_size_count{operation="Claim"} 1\n'
        "# HELP retrysafe_uncertain_age_max_seconds how long ago the oldest uncertain attempt began; 0 if there is "
        "none\n"
        "# TYPE retrysafe_uncertain_age_max_seconds gauge\n"
        "retrysafe_uncertain_age_max_seconds 1.5\n"
    )


def test_no_instrument_has_a_label_that_could_hold_a_key_a_tenant_or_a_path() -> None:
    allowed = {
        "outcome", "kind", "target", "key", "error.type", "operation", "db.system.name", "state", "publisher",
        "service", "action",
    }  # fmt: skip
    assert {label for instrument in INSTRUMENTS for label in instrument.labels} <= allowed
    assert len({instrument.prometheus_name for instrument in INSTRUMENTS}) == len(INSTRUMENTS)


def test_what_is_alerted_on_begins_at_zero() -> None:
    """`increase()` sees nothing in a series whose first value is 1."""
    safe = RetrySafe("memory://")
    safe.operation("order")
    shown = format_metrics(safe.figures.snapshot())
    assert 'retrysafe_lease_renewals_total{outcome="lost"} 0' in shown
    assert 'retrysafe_operation_runs_total{operation="order",outcome="undo_failed"} 0' in shown
    assert safe.counters == {}
