"""Who sends keys: what a rollout is steered by.

Counts by route, client and what was sent. A client is a hash of its scope (S28). Names come from outside (a path of no
listed route is a name, too), so the table is bounded by rows, and forgets by use: what was not asked for longest is
added up under `other`. A flood of paths or clients that nobody ever uses again pushes out what is idle; what is used
comes back with its next request, and the sums stay right.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from functools import lru_cache
from typing import Literal, get_args

from retrysafe.core.keys import MAX_TEXT_CHARS, frame

UsageKind = Literal[
    "keyed", "missing", "malformed", "generated", "unclaimed",
    "would_run", "would_replay", "would_mismatch", "would_conflict", "would_refuse",
]  # fmt: skip

KINDS: tuple[UsageKind, ...] = get_args(UsageKind)
OTHER = "other"

MAX_ROWS = 4_096
"""Rows of a route and a client. Together five megabytes at worst: each with a route of its own and a long name."""

MAX_CLIENTS = 1_000
"""Clients of one route."""

MAX_FIRSTS_PER_HOUR = 100
"""How often in an hour something is called the first of its kind: each is a line in the log."""
FIRSTS_WINDOW_SECONDS = 3_600.0

_AT = {kind: at for at, kind in enumerate(KINDS)}

UsageRow = list[int]
Clients = OrderedDict[str, UsageRow]


class KeyUsageStats:
    """The table. The clock is only asked when something is seen for the first time."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._routes: OrderedDict[str, Clients] = OrderedDict()
        self._rest: UsageRow = _new_row()
        """What belongs to no route any more."""
        self._rows = 0
        self._clock = clock
        self._firsts, self._since = 0, 0.0
        self._lock = threading.Lock()

    def count(self, target: str, scope: str, sent: UsageKind) -> bool:
        """Add one; whether this is the first of its kind, and worth a line."""
        client = client_name(scope)
        with self._lock:
            row = self._find_row(target, client)
            row[_AT[sent]] += 1
            return row[_AT[sent]] == 1 and self._is_worth_logging()

    def table(self) -> dict[tuple[str, str, UsageKind], int]:
        """Counts by (route, client, what it sent). The client is empty where nobody had to say who asks."""
        with self._lock:
            rows = [(route, client, row) for route, clients in self._routes.items() for client, row in clients.items()]
            rows.append((OTHER, OTHER, list(self._rest)))
            return {
                (route, client, kind): row[at] for route, client, row in rows for kind, at in _AT.items() if row[at]
            }

    def _find_row(self, target: str, client: str) -> UsageRow:
        clients = self._routes.get(target)
        if clients is None:
            clients = self._routes[target] = OrderedDict()
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
        """One row less, of the route that was not asked for longest."""
        route, clients = next(iter(self._routes.items()))
        if len(clients) > 1:
            self._evict_client(clients)
            return
        (row,) = clients.values()
        _add_row(self._rest, row)
        del self._routes[route]
        self._rows -= 1

    def _evict_client(self, clients: Clients) -> None:
        """The client that was not seen longest, into `other`."""
        other = clients.get(OTHER)
        if other is None:
            other = clients[OTHER] = _new_row()
            self._rows += 1
        clients.move_to_end(OTHER)
        _, row = clients.popitem(last=False)
        _add_row(other, row)
        self._rows -= 1

    def _is_worth_logging(self) -> bool:
        now = self._clock()
        if now - self._since >= FIRSTS_WINDOW_SECONDS:
            self._firsts, self._since = 0, now
        self._firsts += 1
        return self._firsts <= MAX_FIRSTS_PER_HOUR


def client_name(scope: str) -> str:
    if not scope:
        return ""
    return (
        _short_name(scope) if len(scope) <= MAX_TEXT_CHARS else _hash_scope(scope)
    )  # a long one is no scope, and not kept


def _hash_scope(scope: str) -> str:
    return hashlib.sha256(frame("client", scope)).hexdigest()[:16]


_short_name = lru_cache(1_000)(_hash_scope)


def _new_row() -> UsageRow:
    return [0] * len(KINDS)


def _add_row(total: UsageRow, more: UsageRow) -> None:
    for at, number in enumerate(more):
        total[at] += number
