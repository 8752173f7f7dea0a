"""What each store declares (`Capabilities`), held against what this run saw.

A capability is shown by a test of that store that passed in the place named here. The closing report of a whole run
fails when a store declares something that no test of it has shown: docs/reference/stores.md, which is made of the
declarations, then says more than is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from retrysafe.stores.base import Capabilities
from retrysafe.stores.registry import backends

SHOWN_BY: Mapping[str, tuple[str, ...]] = {
    "sync": ("tests/contract/*-sync-",),
    "async": ("tests/contract/*-async-",),
    "batching": ("tests/contract/*-batched", "tests/batching/test_stores.py"),
    "one grant per attempt": ("tests/races/test_heats.py",),
    "durable": ("tests/faults/test_kill",),
    "shared": ("tests/races/test_heats.py::test_sixty_four_claimers_in_processes",),
    "clock": ("tests/races/test_zombie.py", "tests/contract/test_expiry.py"),
    "transactions": ("tests/transactions/",),
    "outbox": ("tests/contract/test_outbox.py",),
    "lists_by_id": ("tests/contract/test_list_by_id.py",),
    "finds_keys": ("tests/contract/test_list_by_key.py",),
    "backlog": ("tests/contract/test_backlog.py",),
    "wakes": ("tests/waking/",),
}
"""Capability: where the tests are that show it. A `*` stands for anything in between."""

ALWAYS = ("sync", "async", "batching", "one grant per attempt", "clock")
"""What every store has, without saying so."""

NOT_RUN = {"mssql": "no server can be started here; its suite runs where RETRYSAFE_TEST_MSSQL_URL names one"}
"""Stores whose page says so."""

Seen = Mapping[str, set[str]]


def declared(capabilities: Capabilities) -> list[str]:
    """By name: what the store says it can do."""
    optional = ("durable", "shared", "transactions", "outbox", "lists_by_id", "finds_keys", "wakes")
    asked = ["backlog"] if capabilities.backlog != "none" else []
    return [*ALWAYS, *(name for name in optional if getattr(capabilities, name)), *asked]


def seen(reports: Iterable[Any]) -> dict[str, set[str]]:
    """For each store, what the reports of passed tests show of it."""
    found: dict[str, set[str]] = defaultdict(set)
    for report in reports:
        shown = [name for name, places in SHOWN_BY.items() if any(matches(report.nodeid, place) for place in places)]
        for store in (value for name, value in report.user_properties if name == "store"):
            found[store].update(shown)
    return found


def matches(nodeid: str, place: str) -> bool:
    start, _, rest = place.partition("*")
    return nodeid.startswith(start) and rest in nodeid[len(start) :]


def unshown(found: Seen, not_run: Iterable[str]) -> list[str]:
    """What is declared and was not shown, a line each."""
    told = []
    for capabilities in (backend.capabilities for backend in backends().values()):
        store = capabilities.name
        if store in NOT_RUN or store in not_run:
            continue
        missing = [name for name in declared(capabilities) if name not in found.get(store, ())]
        if missing:
            told.append(f"{store} declares what no test of this run has shown: {', '.join(missing)}")
    return told
