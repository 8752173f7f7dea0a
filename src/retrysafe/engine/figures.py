"""The figures of one RetrySafe object: counts and durations, always on, in plain dictionaries.

Where counts live, what adds to them, what reads them:

- They live here, in this process. `safe.figures.snapshot()` reads them.
- `Events.emit` counts what happens to records. The guard, the web exchange and the operations measure executions. The
  performers measure the store. The worker adds its rounds, and the gauges that it reads from the store.
- Exporters read `snapshot()` when they are asked (retrysafe.prometheus, retrysafe.otel, `/metrics` of the worker).
  An exporter that cannot wait until it is asked adds a tap, which is called with each figure.

There is no lock on the way of a request. `counts[key] += 1` on a dict with keys of plain strings runs no Python code,
and CPython switches threads only at calls and loops, so no count is lost (tests/unit/engine/test_figures.py). On a
build without the GIL a count may be lost now and then.

What every request comes by is made cheap (`python -m benchmarks.figures`): it is only appended to a list (what was
granted or replayed, the times of the store and of executions), and `sort_collected` counts what was collected, after
256 answers of the store or when somebody asks; `retrysafe.requests` is read from the census, which counts each request
anyway (web/key_usage.py); and figures that nobody taps do not ask whether anybody does: a tap makes them TappedFigures.

instruments.py says what each figure is called outside. It is not imported here: a program that is never asked for its
figures need not load it.
"""

from __future__ import annotations

import threading
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from time import monotonic
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from retrysafe.engine.instruments import Instrument

Labels = tuple[str, ...]
Tap = Callable[[str, Labels, float], None]
"""Called with each figure as it is counted or measured: what it is, its labels, by how much."""

MAX_LABEL_VALUES = 200
"""How many values one label may have. Later ones are counted as `other`: a label that grows without bound would fill
the memory of this process and of the monitoring (S28)."""
OTHER = "other"

EXECUTION_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 30.0, 60.0, 300.0)
STORE_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
BATCH_SIZES = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0)
DELAY_SECONDS = (0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0, 1800.0, 3600.0)

EVENT_PLACES = (1,)
BOUNDED_PLACES = {
    "execution": (1, 2), "outbox_delay": (0,), "runs": (0,),
    **dict.fromkeys(("store", "batch", "active", "rounds", "actions"), ()),
}  # fmt: skip
"""Which labels of a figure come from users' code and are bounded. For events and requests it is the second, the
target."""

NO_LABELS = ("", "")
FROM_ZERO = ("renewed", "renew_failed", "lease_lost")
"""Counted from zero. A rule that asks for an increase does not see one in a series whose first value is 1."""

MAX_UNSORTED_TIMES = 256
"""How many times of one series are collected before all that was collected is sorted and counted."""

RUN_OUTCOMES = ("finished", "stopped", "undone", "undo_failed")


class Buckets(NamedTuple):
    """One series of a histogram: how many values in each bucket (the last has no upper bound), and their sum."""

    counts: tuple[int, ...]
    sum: float

    @property
    def total(self) -> int:
        return sum(self.counts)


class Metric(NamedTuple):
    """One instrument and its series."""

    instrument: Instrument
    series: dict[Labels, float | Buckets]


