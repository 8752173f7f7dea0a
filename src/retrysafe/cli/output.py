"""What commands print. A table on a terminal (by Rich, if it is installed), the same columns separated by two spaces
when the output goes elsewhere, and JSON lines with `--json`. Rows are printed as they come: no list is kept."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from retrysafe.core.times import age_seconds, format_age

__all__ = ["age_seconds", "format_age"]

Row = Sequence[Any]

PROGRESS_EVERY_RECORDS = 20_000


def print_json(value: Mapping[str, Any]) -> None:
    print(json.dumps(value, ensure_ascii=False))


def print_table(columns: Sequence[str], rows: Iterable[Row], widths: Sequence[int] = ()) -> int:
    """Print rows under their columns; return how many. On a terminal the rows are collected for the widths, so a
    caller limits them. No cell has a control character."""
    safe_rows = ([printable(cell) for cell in row] for row in rows)
    if sys.stdout.isatty():
        return _print_on_terminal(columns, list(safe_rows))
    number = 0
    for cells in safe_rows:
        padded = [cell.ljust(width) for cell, width in zip(cells, widths, strict=False)] + cells[len(widths) :]
        print("  ".join(padded).rstrip())
        number += 1
    return number


def _print_on_terminal(columns: Sequence[str], rows: list[list[str]]) -> int:
    if not rows:
        return 0
    try:
        from rich.console import Console
        from rich.table import Table
        from rich.text import Text
    except ImportError:
        _print_aligned(columns, rows)
        return len(rows)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a key is not markup
    Console().print(table)
    return len(rows)


def _print_aligned(columns: Sequence[str], rows: list[list[str]]) -> None:
    lines = [list(columns), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def print_note(text: str) -> None:
    """For people, on standard error: standard output has only the result."""
    print(text, file=sys.stderr, flush=True)


def print_pairs(pairs: Mapping[str, Any]) -> None:
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        print(f"{name:{width}}  {printable(value)}")


def printable(value: Any) -> str:
    """A value without control characters: a stored text must not move the cursor of a terminal."""
    return "".join(each if each.isprintable() else "?" for each in str(value))


def shorten(text: str, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


class ProgressLine:
    """Says on standard error how far a long command is, on a terminal in one line."""

    def __init__(self, what: str, every: int = 5_000) -> None:
        self._what, self._every, self._last, self._shown = what, every, 0, False

    def advance(self, number: int, percent: int | None = None) -> None:
        """`percent`: about how much of the store was read, if that is known."""
        if number - self._last >= self._every:
            self._last = number
            self._shown = True
            ending = "\r" if sys.stderr.isatty() else "\n"
            about = "" if percent is None else f", about {percent} % of the store read"
            print(f"{number:,} {self._what}{about}", end=ending, file=sys.stderr, flush=True)

    def end(self) -> None:
        if self._shown and sys.stderr.isatty():
            print(file=sys.stderr)


def make_progress_reporter() -> Callable[[int], None]:
    """Return a function that prints the progress of a long search on standard error."""
    last = 0

    def report(examined: int) -> None:
        nonlocal last
        if examined - last >= PROGRESS_EVERY_RECORDS:
            last = examined
            print(f"{examined:,} records examined", file=sys.stderr, flush=True)

    return report
