"""What commands print. A table on a terminal (by Rich, if it is installed), the same columns separated by two spaces
when the output goes elsewhere, and JSON lines with `--json`. Rows are printed as they come: no list is kept. Nothing
that is printed has a control character: a stored text must not move the cursor of a terminal."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from retrysafe.core.times import age_seconds, format_age

__all__ = ["age_seconds", "format_age"]

Row = Sequence[Any]

ENCRYPTED = "(encrypted: give --app MODULE:SAFE instead of a URL)"
"""Printed in the place of bytes that only the application's key ring reads."""

PROGRESS_EVERY_RECORDS = 20_000


def print_json(value: Mapping[str, Any]) -> None:
    plain = (sys.stdout.encoding or "utf-8").lower().replace("-", "") != "utf8"
    print(escape_controls(json.dumps(value, ensure_ascii=plain)))


def escape_controls(text: str) -> str:
    """A JSON text with `\\u009b` in place of the character, and so on."""
    if text.isprintable():
        return text
    return "".join(each if each.isprintable() else json.dumps(each)[1:-1] for each in text)


def print_line(text: str) -> None:
    """Print one line, without control characters."""
    print(printable(text))


def print_table(
    columns: Sequence[str], rows: Iterable[Row], widths: Sequence[int] = (), *, headed: bool = False
) -> int:
    """Print rows under their columns; return how many. On a terminal the rows are collected for the widths, so a
    caller limits them. No cell has a control character. `headed`: the names of the columns go into a pipe, too."""
    safe_rows: Iterable[list[str]] = ([printable(cell) for cell in row] for row in rows)
    if sys.stdout.isatty():
        return _print_on_terminal(columns, list(safe_rows))
    number = 0
    if headed:
        safe_rows = itertools.chain([list(columns)], safe_rows)
        number = -1
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
        table.add_column(column, overflow="fold", no_wrap=column == "id")  # people copy it
    for row in rows:
        table.add_row(*map(Text, row))  # Text: a key is not markup
    Console().print(table)
    return len(rows)


def _print_aligned(columns: Sequence[str], rows: list[list[str]]) -> None:
    lines = [list(columns), *rows]
    widths = [max(len(line[place]) for line in lines) for place in range(len(columns))]
    for line in lines:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def format_count(number: int, noun: str) -> str:
    """`1 record`, `2 records`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def print_note(text: str, end: str = "\n") -> None:
    """For people, on standard error: standard output has only the result. A note that cannot be written is lost."""
    with suppress(OSError):
        print(printable(text), end=end, file=sys.stderr, flush=True)


def print_error(text: str) -> None:
    """An error in one line, without control characters. A server's own text may have several lines."""
    print_note(" ".join(line.strip() for line in text.splitlines()))


def print_pairs(pairs: Mapping[str, Any]) -> None:
    width = max(map(len, pairs), default=0)
    for name, value in pairs.items():
        print(f"{name:{width}}  {printable(format_value(value))}")


def format_value(value: Any) -> Any:
    """A value as people read it, not as Python writes it."""
    if value is None or value == []:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return " ".join(map(str, value)) if isinstance(value, list) else value


def printable(value: Any) -> str:
    """A value without control characters."""
    return "".join(each if each.isprintable() else "?" for each in str(value))


def shorten(text: str, width: int) -> str:
    shown = printable(text)
    return shown if len(shown) <= width else shown[: width - 1] + "…"


class ProgressLine:
    """Says on standard error how far a long command is, in one line that is written again. Only on a terminal: a log
    is not to be filled with it."""

    def __init__(self, what: str, every: int = 5_000) -> None:
        self._what, self._every, self._last, self._shown = what, every, 0, False

    def advance(self, number: int, percent: int | None = None) -> None:
        """`percent`: about how much of the store was read, if that is known."""
        if number - self._last >= self._every and sys.stderr.isatty():
            self._last = number
            self._shown = True
            about = "" if percent is None else f", about {percent} % of the store read"
            print_note(f"{number:,} {self._what}{about}", "\r")

    def end(self) -> None:
        if self._shown:
            print_note("")


def make_progress_reporter() -> Callable[[int], None]:
    """Return a function that prints the progress of a long search on standard error, if that is a terminal."""
    last = 0

    def report(examined: int) -> None:
        nonlocal last
        if examined - last >= PROGRESS_EVERY_RECORDS and sys.stderr.isatty():
            last = examined
            print_note(f"{examined:,} records examined")

    return report


# Where it goes ----------------------------------------------------------------------------------


class PatientOutput:
    """Prints what a command changes, while it changes it. If the output is lost (the disk is full, `| head` has read
    enough), the work goes on; `check` raises the error when it is done."""

    def __init__(self) -> None:
        self._lost: OSError | None = None

    def show(self, print_it: Callable[[], None]) -> None:
        if self._lost is None:
            try:
                print_it()
            except OSError as error:
                self._lost = error

    def check(self) -> None:
        if self._lost is not None:
            raise self._lost


def open_streams() -> None:
    """A stream that was closed (`2>&-`) is replaced: Python would print the notes among the results. A character that
    the terminal's encoding has not is escaped, so that no command fails after its work."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115  # open until the end
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def drop_output() -> None:
    """Nothing more can be written, and Python is not to try and complain at exit."""
    with suppress(OSError):
        number = sys.stdout.fileno()
        os.dup2(os.open(os.devnull, os.O_WRONLY), number)
