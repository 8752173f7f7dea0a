"""Charts drawn by hand: bars of ratios, whiskers for the spread, a line through the baseline, a mark for each target.

An SVG stands on a card of its own and follows the reader's light or dark setting, so it can be read on any page.
"""

from __future__ import annotations

from xml.sax.saxutils import escape

from benchmarks.tables import Ratio, Row, Table

BAR, GAP, LEFT, PLOT, RIGHT, TOP = 16, 6, 275, 520, 130, 66
WIDTH = LEFT + PLOT + RIGHT
STYLE = """
:root { color-scheme: light dark }
.card { fill: #ffffff; stroke: #d0d7de }
text { font-family: system-ui, sans-serif; font-size: 12px; fill: #1f2328 }
.title { font-size: 14px; font-weight: 600 }
.faint { fill: #59636e; font-size: 11px }
.grid { stroke: #d0d7de }
.base { stroke: #59636e; stroke-dasharray: 4 3 }
.ours { fill: #0969da } .plain { fill: #8c959f } .other { fill: #bf8700 }
.spread { stroke: #1f2328; stroke-width: 1.4 }
.target { stroke: #cf222e; stroke-width: 2.5 }
.bad { fill: #cf222e } .good { fill: #1a7f37 }
@media (prefers-color-scheme: dark) {
  .card { fill: #0d1117; stroke: #3d444d }
  text { fill: #e6edf3 }
  .faint { fill: #9198a1 }
  .grid { stroke: #2a313c }
  .base { stroke: #9198a1 }
  .ours { fill: #4493f8 } .plain { fill: #656c76 } .other { fill: #d29922 }
  .spread { stroke: #e6edf3 }
  .target { stroke: #ff7b72 }
  .bad { fill: #ff7b72 } .good { fill: #3fb950 }
}
"""
SAYS = {
    "rate": "work per second, as a ratio; longer is better",
    "time": "time of one, as a ratio; shorter is better",
    "p99": "99th percentile, as a ratio; shorter is better",
    "cpu": "processor time of one, as a ratio; shorter is better",
}


def chart(table: Table) -> str:
    """Bars by number of callers, in the order of the table."""
    groups = [(callers, [row for row in table.rows if row.callers == callers]) for callers in table.callers()]
    scale = PLOT / longest(table)
    height = TOP + sum(len(rows) * (BAR + GAP) + 22 for _, rows in groups) + 12
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{escape(table.title, {chr(34): "&quot;"})}">',
        f"<style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="6"/>',
        f'<text class="title" x="16" y="24">{escape(table.title)}</text>',
        f'<text class="faint" x="16" y="42">{says(table)}</text>',
        *grid(scale, longest(table), height),
    ]
    top = TOP
    for callers, rows in groups:
        word = "caller" if callers == 1 else "callers"
        lines.append(f'<text class="faint" x="16" y="{top + 12}">{callers} {word}</text>')
        top += 18
        for row in rows:
            lines += bar(table, row, top, scale)
            top += BAR + GAP
        top += 4
    one = LEFT + scale
    lines.append(f'<line class="base" x1="{one:.1f}" y1="{TOP - 6}" x2="{one:.1f}" y2="{height - 10}"/>')
    return "\n".join([*lines, "</svg>"]) + "\n"


def says(table: Table) -> str:
    rounds = max((len(row.samples) for row in table.rows), default=0)
    mark = "; red: what is asked for" if table.targets else ""
    return escape(
        f"{SAYS[table.measure]}; median of {rounds} rounds, whiskers least to most; dashed: {table.baseline}{mark}"
    )


def longest(table: Table) -> float:
    ends = [table.ratio(row).most for row in table.rows] + [wanted for _, _, wanted in table.targets] + [1.0]
    return max(ends) * 1.02


def grid(scale: float, most: float, height: int) -> list[str]:
    step = next(each for each in (0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 1000) if most / each <= 9)
    lines = []
    for number in range(int(most / step) + 1):
        x = LEFT + number * step * scale
        lines.append(f'<line class="grid" x1="{x:.1f}" y1="{TOP}" x2="{x:.1f}" y2="{height - 12}"/>')
        lines.append(f'<text class="faint" x="{x:.1f}" y="{TOP - 4}" text-anchor="middle">{number * step:g}</text>')
    return lines


def bar(table: Table, row: Row, top: float, scale: float) -> list[str]:
    found, middle = table.ratio(row), top + BAR / 2
    name = row.name + (" (wrong)" if row.name in table.wrong else "")
    return [
        f'<text x="{LEFT - 8}" y="{middle + 4}" text-anchor="end">{escape(name)}</text>',
        f'<rect class="{kind(row.name, table)}" x="{LEFT}" y="{top}" width="{found.middle * scale:.1f}"'
        f' height="{BAR}"/>',
        *whisker(found, middle, scale),
        *mark(table.target(row), top, scale),
        f'<text class="{verdict(table, row)}" x="{LEFT + PLOT + 10}" y="{middle + 4}">{escape(str(found))}</text>',
    ]


def kind(name: str, table: Table) -> str:
    if name.startswith("ours") or table.slug in ("growth", "reaping", "small"):
        return "plain" if name == table.baseline else "ours"
    return "other" if table.slug.startswith(("fastapi", "django")) and not name.startswith("bare") else "plain"


def whisker(found: Ratio, middle: float, scale: float) -> list[str]:
    ends = [LEFT + found.least * scale, LEFT + found.most * scale]
    caps = [f'<line class="spread" x1="{x:.1f}" y1="{middle - 3}" x2="{x:.1f}" y2="{middle + 3}"/>' for x in ends]
    return [f'<line class="spread" x1="{ends[0]:.1f}" y1="{middle}" x2="{ends[1]:.1f}" y2="{middle}"/>', *caps]


def mark(wanted: float | None, top: float, scale: float) -> list[str]:
    if wanted is None:
        return []
    x = LEFT + wanted * scale
    return [f'<line class="target" x1="{x:.1f}" y1="{top - 2}" x2="{x:.1f}" y2="{top + BAR + 2}"/>']


def verdict(table: Table, row: Row) -> str:
    met = table.met(row)
    return "" if met is None else "good" if met else "bad"
