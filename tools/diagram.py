"""Write docs/explanation/state-machine.md and its picture from the table in core/states.py.

`--check` fails if one of them is stale.
"""

from __future__ import annotations

import math

from tools import pages

from retrysafe.core.states import STATES, TRANSITIONS, State, Transition

PAGE = pages.ROOT / "docs" / "explanation" / "state-machine.md"

HEAD = """# The state machine

This page is generated from `src/retrysafe/core/states.py` by `make pages`; change the table there.

A record describes one key. Open states (claimed, uncertain) never expire. Settled states (completed, released) expire
by comparison with the store's clock, and an expired record counts as absent.

"""


PICTURE = "![The states of a record and the moves between them; the table below has the same](state-machine.svg)\n\n"
PLACES = {
    "no record": (80, 200),
    "claimed": (290, 120),
    "uncertain": (290, 340),
    "completed": (640, 120),
    "released": (640, 340),
    "gone": (850, 230),
}
MIDDLE = 230
DIAGONAL = 0.3
SVG_HEAD = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 930 460" role="img" font-family="sans-serif"
  font-size="14" text-anchor="middle" fill="#18181b">
<title>The states of a record</title>
<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" orient="auto"><path
  d="M 0 0 L 8 4 L 0 8 z" fill="#3f3f46" stroke="none"/></marker></defs>
<style>path { fill: none; stroke: #3f3f46; marker-end: url(#tip) } marker path { fill: #3f3f46; marker-end: none }
.label { font-size: 12px; paint-order: stroke; stroke: #fff; stroke-width: 4px }</style>
<rect width="930" height="460" rx="8" fill="#fff"/>
"""


def draw_svg(transitions: tuple[Transition, ...]) -> str:
    """The transitions as a picture. Transitions between the same two states are one arrow."""
    labels: dict[tuple[str, str], list[str]] = {}
    for arrow in transitions:
        ends = (_format_end(arrow.source, "no record"), _format_end(arrow.target, "gone"))
        labels.setdefault(ends, []).append(arrow.move)
    parts = [_draw_arrow(*ends, ", ".join(dict.fromkeys(moves))) for ends, moves in labels.items()]
    parts += [_draw_node(name) for name in PLACES]
    return SVG_HEAD + "\n".join(parts) + "\n</svg>\n"


def _draw_node(name: str) -> str:
    x, y = PLACES[name]
    fill = "#eef2ff" if name in STATES else "#f4f4f5"
    box = f'<rect x="{x - 56}" y="{y - 18}" width="112" height="36" rx="18" fill="{fill}" stroke="#3f3f46"/>'
    return f'{box}<text x="{x}" y="{y + 5}" font-weight="bold">{name}</text>'


def _draw_arrow(source: str, target: str, label: str) -> str:
    """A curve that bends to its left, so that two opposite arrows do not cover each other."""
    (x1, y1), (x2, y2) = PLACES[source], PLACES[target]
    if source == target:
        side = -1 if y1 < MIDDLE else 1
        path = f"M {x1 - 22} {y1 + 18 * side} c -16 {52 * side} 60 {52 * side} 44 {3 * side}"
        return f'<path d="{path}"/>{_draw_label(x1, y1 + side * 66 + 4, label)}'
    long = math.hypot(x2 - x1, y2 - y1)
    dx, dy = (x2 - x1) / long, (y2 - y1) / long
    bend = 34
    start, end = _leave(x1, y1, dx, dy), _leave(x2, y2, -dx, -dy)
    cx, cy = (start[0] + end[0]) / 2 + dy * bend, (start[1] + end[1]) / 2 - dx * bend
    path = f"M {start[0]:.0f} {start[1]:.0f} Q {cx:.0f} {cy:.0f} {end[0]:.0f} {end[1]:.0f}"
    along = 0.68 if abs(dx * dy) > DIAGONAL else 0.5  # diagonals cross in the middle
    aside = 24 + 30 * (abs(dy) > abs(dx))
    x = start[0] + (end[0] - start[0]) * along + dy * aside
    y = start[1] + (end[1] - start[1]) * along - dx * aside
    return f'<path d="{path}"/>{_draw_label(x, y, label)}'


def _leave(x: float, y: float, dx: float, dy: float) -> tuple[float, float]:
    """The point at which a line from the middle of a box leaves it, with a small gap."""
    reach = min(62 / abs(dx) if dx else math.inf, 24 / abs(dy) if dy else math.inf)
    return x + dx * reach, y + dy * reach


def _draw_label(x: float, y: float, label: str) -> str:
    return f'<text class="label" x="{x:.0f}" y="{y:.0f}">{label}</text>'


def build_table(transitions: tuple[Transition, ...]) -> str:
    rows = [
        f"| {_format_cell(arrow.source)} | {arrow.move} | {_format_cell(arrow.target)} | {arrow.when} | {arrow.who} |"
        for arrow in transitions
    ]
    return "| from | move | to | when | who |\n|---|---|---|---|---|\n" + "\n".join(rows) + "\n"


def build_page() -> str:
    states = "\n".join(f"- **{state.value}**: {_read_docstring(state)}" for state in State)
    return HEAD + PICTURE + states + "\n\n" + build_table(TRANSITIONS)


def _read_docstring(state: State) -> str:
    """The docstring below an enum member. Python does not keep it, so it is read from the source."""
    source = (PAGE.parents[2] / "src" / "retrysafe" / "core" / "states.py").read_text()
    after = source.split(f'{state.name} = "{state.value}"', 1)[1]
    return " ".join(after.split('"""')[1].split())


def _format_end(state: State | None, otherwise: str) -> str:
    return otherwise if state is None else state.value


def _format_cell(state: State | None) -> str:
    return "–" if state is None else state.value


if __name__ == "__main__":
    pages.write_page(PAGE, build_page())
    pages.write_page(PAGE.with_suffix(".svg"), draw_svg(TRANSITIONS))
