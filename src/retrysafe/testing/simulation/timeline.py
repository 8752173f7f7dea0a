"""A history as lines that a person can read who has not written the code: who sent what to whom, which message was
lost, who was killed, what the provider booked, what the client was told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

from retrysafe.testing.simulation.history import HistoryEvent

MAX_BODY_CHARACTERS = 60


def format_timeline(events: Iterable[HistoryEvent], about: str | None = None) -> str:
    """One line for each event. What repeats itself is told once, with how often and until when."""
    lines: list[str] = []
    for first, count, last in _gather(event for event in events if about is None or event.about in ("", about)):
        often = f" ({count} times, until {last.at:.3f} s)" if count > 1 else ""
        lines.append(f"{first.at:10.3f} s  {describe(first)}{often}")
    return "\n".join(lines)


def _gather(events: Iterable[HistoryEvent]) -> list[tuple[HistoryEvent, int, HistoryEvent]]:
    """Events that say the same one after the other, as one: the first, how many, and the last."""
    gathered: list[tuple[HistoryEvent, int, HistoryEvent]] = []
    waiting: dict[str, int] = {}
    """Where in the list the answers that a client gets again and again stand."""
    for event in events:
        text = describe(event)
        place = waiting.get(text)
        if place is not None and event.what in REPETITIVE:
            first, count, _ = gathered[place]
            gathered[place] = (first, count + 1, event)
            continue
        if event.what not in REPETITIVE:
            waiting.clear()
        waiting[text] = len(gathered)
        gathered.append((event, 1, event))
    return gathered


REPETITIVE = ("told", "answers", "receives")


def describe(event: HistoryEvent) -> str:
    """One event as a sentence."""
    tell = _SENTENCES.get(event.what)
    if tell is not None:
        with suppress(KeyError):  # an actor's own event of the same name
            return tell(event)
    details = " ".join(f"{name}={value!r}" for name, value in event.data.items())
    return f"{event.where}: {event.what} {event.about} {details}".rstrip()


def _lost(words: str) -> Callable[[HistoryEvent], str]:
    def tell(event: HistoryEvent) -> str:
        message, to = event.data["message"], event.data["to"]
        whose = f" of {event.about}" if event.about else ""
        return f"{event.where} sends {message}{whose} to {to}: {words}"

    return tell


def _show(body: Any) -> str:
    text = body.decode(errors="replace") if isinstance(body, bytes) else str(body)
    return f" {text[:MAX_BODY_CHARACTERS]}" if text else ""


_SENTENCES: dict[str, Callable[[HistoryEvent], str]] = {
    "request_lost": _lost("the request is LOST on its way"),
    "reply_lost": _lost("it arrives, and its reply is LOST"),
    "doubled": _lost("a SECOND COPY of it arrives later"),
    "held_back": _lost("it is HELD BACK, and arrives long after what follows it"),
    "refused": _lost("REFUSED, it cannot be reached"),
    "slow": _lost("request and reply are SLOW"),
    "reordered": _lost("it is OVERTAKEN by what follows it"),
    "deployed": lambda event: f"{event.where} is DEPLOYED anew, with version {event.data['version']} of the code",
    "suspended": lambda event: f"the machine of {event.where} is SUSPENDED for {event.data['seconds']} s",
    "slow host": lambda event: f"{event.where} becomes SLOW for {event.data['seconds']} s",
    "clock set": lambda event: f"the clock of {event.where} is SET by {event.data['seconds']} s",
    "row locked": lambda event: f"somebody LOCKS a row of the store for {event.data['seconds']} s",
    "failed over": lambda event: f"the store FAILS OVER, and loses {event.data['lost']} operations",
    "declined": lambda event: f"the provider DECLINES {event.about}",
    "5xx": lambda event: f"the provider answers 5xx to {event.about}",
    "got nothing": lambda event: f"{event.where} got no answer",
    "started": lambda event: f"{event.where} starts",
    "killed": lambda event: f"{event.where} is KILLED",
    "frozen": lambda event: f"{event.where} is FROZEN for {event.data['seconds']} s",
    "cut off": lambda event: f"{event.where} is CUT OFF from {event.data['other']} for {event.data['seconds']} s",
    "down": lambda event: f"the store goes DOWN for {event.data['seconds']} s",
    "up": lambda event: "the store is up again",
    "healed": lambda event: "the network is healed: from here on everything arrives",
    "sends": lambda event: (
        f"{event.where} asks the provider for a {event.data['kind']} of {event.about}"
        f" (attempt {event.data['attempt']}{_format_request(event.data['request'])})"
    ),
    "charge": lambda event: f"the provider BOOKS charge {event.data['number']} of {event.about}",
    "refund": lambda event: f"the provider BOOKS refund {event.data['number']} of {event.about}",
    "answers": lambda event: f"{event.where} answers {event.about}: {event.data['status']}{_show(event.data['body'])}",
    "told": lambda event: f"{event.where} is told {event.data['status']}{_show(event.data['body'])}",
    "resolved": lambda event: (
        f"a person says of {event.about}: it {'happened' if event.data['happened'] else 'did not happen'}"
    ),
    "breaks": lambda event: f"THE RULE IS BROKEN: {event.data['rule']}: {event.data['why']}",
    "broken": lambda event: f"BROKEN at {event.where}: {event.data['rule']}: {event.data['why']}",
}


def _format_request(number: int) -> str:
    return f", request {number}" if number else ", by itself"