class Figures:
    """Counts, durations and gauges of one RetrySafe object. `store` is the name of its store."""

    def __init__(self, store: str = "") -> None:
        self.store = store
        self.counts: dict[tuple[str, Labels], int] = {}
        self.event_counts: dict[Labels, dict[str, int]] = {NO_LABELS: dict.fromkeys(FROM_ZERO, 0)}
        """Events by series, then by name."""
        self.sources: list[Callable[[], dict[tuple[str, Labels], int]]] = []
        """What is counted elsewhere and read from there."""
        self.active: dict[str, int] = {}
        self.execution = Histogram("execution", EXECUTION_SECONDS, self)
        self.store_calls = Histogram("store", STORE_SECONDS, self)
        self.store_times: dict[type, list[float]] = {}
        """Times of operations that succeeded, by their class, that are not in `store_calls` yet."""
        self.max_unsorted_times = MAX_UNSORTED_TIMES
        self._execution_times: dict[tuple[str, str], list[float]] = {}
        """Durations of executions without an error, by kind and target, that are not in `execution` yet."""
        self._completed_times: dict[tuple[str, str], list[float]] = {}
        """The same of executions whose answer was stored, which are not in `event_counts` and `active` yet either."""
        self.granted: list[tuple[str, str]] = []
        """The series of claims that were granted, and whose execution has begun: a `new` and a begin in one. They are
        not in `event_counts` and `active` yet. Each comes after an answer of the store, whose time is in `store_times`:
        that bounds this list and the next, and `_completed_times`. Events that somebody hears do not come here."""
        self.replayed: list[tuple[str, str]] = []
        self.begun: list[str] = []
        """The kinds of executions that have begun and are not in `active` yet."""
        self.count_begin: Callable[[str], None] = self.begun.append
        """An execution of this kind begins."""
        self.outbox_delay = Histogram("outbox_delay", DELAY_SECONDS, self)
        self.batches = Histogram("batch", BATCH_SIZES, self)
        self.gauges: dict[tuple[str, Labels], float] = {}
        """What the worker read from the store last, by the instrument's name and labels."""
        self.taps: list[Tap] = []
        self._when_tapped: list[Callable[[], None]] = []
        self._known: dict[str, set[str]] = {}
        self._lock = threading.Lock()

    def count(self, what: str, labels: Labels) -> None:
        """Add one."""
        try:
            self.counts[what, labels] += 1
        except KeyError:
            self.add_series(what, labels)

    def add_series(self, what: str, labels: Labels) -> None:
        """Count a series for the first time, or one whose label is over the limit."""
        with self._lock:
            key = (what, self.bound_labels(what, labels))
            self.counts.setdefault(key, 0)
            self.counts[key] += 1  # apart from the line above, because a call may let another thread in between

    def add_event_series(self, name: str, labels: Labels, number: int = 1) -> None:
        """The same for an event."""
        with self._lock:
            counts = self.event_counts.setdefault(self.bound_labels(name, labels), {})
            counts.setdefault(name, 0)
            counts[name] += number

    def list_counts(self) -> list[tuple[str, Labels, int]]:
        """All that was counted: what, its labels, how often."""
        self.sort_collected()
        found = [(what, labels, number) for (what, labels), number in list(self.counts.items())]
        for labels, counts in list(self.event_counts.items()):
            found += [(name, labels, number) for name, number in list(counts.items())]
        for source in list(self.sources):
            found += [(what, self.bound_labels(what, labels), number) for (what, labels), number in source().items()]
        return found

    def add_tap(self, tap: Tap) -> None:
        """Call `tap` with each figure from now on."""
        self.sort_collected()  # it is not for this tap
        self.taps.append(tap)
        self.__class__ = TappedFigures
        self.max_unsorted_times = 1
        self.count_begin = self.tell_begin
        for listen in self._when_tapped:
            listen()

    def call_when_tapped(self, listen: Callable[[], None]) -> None:
        """Call `listen` when there is a tap, at once if there is one: from then on each figure is told with `tap`."""
        self._when_tapped.append(listen)
        if self.taps:
            listen()

    def expect_runs(self, operation: str) -> None:
        """Count the runs of an operation from zero (FROM_ZERO says why)."""
        for outcome in RUN_OUTCOMES:
            labels = self.bound_labels("runs", (operation, outcome))
            self.counts.setdefault(("runs", labels), 0)
            self.tap("runs", labels, 0)

    def begin_execution(self, kind: str) -> float:
        """Work begins. Returns the time, for `end_execution`. By `monotonic`: the clock of leases costs twice that."""
        self.count_begin(kind)
        return monotonic()

    def tell_begin(self, kind: str) -> None:
        """What `count_begin` does where there are taps."""
        self._change_active(kind, 1)
        self.tap("active", (kind,), 1)

    def end_execution(self, series: tuple[str, str], began: float, error: str = "") -> None:
        """Work has ended. `series` is its kind and target, `error` the class of what it raised."""
        self._change_active(series[0], -1)
        if error:
            self.execution.observe((*series, error), monotonic() - began)
        else:
            self._find_times(self._execution_times, series).append(monotonic() - began)
        if len(self.begun) >= MAX_UNSORTED_TIMES:
            self.sort_collected()

    def end_completed(self, series: tuple[str, str], seconds: float) -> None:
        """Work has ended well, and its answer is stored: an execution and a `completed` in one. One flat function,
        because every new key comes here."""
        try:
            times = self._completed_times[series]
        except KeyError:
            times = self._find_times(self._completed_times, series)
        times.append(seconds)

    def _find_times(self, collected: dict[tuple[str, str], list[float]], series: tuple[str, str]) -> list[float]:
        """The times of a series, which is added if it is new."""
        if series in collected:
            return collected[series]
        kind, target, _ = self.bound_labels("execution", (*series, ""))
        return collected.setdefault((kind, target), [])

    def _change_active(self, kind: str, by: int) -> None:
        try:
            self.active[kind] += by
        except KeyError:
            self.active.setdefault(kind, 0)
            self.active[kind] += by

    def observe_store(self, op: type, seconds: float) -> None:
        """The store has answered. The performer for event loops does the same in its own lines: every request comes
        there two times."""
        try:
            times = self.store_times[op]
        except KeyError:
            times = self.add_store_times(op)
        times.append(seconds)
        if len(times) >= self.max_unsorted_times:
            self.sort_store_times(op)

    def add_store_times(self, op: type) -> list[float]:
        """The times of an operation that is sent for the first time. Not a defaultdict: reading one costs a request
        more than reading a dict."""
        return self.store_times.setdefault(op, [])

    def sort_store_times(self, op: type) -> None:
        """So many times of an operation are collected as may be."""
        self.sort_collected()

    def sort_collected(self) -> None:
        """Count all that was collected, and put times into their buckets. Without a lock, which might be held by this
        very thread, interrupted by a signal, or by a thread that a fork left behind."""
        # What has ended is taken before what has begun: otherwise more would have ended than begun.
        ended = [(series, take_all(times)) for series, times in list(self._completed_times.items())]
        for series, number in count_each(take_all(self.granted)):
            self._add_events("new", series, number)
            self._change_active(series[0], number)
        for series, number in count_each(take_all(self.replayed)):
            self._add_events("replayed", series, number)
        for kind, number in count_each(take_all(self.begun)):
            self._change_active(kind, number)
        for op, times in list(self.store_times.items()):
            sort_times(self.store_calls, (op.__name__, ""), times)
        for series, times in list(self._execution_times.items()):
            sort_times(self.execution, (*series, ""), times)
        for series, times in ended:
            number = sort_times(self.execution, (*series, ""), times)
            if number:
                self._change_active(series[0], -number)
                self._add_events("completed", series, number)

    def _add_events(self, name: str, series: Labels, number: int) -> None:
        try:
            self.event_counts[series][name] += number
        except KeyError:
            self.add_event_series(name, series, number)

    def observe_store_error(self, op: type, seconds: float, error: str) -> None:
        """The store has failed; `error` is the class of its error."""
        self.store_calls.observe((op.__name__, error), seconds)

    def observe_batch(self, batch: Sequence[Any]) -> None:
        """Operations that had to wait are sent to the store together."""
        kinds = {type(pending.op).__name__.lower() for pending in batch}
        self.batches.observe((kinds.pop() if len(kinds) == 1 else "mixed",), len(batch))

    def tap(self, what: str, labels: Labels, by: float) -> None:
        if not self.taps:
            return
        bounded = self.bound_labels(what, labels)
        for tap in self.taps:
            try:
                tap(what, bounded, by)
            except Exception:
                import logging

                logging.getLogger("retrysafe").exception("an exporter of figures failed on %s", what)

    def bound_labels(self, what: str, labels: Labels) -> Labels:
        """The labels, with `other` instead of values over the limit."""
        places = BOUNDED_PLACES.get(what, EVENT_PLACES)
        if not places:
            return labels
        if all(labels[place] in self._known.get(label_group(what, place), ()) for place in places):
            return labels
        return tuple(
            self._bound(label_group(what, place), label) if place in places else label
            for place, label in enumerate(labels)
        )

    def _bound(self, group: str, value: str) -> str:
        known = self._known.setdefault(group, set())
        if value in known or not value:
            return value
        if len(known) >= MAX_LABEL_VALUES:
            return OTHER
        known.add(value)
        return value

    def snapshot(self) -> list[Metric]:
        """Every figure, by instrument. An instrument without a series is left out."""
        from retrysafe.engine.instruments import gather

        return gather(self)


