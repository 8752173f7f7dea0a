"""What was asked of the library's speed, and what a run says to it. Nothing is asserted: a miss is shown as a miss."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from benchmarks.stores import OFF, ON
from benchmarks.tables import Measure, Ratio, Row, Table, ratio
from benchmarks.web import STORES

PEER_FACTOR = 1.8
BESIDE_PEERS = tuple(f"fastapi-{place}-{kind}" for place in ("edge", "inside") for kind in ("new-keys", "replays"))
TAIL = (
    "postgres-async",
    "postgres-threads",
    "sqlite-async",
    "sqlite-threads",
    "redis-memory",
    "redis-aof",
    "redis-threads",
    "mysql-async",
    "mysql-threads",
    "mariadb-async",
    "mariadb-threads",
    "mongodb-async",
    "mongodb-threads",
)


class Verdict(NamedTuple):
    """One thing that was asked."""

    what: str
    asked: str
    found: Ratio
    met: bool
    beside: str = ""


def verdicts(tables: dict[str, Table]) -> list[Verdict]:
    """Of whatever was measured; parts that were not run say nothing."""
    found = [each for table in tables.values() for each in of_targets(table)]
    for slug in BESIDE_PEERS:
        if slug in tables:
            found += against_peers(tables[slug])
    for slug in TAIL:
        if slug in tables:
            found += tails(tables[slug])
    return found


def of_targets(table: Table) -> Iterator[Verdict]:
    for mode, callers, wanted in table.targets:
        row = table.row(mode, callers)
        if row is not None:
            asked = f"{'≥' if table.measure == 'rate' else '≤'} {wanted:g}"
            subject = short(table.title) + (f", {mode}" if mode != ON else "")
            yield Verdict(f"{subject}, {people(callers)}", asked, table.ratio(row), bool(table.met(row)))


def against_peers(table: Table) -> Iterator[Verdict]:
    """Ours against whoever is best on the same store, at the same place."""
    for store in STORES:
        mine = next((row for row in table.rows if row.name == f"ours, {store}"), None)
        rivals = [row for row in table.rows if is_peer(row.name, store) and row.name not in table.wrong]
        if mine is not None and rivals:
            best = max(rivals, key=lambda row: row.median("rate"))
            what = f"{short(table.title)}, {mine.name}: against the best other package"
            yield verdict(what, mine, best, "rate", PEER_FACTOR)


def is_peer(name: str, store: str) -> bool:
    return f", {store}" in name and not name.startswith(("ours", "bare"))


def tails(table: Table) -> Iterator[Verdict]:
    """Batching must not be paid for by the slowest."""
    on, off = table.row(ON, 128), table.row(OFF, 128)
    if on is not None and off is not None:
        yield verdict(f"{short(table.title)}, 128 callers: p99 with batching against without", on, off, "p99", 1.0)


def verdict(what: str, mine: Row, base: Row, measure: Measure, wanted: float) -> Verdict:
    found = ratio(mine, base, measure)
    met = found.middle >= wanted if measure == "rate" else found.middle <= wanted
    beside = base.name if measure == "rate" else ""
    return Verdict(what, f"{'≥' if measure == 'rate' else '≤'} {wanted:g}", found, met, beside)


def short(title: str) -> str:
    """The part of a title before its explanation."""
    return title.partition(":")[0]


def people(callers: int) -> str:
    return "1 caller" if callers == 1 else f"{callers} callers"
