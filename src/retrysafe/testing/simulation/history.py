"""What happened in a simulation, in the order in which it happened: for the checkers, and for a person to read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class HistoryEvent(NamedTuple):
    """One thing that happened. `at` is true time in seconds, `where` the name of a host."""

    at: float
    where: str
    what: str
    about: str
    """Which purchase, key or message it is about."""
    data: dict[str, Any]


@dataclass(slots=True)
class SentMessage:
    """One message. Times are true time in seconds; None: it never came to that."""

    sent: float
    sender: str
    receiver: str
    what: str
    about: str
    fault: str
    arrived: float | None = None
    copied: float | None = None
    """When a second copy arrived."""


class History:
    """A list of events with a few questions. `detailed`: every message is kept, too, for a drawing."""

    def __init__(self, *, detailed: bool = False) -> None:
        self.events: list[HistoryEvent] = []
        self.detailed = detailed
        self.messages: list[SentMessage] = []

    def note(self, at: float, where: str, what: str, about: str = "", **data: Any) -> None:
        self.events.append(tuple.__new__(HistoryEvent, (at, where, what, about, data)))

    def find(self, what: str, about: str | None = None) -> list[HistoryEvent]:
        return [event for event in self.events if event.what == what and about in (None, event.about)]

    def format_timeline(self, about: str | None = None) -> str:
        """The events as lines of text; with `about`, only those of one purchase and those of whole hosts."""
        from retrysafe.testing.simulation.timeline import format_timeline

        return format_timeline(self.events, about)
