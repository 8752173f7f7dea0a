"""Which clients send keys: statistics for rolling out required keys.

Requests are counted by route, client and what was sent. A client is a hash of its scope (S28). Clients choose the names
(the path of a route that is not listed is a name, too), so the number of rows is limited. The rows that were not used
for the longest time are added to the row `other`. A flood of random paths or clients pushes out idle rows; a row in use
comes back with its next request, and the sums stay right.
"""

from __future__ import annotations

import hashlib
import json
import os
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal, get_args

from retrysafe.core.keys import MAX_TEXT_CHARS, frame
from retrysafe.engine.figures import MAX_LABEL_VALUES, Figures, Labels

UsageKind = Literal[
    "keyed", "missing", "malformed", "generated", "unclaimed",
    "would_run", "would_replay", "would_mismatch", "would_conflict", "would_refuse",
]  # fmt: skip

USAGE_KINDS: tuple[UsageKind, ...] = get_args(UsageKind)
OTHER_NAME = "other"
SNAPSHOT_VERSION = 1

FIGURE_KEYS: dict[UsageKind, str] = {
    "keyed": "present",
    "missing": "missing",
    "generated": "missing",
    "malformed": "malformed",
}
"""What `retrysafe.requests` calls what a request sent. The others are about what became of it."""

MAX_ROWS = 4_096
"""Rows (one per route and client). Five megabytes at worst, if every row has its own route with a long name."""

MAX_CLIENTS = 1_000
"""Clients per route."""

MAX_FIRSTS_PER_HOUR = 100
"""How many "first of its kind" results `count` gives per hour: each is a line in the log."""
FIRSTS_WINDOW_SECONDS = 3_600.0

_KIND_INDEX = {kind: at for at, kind in enumerate(USAGE_KINDS)}

UsageRow = list[int]
Clients = OrderedDict[str, UsageRow]


