"""Who sends keys, per route and client: the censuses of running processes, added up."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from retrysafe.errors import UsageError

WOULD_FAIL = ("missing", "malformed", "would_refuse", "would_mismatch")


class RouteUse(NamedTuple):
    """What one route's clients send. `clients` is empty in the sum over all clients."""

    route: str
    client: str
    counts: Mapping[str, int]

    @property
    def requests(self) -> int:
        """How many requests were counted. What a request would have got is counted beside that."""
        return sum(self.counts.get(kind, 0) for kind in ("keyed", "missing", "malformed", "generated", "unclaimed"))

    @property
    def verdict(self) -> str:
        """What `mode="required"` would mean for this route today."""
        if not self.requests:
            return "no requests"
        failing = [name for name in WOULD_FAIL if self.counts.get(name, 0)]
        return "ready for required" if not failing else "not yet: " + ", ".join(failing)


def parse_census(text: str, source: str) -> list[dict[str, Any]]:
    """The rows of one census, from its JSON text."""
    try:
        found = json.loads(text)
        rows = found["rows"]
        if not all(isinstance(row["counts"], dict) for row in rows):
            raise TypeError("counts")
    except (ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"{source}: not a census (census.snapshot() as JSON): {type(error).__name__} {error}"
        ) from error
    return list(rows)


def add_up(rows: Iterable[Mapping[str, Any]], *, by_client: bool) -> list[RouteUse]:
    """Rows of several processes as one table, sorted."""
    sums: dict[tuple[str, str], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for row in rows:
        place = (str(row["route"]), str(row["client"]) if by_client else "")
        for kind, number in row["counts"].items():
            sums[place][kind] += int(number)
    return [RouteUse(*place, dict(counts)) for place, counts in sorted(sums.items())]


def summarize_use(use: RouteUse) -> dict[str, Any]:
    return {
        "route": use.route,
        "client": use.client or None,
        "requests": use.requests,
        "verdict": use.verdict,
        "counts": dict(use.counts),
    }