class TappedFigures(Figures):
    """Figures that call their taps. A tap does not wait: what the others collect is measured at once here."""

    def count(self, what: str, labels: Labels) -> None:
        super().count(what, labels)
        self.tap(what, labels, 1)

    def end_execution(self, series: tuple[str, str], began: float, error: str = "") -> None:
        self._change_active(series[0], -1)
        self.execution.observe((*series, error), monotonic() - began)
        self.tap("active", (series[0],), -1)

    def sort_store_times(self, op: type) -> None:
        for seconds in take_all(self.store_times[op]):
            self.store_calls.observe((op.__name__, ""), seconds)


class Histogram:
    """Durations or sizes, by labels."""

    __slots__ = ("_figures", "bounds", "cells", "what")

    def __init__(self, what: str, bounds: tuple[float, ...], figures: Figures) -> None:
        self.what = what
        self.cells: dict[Labels, list[float]] = {}
        """The count of each bucket, and at the end the sum."""
        self.bounds = bounds
        self._figures = figures

    def observe(self, labels: Labels, value: float) -> None:
        cells = self.find_cells(labels)
        cells[bisect_left(self.bounds, value)] += 1
        cells[-1] += value
        self._figures.tap(self.what, labels, value)

    def find_cells(self, labels: Labels) -> list[float]:
        """The cells of a series, which is added if it is new."""
        try:
            return self.cells[labels]
        except KeyError:
            bounded = self._figures.bound_labels(self.what, labels)
            return self.cells.setdefault(bounded, [0] * (len(self.bounds) + 1) + [0.0])

    def series(self) -> dict[Labels, float | Buckets]:
        return {
            labels: Buckets(tuple(int(count) for count in cells[:-1]), cells[-1])
            for labels, cells in list(self.cells.items())
        }