class KeyUsageStats:
    """The table. The clock is read only when something is counted for the first time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._routes: OrderedDict[str, Clients] = OrderedDict()
        self._rest: UsageRow = _new_row()
        """The sum of evicted routes."""
        self._rows = 0
        self._clock = clock
        self._firsts, self._since = 0, 0.0
        self._lock = threading.Lock()
        self._labels: dict[str, str] = {}
        """What each route of the table is called in figures."""
        self._evicted: dict[str, UsageRow] = {}
        """The sum of evicted routes by their label."""
        self._figures: Figures | None = None

    def report_to(self, figures: Figures) -> None:
        """Let these figures read `retrysafe.requests` from here, so that a request is counted once and not twice. A
        table that several RetrySafe objects share reports to the first."""
        if self._figures is None:
            self._figures = figures
            figures.sources.append(self.count_requests)
            figures.call_when_tapped(self._become_tapped)

    def _become_tapped(self) -> None:
        self.__class__ = TappedUsageStats

    def count(self, target: str, scope: str, sent: UsageKind, label: str = "") -> bool:
        """Add one. True if it is the first of its kind and should be logged. `label` is the route in figures."""
        client = _hash_scope_cached(scope) if 0 < len(scope) <= MAX_TEXT_CHARS else hash_client(scope)
        at = _KIND_INDEX[sent]
        clients = self._routes.get(target)
        full = self._rows * 2 > MAX_ROWS or (clients is not None and len(clients) * 2 > MAX_CLIENTS)
        if clients is not None and not full and client in clients:
            # No order has to be kept, because nothing is evicted; and no lock: CPython switches threads only at calls
            # and loops, and from the `in` on there is none.
            row = clients[client]
            row[at] += 1
            return row[at] == 1 and self._is_worth_logging()
        with self._lock:
            row = self._find_row(target, client, label)
            row[at] += 1
            return row[at] == 1 and self._is_worth_logging()

    def count_requests(self) -> dict[tuple[str, Labels], int]:
        """`retrysafe.requests`: how many requests sent what as their key, by the label of their route."""
        with self._lock:
            rows = [(label, list(row)) for label, row in self._evicted.items()]
            for route, clients in self._routes.items():
                rows += [(self._labels[route], list(row)) for row in clients.values()]
        found: Counter[tuple[str, Labels]] = Counter()
        for label, row in rows:
            for kind, key in FIGURE_KEYS.items():
                if row[_KIND_INDEX[kind]]:
                    found["requests", (key, label)] += row[_KIND_INDEX[kind]]
        return found

    def table(self) -> dict[tuple[str, str, UsageKind], int]:
        """Counts by (route, client, kind). The client is empty if the principal was not needed."""
        with self._lock:
            rows = [(route, client, row) for route, clients in self._routes.items() for client, row in clients.items()]
            rows.append((OTHER_NAME, OTHER_NAME, list(self._rest)))
            return {
                (route, client, kind): row[at]
                for route, client, row in rows
                for kind, at in _KIND_INDEX.items()
                if row[at]
            }

    def snapshot(self) -> dict[str, Any]:
        """The table as plain data, for `retrysafe rollout`: one per process, as JSON."""
        rows: dict[tuple[str, str], dict[str, int]] = {}
        for (route, client, kind), number in self.table().items():
            rows.setdefault((route, client), {})[kind] = number
        listed = [{"route": route, "client": client, "counts": counts} for (route, client), counts in rows.items()]
        return {"version": SNAPSHOT_VERSION, "rows": listed}

    def write(self, path: str | Path) -> None:
        """Write the snapshot to a file, whole or not at all. Give each process a file of its own."""
        target = Path(path)
        beside = target.with_name(f".{target.name}.{os.getpid()}")
        beside.write_text(json.dumps(self.snapshot()))
        beside.replace(target)

    def _find_row(self, target: str, client: str, label: str) -> UsageRow:
        clients = self._routes.get(target)
        if clients is None:
            clients = self._routes[target] = OrderedDict()
            self._labels[target] = label or target
        self._routes.move_to_end(target)
        row = clients.get(client)
        if row is None:
            row = clients[client] = _new_row()
            self._rows += 1
            while len(clients) > MAX_CLIENTS:
                self._evict_client(clients)
            while self._rows > MAX_ROWS:
                self._evict_row()
        clients.move_to_end(client)
        return row

    def _evict_row(self) -> None:
        """Evict one row of the route that was not used for the longest time."""
        route, clients = next(iter(self._routes.items()))
        if len(clients) > 1:
            self._evict_client(clients)
            return
        (row,) = clients.values()
        _add_row(self._rest, row)
        label = self._labels.pop(route)
        if label not in self._evicted and len(self._evicted) >= MAX_LABEL_VALUES:
            label = OTHER_NAME
        _add_row(self._evicted.setdefault(label, _new_row()), row)
        del self._routes[route]
        self._rows -= 1

    def _evict_client(self, clients: Clients) -> None:
        """Add the client that was not seen for the longest time to `other`."""
        other = clients.get(OTHER_NAME)
        if other is None:
            other = clients[OTHER_NAME] = _new_row()
            self._rows += 1
        clients.move_to_end(OTHER_NAME)
        _, row = clients.popitem(last=False)
        _add_row(other, row)
        self._rows -= 1

    def _is_worth_logging(self) -> bool:
        now = self._clock()
        if now - self._since >= FIRSTS_WINDOW_SECONDS:
            self._firsts, self._since = 0, now
        self._firsts += 1
        return self._firsts <= MAX_FIRSTS_PER_HOUR


class TappedUsageStats(KeyUsageStats):
    """The table of a RetrySafe object whose figures are tapped: each request is told when it is counted. Without a tap
    nothing is asked (engine/figures.py)."""

    def count(self, target: str, scope: str, sent: UsageKind, label: str = "") -> bool:
        if self._figures is not None and sent in FIGURE_KEYS:
            self._figures.tap("requests", (FIGURE_KEYS[sent], label or target), 1)
        return super().count(target, scope, sent, label)


def hash_client(scope: str) -> str:
    if not scope:
        return ""
    # A longer text is not a valid scope: it is not cached.
    return _hash_scope_cached(scope) if len(scope) <= MAX_TEXT_CHARS else _hash_scope(scope)


def _hash_scope(scope: str) -> str:
    return hashlib.sha256(frame("client", scope)).hexdigest()[:16]


_hash_scope_cached = lru_cache(1_000)(_hash_scope)


def _new_row() -> UsageRow:
    return [0] * len(USAGE_KINDS)


def _add_row(total: UsageRow, more: UsageRow) -> None:
    for at, number in enumerate(more):
        total[at] += number
