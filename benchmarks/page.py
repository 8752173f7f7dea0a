"""The docs' page of figures: tables between two markers of docs/explanation/speed.md, charts in a folder beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from benchmarks.charts import chart
from benchmarks.results import Part, Results
from benchmarks.tables import Row, Table
from benchmarks.verdicts import Verdict, verdicts

PAGE = Path(__file__).resolve().parent.parent / "docs" / "explanation" / "speed.md"
BEGIN, END = "<!-- figures: begin -->", "<!-- figures: end -->"
CHARTS = "speed-charts"
NONE = "No run has been kept yet: `make bench`, then `make bench-page`."


def write(results: Results, page: Path = PAGE) -> str:
    """Everything anew; what it wrote."""
    folder = page.parent / CHARTS
    folder.mkdir(exist_ok=True)
    wanted = charts(results)
    for old in folder.glob("*.svg"):
        if old.name not in wanted:
            old.unlink()
    for name, text in wanted.items():
        (folder / name).write_text(text)
    page.write_text(with_figures(page.read_text(), results))
    return f"{page.name} and {len(wanted)} charts"


def charts(results: Results) -> dict[str, str]:
    return {f"{slug}.svg": chart(table) for slug, table in results.tables().items() if table.rows}


def with_figures(page: str, results: Results | None) -> str:
    before, _, rest = page.partition(BEGIN)
    _, found, after = rest.partition(END)
    if not found:
        raise ValueError(f"the page has no {BEGIN} … {END}; put them where the figures belong")
    inside = figures(results) if results is not None else NONE
    return f"{before}{BEGIN}\n{inside}\n{END}{after}"


def figures(results: Results) -> str:
    asked = verdicts(results.tables())
    parts = [*asked_lines(asked), *(line for part in results.parts.values() for line in part_lines(part))]
    return "\n".join(["", *parts]).rstrip() + "\n"


def asked_lines(asked: list[Verdict]) -> Iterator[str]:
    if not asked:
        return
    met = sum(each.met for each in asked)
    yield from (f"### What was asked: {met} of {len(asked)} met", "", "| | asked | found | |", "|---|---|---|---|")
    for each in asked:
        beside = f" ({each.beside})" if each.beside else ""
        yield f"| {each.what}{beside} | {each.asked} | {each.found} | {'met' if each.met else '**missed**'} |"
    yield ""


def part_lines(part: Part) -> Iterator[str]:
    for table in part.tables:
        yield from (f"### {table.title}", "")
        if table.rows:
            yield from (f"![{table.title}]({CHARTS}/{table.slug}.svg)", "", *table_lines(table), "")
        if table.cells:
            yield from (*word_lines(table), "")
        yield from (f"- {note}" for note in [*table.notes, under(part, table)])
        yield ""


def word_lines(table: Table) -> Iterator[str]:
    for cells in (table.heads, ["---"] * len(table.heads), *table.cells):
        yield "| " + " | ".join(cells) + " |"


def under(part: Part, table: Table) -> str:
    """The circumstances, in a line."""
    pace, about = part.about["pace"], part.about
    servers = "; ".join(["", *about["servers"]])
    return (
        f"{about['when']}; {about['machine']}{servers}; {pace['rounds']} rounds of {pace['seconds']:g} s; "
        f"others used {table.foreign():.1f} cores"
    )


def table_lines(table: Table) -> Iterator[str]:
    """A line for each mode; a column of ratios for each number of callers, p50 / p99 in milliseconds below them."""
    counts = table.callers()
    heads = [f"{count} caller{'s' if count > 1 else ''}" for count in counts]
    yield "| | " + " | ".join([*heads, "CPU µs"]) + " |"
    yield "|---" * (len(counts) + 2) + "|"
    for name in table.names():
        rows = [table.row(name, count) for count in counts]
        mark = " (wrong answers)" if name in table.wrong else ""
        yield f"| {name}{mark} | " + " | ".join([*(cell(table, row) for row in rows), cpu(rows[-1])]) + " |"


def cell(table: Table, row: Row | None) -> str:
    if row is None:
        return ""
    latency = f"{row.median('p50'):.3g} / {row.median('p99'):.3g} ms"
    return f"{table.ratio(row)}<br>{latency}"


def cpu(row: Row | None) -> str:
    """Of the last column: where there are many callers it is the cost that matters."""
    return "" if row is None or not row.median("cpu") else f"{row.median('cpu'):.0f}"