def take_all(collected: list[Any]) -> list[Any]:
    """Empty the list; what was in it. No thread is switched between the two lines in the middle (see above)."""
    number = len(collected)
    taken = collected[:number]
    del collected[:number]
    return taken


def count_each(taken: list[Any]) -> Iterable[tuple[Any, int]]:
    """Each value with its number. Most often there is one value or none, and a Counter costs more than a request may
    bear of it."""
    if not taken:
        return ()
    if taken.count(taken[0]) == len(taken):
        return ((taken[0], len(taken)),)
    return Counter(taken).items()


def sort_times(histogram: Histogram, labels: Labels, times: list[float]) -> int:
    """Put times into their buckets. Returns how many they were."""
    if not times:
        return 0
    taken = take_all(times)
    cells, bounds, above = histogram.find_cells(labels), histogram.bounds, 0
    taken.sort()
    for place, bound in enumerate(bounds):
        below, above = above, bisect_right(taken, bound, above)
        cells[place] += above - below
    # Computed before: a call between the reading and the writing of a cell would let another thread in.
    last, slowest, seconds = len(bounds), len(taken) - above, sum(taken)
    cells[last] += slowest
    cells[-1] += seconds
    return len(taken)


def label_group(what: str, place: int) -> str:
    """The label whose values are counted together. All targets are one label, whatever figure they are in."""
    return LABEL_GROUPS.get((what, place), "target")


LABEL_GROUPS = {("execution", 2): "error", ("outbox_delay", 0): "topic", ("runs", 0): "operation"}
"""Those that are no targets."""
