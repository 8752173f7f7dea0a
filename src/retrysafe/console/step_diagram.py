"""An operation as SVG: its steps in the order of declaration, where unfinished runs stand, or how far one run came.
Only presentation attributes and classes: the policy of the page blocks `style=`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from retrysafe.operations.diagram import Diagrammable, describe_step
from retrysafe.operations.steps import Step

WIDTH, BOX, GAP, TOP = 350, 60, 18, 10
"""As wide as a phone shows without scrolling."""
LEFT = 6
BOX_WIDTH = 338


class DiagramRow(NamedTuple):
    name: str
    words: str
    kind: str
    undo: str
    state: str
    """How this step stands in one run; empty in the diagram of all runs."""
    runs: int


def draw_operation(
    operation: Diagrammable, standing: Mapping[str, int], ledger: Iterable[Mapping[str, Any]] = ()
) -> Markup:
    """`standing`: how many unfinished runs stand at each recovery point. `ledger`: the steps of one run."""
    states = {str(entry["step"]): str(entry["state"]) for entry in ledger}
    rows = [_build_row(step, states, standing) for step in operation.steps.values()]
    started = standing.get("started", 0) + standing.get("", 0)
    rows.insert(0, DiagramRow("started", "the claim is committed", "start", "", "", started))
    height = TOP * 2 + len(rows) * (BOX + GAP) - GAP
    parts = [_draw_row(row, TOP + place * (BOX + GAP)) for place, row in enumerate(rows)]
    arrows = [_draw_arrow(TOP + place * (BOX + GAP) + BOX) for place in range(len(rows) - 1)]
    label = escape(f"steps of {operation.target}: " + "; ".join(_describe(row) for row in rows))
    # Every text was escaped where it was put in.
    return Markup(
        '<svg class="diagram" role="img" aria-label="{}" viewBox="0 0 {} {}" width="{}" height="{}">{}{}</svg>'
    ).format(label, WIDTH, height, WIDTH, height, Markup("").join(arrows), Markup("").join(parts))


def _build_row(step: Step, states: Mapping[str, str], standing: Mapping[str, int]) -> DiagramRow:
    undo = step.undo.__name__ if step.undo is not None else ""
    return DiagramRow(
        step.name, describe_step(step), step.kind, undo, states.get(step.name, ""), standing.get(step.name, 0)
    )


def count_runs(row: DiagramRow) -> str:
    return f"{row.runs} run{'s' if row.runs != 1 else ''}"


def _describe(row: DiagramRow) -> str:
    more = [f"{count_runs(row)} here"] if row.runs else []
    more += [row.state] if row.state else []
    return f"{row.name}{' (' + ', '.join(more) + ')' if more else ''}"


def _draw_row(row: DiagramRow, top: int) -> Markup:
    shape = Markup('<rect class="step {} {}" x="{}" y="{}" width="{}" height="{}" rx="{}"/>').format(
        row.kind, f"is-{row.state}" if row.state else "", LEFT, top, BOX_WIDTH, BOX, 4 if row.kind == "local" else 16
    )
    name = Markup('<text class="name" x="{}" y="{}">{}</text>').format(LEFT + 14, top + 18, row.name)
    words = Markup('<text class="words" x="{}" y="{}">{}</text>').format(LEFT + 14, top + 35, row.words)
    beside = [f"{count_runs(row)} here"] if row.runs else []
    beside += [row.state] if row.state else []
    beside += [f"undo: {row.undo}"] if row.undo else []
    more = Markup('<text class="beside" x="{}" y="{}">{}</text>').format(LEFT + 14, top + 51, " · ".join(beside))
    return shape + name + words + more


def _draw_arrow(bottom: int) -> Markup:
    x = LEFT + 40
    return Markup('<path class="arrow" d="M{x} {a} V{b} m-4 -6 l4 6 l4 -6" fill="none"/>').format(
        x=x, a=bottom, b=bottom + GAP - 1
    )
