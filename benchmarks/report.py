"""Results as a file for machines, a table for the docs, and charts drawn by hand."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any
from xml.sax.saxutils import escape

from benchmarks.harness import Row, Table

BAR, GAP, LEFT, WIDTH = 18, 8, 300, 640
COLOURS = ("#8a94a6", "#c3c9d4", "#7fb3d5", "#1f6feb", "#e08a3c", "#59a14f", "#b07aa1")


def save(folder: Path, name: str, about: dict[str, Any], tables: Iterable[Table]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    found = list(tables)
    path = folder / f"{name}.json"
    path.write_text(json.dumps({**about, "tables": [table.plain() for table in found]}, indent=1) + "\n")
    (folder / f"{name}.md").write_text(markdown(about, found))
    for number, table in enumerate(found):
        (folder / f"{name}-{number:02}.svg").write_text(chart(table))
    return path


def markdown(about: dict[str, Any], tables: Iterable[Table]) -> str:
    parts = [f"Run of {about['when']} on {about['machine']}; {'; '.join(about['servers'])}.", ""]
    for table in tables:
        parts += [f"### {table.title}", "", *table_lines(table), ""]
        parts += [f"- {note}" for note in table.notes] + ([""] if table.notes else [])
    return "\n".join(parts)


def table_lines(table: Table) -> list[str]:
    lines = ["| mode | callers | ratio | target | p50 ms | p99 ms | own CPU µs |", "|---|---|---|---|---|---|---|"]
    for row in table.rows:
        target = table.targets.get((row.name, row.callers))
        shown = f"≥ {target:g} {'✓' if row.ratio >= target else '✗'}" if target else ""
        lines.append(
            f"| {row.name} | {row.callers} | {row.ratio:.2f} [{row.least:.2f}..{row.most:.2f}] | {shown} "
            f"| {row.median('p50'):.2f} | {row.median('p99'):.2f} | {row.median('cpu'):.0f} |"
        )
    return lines


def chart(table: Table) -> str:
    """Bars of ratios, a line through the baseline, whiskers for the spread."""
    most = max((row.most for row in table.rows), default=1.0) or 1.0
    scale = (WIDTH - 80) / most
    height = 50 + len(table.rows) * (BAR + GAP)
    names = list(dict.fromkeys(row.name for row in table.rows))
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {LEFT + WIDTH} {height}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        f'<text x="8" y="20" font-size="14" font-weight="600">{escape(table.title)}</text>',
    ]
    for place, row in enumerate(table.rows):
        lines += bar(row, 36 + place * (BAR + GAP), scale, COLOURS[names.index(row.name) % len(COLOURS)])
    one = LEFT + scale
    lines.append(
        f'<line x1="{one:.1f}" y1="30" x2="{one:.1f}" y2="{height - 8}" stroke="#d0342c" stroke-dasharray="3"/>'
    )
    return "\n".join([*lines, "</svg>"]) + "\n"


def bar(row: Row, top: float, scale: float, colour: str) -> list[str]:
    middle = top + BAR / 2
    ends = (LEFT + row.least * scale, LEFT + row.most * scale)
    return [
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(row.name)} · {row.callers}</text>',
        f'<rect x="{LEFT}" y="{top}" width="{row.ratio * scale:.1f}" height="{BAR}" fill="{colour}"/>',
        f'<line x1="{ends[0]:.1f}" y1="{middle}" x2="{ends[1]:.1f}" y2="{middle}" stroke="#333"/>',
        f'<text x="{ends[1] + 6:.1f}" y="{middle + 4}">{row.ratio:.2f}</text>',
    ]
