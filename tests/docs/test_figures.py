"""Figures that other pages repeat are those of the speed page: a new run of the benchmarks leaves no old one behind."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
CHOICES = [(what, store) for what in ("new keys", "replays") for store in ("Redis", "PostgreSQL", "SQLite")]
"""The columns of the comparison's tables."""
OTHER_NAMES = {"retrysafe": "ours"}
"""Rows that have another name on the speed page."""
PAIRS = {
    "PostgreSQL 18": ("PostgreSQL, async", "ours"),
    "the same without batching": ("PostgreSQL, async", "ours, batching off"),
    "Redis (Valkey 9.1), `appendfsync always`": ("Redis (appendfsync always), async", "ours"),
    "the same without an append-only file": ("Redis (no append-only file), async", "ours"),
    "SQLite, `synchronous=FULL`": ("SQLite (synchronous=FULL), async", "ours"),
    "MySQL 9.7": ("MySQL, async", "ours"),
    "MariaDB": ("MariaDB, async", "ours"),
    "MongoDB (majority, journal)": ("MongoDB (majority, journal), async", "ours"),
    "DynamoDB's stand-in (Dynoxide)": ("DynamoDB (Dynoxide), async", "ours"),
}
"""Rows of the capacity page: the title on the speed page, and its row. 128 callers are the last column but one."""


class Figure(NamedTuple):
    """A cell of the speed page: `0.44 [0.43..0.44]<br>10.1 / 40 ms`."""

    ratio: str
    times: str


def read(name: str) -> str:
    return (ROOT / name).read_text()


def read_rows(text: str) -> dict[str, list[str]]:
    """The cells of a table's rows, by the first one without its remark."""
    rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in re.findall(r"^\|.*", text, re.MULTILINE)]
    return {re.sub(r" \((?:wrong answers|thread pool)\)$", "", first): cells for first, *cells in rows}


def read_speed() -> dict[str, dict[str, list[str]]]:
    _, *parts = read("docs/explanation/speed.md").split("\n### ")
    return {part.partition("\n")[0]: read_rows(part) for part in parts}


SPEED = read_speed()


def find_table(title: str) -> dict[str, list[str]]:
    """The one whose title begins so."""
    (found,) = [rows for each, rows in SPEED.items() if each.startswith(f"{title}:")]
    return found


def find(title: str, row: str, column: int = 0) -> Figure:
    ratio, _, rest = find_table(title)[row][column].partition(" ")
    return Figure(ratio, rest.partition("<br>")[2].removesuffix(" ms"))


def find_web(place: str, what: str, row: str) -> str:
    return find(f"FastAPI, {place}, {what}", row).ratio


@pytest.mark.parametrize(("number", "place"), [(1, "in front of the application"), (2, "inside")])
def test_the_comparison_repeats_the_speed_page(number: int, place: str) -> None:
    rows = read_rows(read("docs/explanation/comparison.md").split("| | new keys, Redis |")[number].split("\n\n")[0])
    named = {name: cells for name, cells in rows.items() if name[0].isalpha() and name != "new keys, PostgreSQL"}
    assert len(named) == 4
    for name, cells in named.items():
        for (what, store), cell in zip(CHOICES, cells, strict=True):
            row = f"{OTHER_NAMES.get(name, name)}, {store}"
            there = row in find_table(f"FastAPI, {place}, {what}")
            assert cell == (find_web(place, what, row) if there else "–"), (what, row)


@pytest.mark.parametrize("row", PAIRS)
def test_the_page_on_capacity_repeats_the_times_of_a_pair(row: str) -> None:
    title, name = PAIRS[row]
    _, times = read_rows(read("docs/explanation/capacity.md"))[row]
    shown, measured = (
        [float(each) for each in words.split(" / ")]
        for words in (times.removesuffix(" ms"), find(title, name, -2).times)
    )
    assert shown == pytest.approx(measured, rel=0.02), "rounded"


def list_sentences() -> list[tuple[str, str]]:
    front, inside = "in front of the application", "inside"
    new, other = (find_web(front, "new keys", f"{whose}, PostgreSQL") for whose in ("ours", "idemkit"))
    decorator = [find_web(inside, what, "ours, PostgreSQL") for what in ("new keys", "replays")]
    none = [find_web(inside, "no key", f"{who}, Redis") for who in ("idempotency-kit", "ours")]
    drf = [find("Django REST framework, replays", f"{whose}, Redis").ratio for whose in ("drf-idempotency", "ours")]
    (growth,) = [rows["10,000,000 rows"] for title, rows in SPEED.items() if "as the table grows" in title]
    (beside,) = [rows for title, rows in SPEED.items() if "beside the reaper" in title]
    reaper = next(cells for name, cells in beside.items() if name.startswith("reaper: "))  # the worker's own
    one, many, slower = (cell.partition(" ")[0] for cell in (growth[0], growth[1], reaper[0]))
    return [
        ("README.md", f"new keys {new}, which is {float(new) / float(other):.1f} times the next package"),
        ("README.md", f"replays {find_web(front, 'replays', 'ours, PostgreSQL')}, because"),
        ("README.md", f"inside FastAPI, {decorator[0]} and {decorator[1]}."),
        ("docs/explanation/comparison.md", f"({drf[0]} and {drf[1]} of the bare application)"),
        ("docs/explanation/comparison.md", f"({none[0]}; ours {none[1]})"),
        ("docs/explanation/capacity.md", f"{one} times (1 caller) and {many} times (16 callers)"),
        ("docs/explanation/capacity.md", f"is {slower} times that without it"),
    ]


@pytest.mark.parametrize(("page", "words"), list_sentences())
def test_a_sentence_repeats_the_speed_page(page: str, words: str) -> None:
    assert words in " ".join(read(page).split())
