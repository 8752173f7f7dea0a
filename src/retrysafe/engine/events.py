"""Counters and the event hook: what happens to records. No event carries a key, a scope or a body; the id is enough to
look a record up (S28). trace.py is the hook for durations."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Literal, NamedTuple

from retrysafe.core.outcomes import Busy, Mismatch, Outcome, Uncertain

EventName = Literal[
    "new", "replayed", "busy", "mismatched", "uncertain", "completed", "released", "withdrawn", "suspected",
    "lease_lost", "renew_failed", "store_failed", "job_dead", "step_changed", "journal_large",
]  # fmt: skip

REFUSED_EVENTS: dict[type[Outcome], EventName] = {Busy: "busy", Mismatch: "mismatched", Uncertain: "uncertain"}
"""The event of each outcome that neither runs nor replays."""


class RecordEvent(NamedTuple):
    """Something that happened to a record: its `name`, the record's `target`, and its id in hex."""

    name: str
    target: str
    id: str


EventHook = Callable[[RecordEvent], None]


class Events:
    """Counts events by name and calls the hooks. A hook that raises is logged and has no other effect."""

    def __init__(self, hook: EventHook | None = None) -> None:
        self._hooks = [hook] if hook is not None else []
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def emit(self, name: EventName, record_id: bytes, target: str = "") -> None:
        with self._lock:
            self._counts[name] += 1
        if self._hooks:
            event = RecordEvent(name, target, record_id.hex())
            for hook in self._hooks:
                self._call_hook(hook, event)

    def subscribe(self, hook: EventHook) -> None:
        self._hooks.append(hook)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    @staticmethod
    def _call_hook(hook: EventHook, event: RecordEvent) -> None:
        try:
            hook(event)
        except Exception:
            import logging  # slow to import, and hooks seldom fail

            logging.getLogger("retrysafe").exception("the event hook failed on %s", event.name)
