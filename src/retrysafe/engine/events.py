"""Events and their hook: what happens to records. No event carries a key, a scope or a body; the id is enough to look a
record up (S28). Each event is counted in figures.py. trace.py is the hook for durations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple, get_args

from retrysafe.core.outcomes import Busy, Mismatch, Outcome, Uncertain
from retrysafe.engine.figures import Figures

EventName = Literal[
    "new", "replayed", "busy", "mismatched", "uncertain", "completed", "released", "withdrawn", "suspected",
    "resolved", "lease_lost", "renew_failed", "store_failed", "job_dead", "step_changed", "journal_large",
]  # fmt: skip

REFUSED_EVENTS: dict[type[Outcome], EventName] = {Busy: "busy", Mismatch: "mismatched", Uncertain: "uncertain"}
"""The event of each outcome that neither runs nor replays."""


class RecordEvent(NamedTuple):
    """Something that happened to a record: its `name`, the record's `target`, and its id in hex."""

    name: str
    target: str
    id: str


EventHook = Callable[[RecordEvent], None]


Series = tuple[str, str]
"""The kind of a record, and its target as it is shown in figures: a route template or a declared name, never a path."""

NO_SERIES: Series = ("", "")

EVENT_NAMES = frozenset(get_args(EventName))


class Events:
    """Counts events and calls the hooks. A hook that raises is logged and has no other effect.

    Events to which nobody listens do not ask whether anybody does: the first hook, or the first tap of the figures,
    makes them HeardEvents. The way of a plain request asks `heard`, and if nobody listens it appends the series to
    `granted` or `replayed`: that costs a quarter of `emit`."""

    def __init__(self, hook: EventHook | None = None, figures: Figures | None = None) -> None:
        self._hooks: list[EventHook] = []
        self.heard = False
        """Whether somebody listens: a hook, or a tap of the figures. Each object has its own, because an attribute of a
        class costs a request ten times as much to read."""
        self.figures = figures if figures is not None else Figures()
        self._counts = self.figures.event_counts
        self.granted, self.replayed = self.figures.granted, self.figures.replayed
        self.figures.call_when_tapped(self._become_heard)
        if hook is not None:
            self.subscribe(hook)

    def emit(self, name: EventName, record_id: bytes, target: str = "", series: Series = NO_SERIES) -> None:
        try:
            self._counts[series][name] += 1
        except KeyError:
            self.figures.add_event_series(name, series)

    def emit_grant(self, record_id: bytes, target: str, series: Series, attempt: int) -> None:
        """A claim was granted: `new`, and counted as `reclaimed` if an earlier attempt was released or lapsed."""
        counted = "new" if attempt < 2 else "reclaimed"
        try:
            self._counts[series][counted] += 1
        except KeyError:
            self.figures.add_event_series(counted, series)

    def subscribe(self, hook: EventHook) -> None:
        self._hooks.append(hook)
        self._become_heard()

    def _become_heard(self) -> None:
        self.__class__ = HeardEvents
        self.heard = True

    def counts(self) -> dict[str, int]:
        """How often each event has happened, by name."""
        self.figures.sort_collected()
        found: Counter[str] = Counter()
        for counts in list(self._counts.values()):
            for name, number in list(counts.items()):
                found["new" if name == "reclaimed" else name] += number
        return {name: number for name, number in found.items() if number and name in EVENT_NAMES}

    @staticmethod
    def _call_hook(hook: EventHook, event: RecordEvent) -> None:
        try:
            hook(event)
        except Exception:
            import logging  # slow to import, and hooks seldom fail

            logging.getLogger("retrysafe").exception("the event hook failed on %s", event.name)


class HeardEvents(Events):
    """Events to which somebody listens: a hook, or a tap of the figures."""

    def emit(self, name: EventName, record_id: bytes, target: str = "", series: Series = NO_SERIES) -> None:
        super().emit(name, record_id, target, series)
        self._tell(name, name, record_id, target, series)

    def emit_grant(self, record_id: bytes, target: str, series: Series, attempt: int) -> None:
        super().emit_grant(record_id, target, series, attempt)
        self._tell("new", "new" if attempt < 2 else "reclaimed", record_id, target, series)

    def _tell(self, name: EventName, counted: str, record_id: bytes, target: str, series: Series) -> None:
        self.figures.tap(counted, series, 1)
        if self._hooks:
            event = RecordEvent(name, target, record_id.hex())
            for hook in self._hooks:
                self._call_hook(hook, event)
