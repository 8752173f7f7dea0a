"""The page of capabilities is what the stores declare, and a declaration that nobody showed is found out."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
from tools import stores_page

from retrysafe.stores.base import Capabilities
from retrysafe.stores.registry import backends
from tests import evidence

ROOT = Path(__file__).resolve().parents[2]


def test_the_page_is_what_the_stores_declare() -> None:
    assert stores_page.PAGE.read_text() == stores_page.build_page(), "run `make pages`"


def test_every_capability_has_a_column_or_a_place() -> None:
    """A promise is entered in both, or this fails. A hint only says how to use a store well, and needs neither."""
    promises = {"name", "durable", "shared", "transactions", "clock", "outbox", "lists_by_id", "backlog", "wakes"}
    promises |= {"finds_keys"}
    hints = {"mixed_batches", "max_in_flight", "native_batching", "has_install_id", "caches"}
    assert set(Capabilities.__dataclass_fields__) == promises | hints
    assert promises - {"name"} <= set(evidence.SHOWN_BY)


@pytest.mark.parametrize("place", [place for places in evidence.SHOWN_BY.values() for place in places])
def test_the_places_are_there(place: str) -> None:
    start = place.partition("*")[0].partition("::")[0]
    folder, name = (ROOT / start).parent if not start.endswith("/") else ROOT / start, Path(start).name
    assert any(file.name.startswith(name) or start.endswith("/") for file in folder.iterdir())


def passed(store: str, nodeid: str) -> SimpleNamespace:
    return SimpleNamespace(nodeid=nodeid, user_properties=[("store", store)])


def all_shown() -> list[SimpleNamespace]:
    """One passed test for each thing each store declares."""
    return [
        passed(backend.capabilities.name, evidence.SHOWN_BY[what][0].replace("*", "test_claim.py::test_x[s"))
        for backend in backends().values()
        for what in evidence.declared(backend.capabilities)
    ]


def test_a_run_that_shows_everything_lacks_nothing() -> None:
    assert evidence.unshown(evidence.seen(all_shown()), []) == []


def test_what_nobody_showed_is_told() -> None:
    without = [
        report
        for report in all_shown()
        if report.user_properties != [("store", "sqlite")] or "faults" not in report.nodeid
    ]
    assert evidence.unshown(evidence.seen(without), []) == [
        "sqlite declares what no test of this run has shown: durable"
    ]
    assert evidence.unshown(evidence.seen(without), ["sqlite"]) == [], "its server was not there, which is told by name"


def test_a_store_that_nobody_tests_is_told() -> None:
    without = [report for report in all_shown() if report.user_properties != [("store", "memory")]]
    (line,) = evidence.unshown(evidence.seen(without), [])
    assert line.startswith("memory declares what no test of this run has shown: sync, async, batching")
