"""What happened in a simulation, in the order in which it happened: for the checkers, and for a person to read."""

from __future__ import annotations

from typing import Any, NamedTuple


class HistoryEvent(NamedTuple):
    """One thing that happened. `at` is true time in seconds, `where` the name of a host."""

    at: float
    where: str
    what: str
    about: str
    """Which purchase, key or message it is about."""
    data: dict[str, Any]


class History:
    """A list of events with a few questions."""

    def __init__(self) -> None:
        self.events: list[HistoryEvent] = []

    def note(self, at: float, where: str, what: str, about: str = "", **data: Any) -> None:
        self.events.append(HistoryEvent(at, where, what, about, data))

    def find(self, what: str, about: str | None = None) -> list[HistoryEvent]:
        return [event for event in self.events if event.what == what and about in (None, event.about)]

    def format_timeline(self, about: str | None = None) -> str:
        """The events as lines of text; with `about`, only those of one purchase and those of whole hosts."""
        wanted = [event for event in self.events if about is None or event.about in ("", about)]
        width = max((len(event.where) for event in wanted), default=0)
        lines = []
        for event in wanted:
            details = " ".join(f"{name}={value!r}" for name, value in event.data.items())
            lines.append(
                f"{event.at:12.3f} s  {event.where:{width}}  {event.what:12}  {event.about:10}  {details}".rstrip()
            )
        return "\n".join(lines)
