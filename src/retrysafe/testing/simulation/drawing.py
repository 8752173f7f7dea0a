"""A history as an SVG: a lane for each host, an arrow for each message, a mark for each fault. Time goes down, and what
takes long takes no room: each row is one thing that happened. A pure function of the history."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import NamedTuple

from retrysafe.testing.simulation.history import History, HistoryEvent, SentMessage
from retrysafe.testing.simulation.timeline import describe

LANE_PIXELS, ROW_PIXELS, LEFT_PIXELS, TOP_PIXELS = 150, 20, 90, 50
MAX_ROWS = 400
"""What is longer is cut off: nobody reads it, and a story that was made short is not."""

HOUSEKEEPING = ("List", "Lookup", "Reap", "Namespaces", "ListJobs", "TakeJobs", "Renew")
"""What hosts send all the time. Drawn only where something went wrong with it."""

MARKS = {
    "killed": ("#c62828", "✕ killed"),
    "started": ("#2e7d32", "starts"),
    "frozen": ("#1565c0", "❄ frozen"),
    "cut off": ("#ad1457", "⚡ cut off"),
    "down": ("#c62828", "✕ down"),
    "up": ("#2e7d32", "up"),
    "charge": ("#e65100", "charge"),
    "refund": ("#6a1b9a", "refund"),
    "deployed": ("#00838f", "new version"),
    "suspended": ("#1565c0", "❄ suspended"),
    "clock set": ("#ad1457", "clock set"),
    "failed over": ("#c62828", "✕ failed over"),
    "declined": ("#e65100", "declines"),
    "told": ("#37474f", "told"),
    "resolved": ("#37474f", "decides"),
    "broken": ("#c62828", "✕ broken"),
    "breaks": ("#c62828", "✕ rule broken"),
}
FAULT_COLOURS = {"": "#90a4ae", "slow": "#f9a825", "doubled": "#8e24aa", "held_back": "#ef6c00"}
LOST_COLOUR = "#c62828"


class Row(NamedTuple):
    """Something that happens at a moment: the end of an arrow, or a mark."""

    at: float
    order: int
    lane: str
    message: SentMessage | None
    end: str
    """`sent`, `arrived` or `copied`; empty for a mark."""
    event: HistoryEvent | None


def draw_svg(history: History, title: str = "") -> str:
    """The drawing. Messages are in it if the history was `detailed`."""
    rows = _build_rows(history)[:MAX_ROWS]
    lanes = _order_lanes({row.lane for row in rows} | {row.message.receiver for row in rows if row.message})
    x = {name: LEFT_PIXELS + LANE_PIXELS * place + LANE_PIXELS // 2 for place, name in enumerate(lanes)}
    y = {id(row): TOP_PIXELS + ROW_PIXELS * (place + 1) for place, row in enumerate(rows)}
    height = TOP_PIXELS + ROW_PIXELS * (len(rows) + 2)
    width = LEFT_PIXELS + LANE_PIXELS * max(1, len(lanes)) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif" '
        'font-size="11">',
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
        f'<text x="8" y="16" font-size="13">{escape(title)}</text>',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z" fill="context-stroke"/></marker></defs>',
    ]
    for name in lanes:
        parts.append(
            f'<text x="{x[name]}" y="{TOP_PIXELS - 10}" text-anchor="middle" font-weight="bold">{escape(name)}</text>'
        )
        parts.append(f'<line x1="{x[name]}" y1="{TOP_PIXELS}" x2="{x[name]}" y2="{height - 10}" stroke="#cfd8dc"/>')
    last = ""
    for row in rows:
        time = f"{row.at:.3f} s"
        if time != last:
            parts.append(
                f'<text x="{LEFT_PIXELS - 12}" y="{y[id(row)] + 4}" text-anchor="end" fill="#78909c">{time}</text>'
            )
        last = time
    parts += _draw_messages(rows, x, y)
    parts += _draw_marks(rows, x, y)
    return "\n".join([*parts, "</svg>"]) + "\n"


def _build_rows(history: History) -> list[Row]:
    rows: list[Row] = []
    for message in history.messages:
        if not message.fault and message.what.split("+")[0] in HOUSEKEEPING:
            continue
        rows.append(Row(message.sent, len(rows), message.sender, message, "sent", None))
        # A message that takes no time worth telling is one row.
        if message.arrived is not None and message.arrived - message.sent > 0.05:
            rows.append(Row(message.arrived, len(rows), message.receiver, message, "arrived", None))
        if message.copied is not None:
            rows.append(Row(message.copied, len(rows), message.receiver, message, "copied", None))
    before: tuple[str, str] | None = None
    for event in history.events:
        told = (event.where, describe(event))
        if event.what in MARKS and told != before:
            rows.append(Row(event.at, len(rows), event.where, None, "", event))
            before = told if event.what == "told" else before
    return sorted(rows, key=lambda row: (row.at, row.order))


def _order_lanes(names: Iterable[str]) -> list[str]:
    """Clients on the left, then applications, the store, workers, the provider, people."""
    ranks = ("client", "app", "store", "worker", "provider")
    return sorted(names, key=lambda name: (next((n for n, r in enumerate(ranks) if name.startswith(r)), 9), name))


def _draw_messages(rows: list[Row], x: dict[str, int], y: dict[int, int]) -> Iterable[str]:
    sent = {id(row.message): y[id(row)] for row in rows if row.end == "sent"}
    landed = {id(row.message): y[id(row)] for row in rows if row.end == "arrived"}
    for row in rows:
        message = row.message
        if message is None or row.end == "arrived" or id(message) not in sent:
            continue
        start, end = x[message.sender], x[message.receiver]
        top = sent[id(message)]
        if row.end == "copied":
            yield _arrow(start, top, end, y[id(row)], FAULT_COLOURS["doubled"], "second copy", dashed=True)
            continue
        lost = message.fault in ("request_lost", "refused") or message.arrived is None
        colour = LOST_COLOUR if lost or message.fault == "reply_lost" else FAULT_COLOURS.get(message.fault, "#90a4ae")
        label = message.what + (f" {message.about}" if message.about else "")
        if lost:
            middle = (start + end) // 2
            yield _arrow(start, top, middle, top, colour, f"{label}: {message.fault or 'never read'}", head=False)
            yield f'<text x="{middle}" y="{top + 4}" fill="{colour}" text-anchor="middle">✕</text>'
        else:
            note = f"{label}: {message.fault.replace('_', ' ')}" if message.fault else label
            yield _arrow(start, top, end, landed.get(id(message), top), colour, note)


def _arrow(
    x1: int, y1: int, x2: int, y2: int, colour: str, label: str, *, head: bool = True, dashed: bool = False
) -> str:
    end = ' marker-end="url(#head)"' if head else ""
    dash = ' stroke-dasharray="4 3"' if dashed else ""
    at, anchor, height = x1 + (x2 - x1) // 2, "middle", y1 - 3
    if y1 != y2:  # a slanted arrow has its words where it begins; a second copy, where it ends
        anchor = "start" if (x2 > x1) != dashed else "end"
        at, height = (x2, y2 - 3) if dashed else (x1, y1 - 3)
    text = f'<text x="{at}" y="{height}" text-anchor="{anchor}" fill="{colour}" font-size="10">{escape(label)}</text>'
    return f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" stroke="{colour}"{dash}{end}/>{text}'


def _draw_marks(rows: list[Row], x: dict[str, int], y: dict[int, int]) -> Iterable[str]:
    for row in rows:
        event = row.event
        if event is None:
            continue
        colour, word = MARKS[event.what]
        shown = f"{word} {event.about}".rstrip()
        if event.what == "told":
            shown = f"told {event.data.get('status', '')}"
        elif event.what in ("frozen", "cut off", "down", "suspended", "clock set"):
            shown = f"{word} {event.data['seconds']} s"
        where, height = x[row.lane], y[id(row)]
        title = f"<title>{escape(describe(event))}</title>"
        yield f'<circle cx="{where}" cy="{height}" r="4" fill="{colour}">{title}</circle>'
        yield f'<text x="{where + 8}" y="{height + 4}" fill="{colour}">{escape(shown)}</text>'
