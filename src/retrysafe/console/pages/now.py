"""Now: what is open and how old the oldest is, what this process counted, and the doctor's verdict on the store."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.visit import Visit
from retrysafe.core.backlog import OpenGroup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.engine.figures import Figures
from retrysafe.operators.overview import read_overview
from retrysafe.operators.runs import RunSearch

PREVENTED = ("replayed", "busy", "mismatched", "uncertain")
OUTCOMES = ("new", "reclaimed", *PREVENTED)
EXAMINED_ROWS = 10_000
PASSED_ROWS = 50_000
"""How many open keys of all applications are read for one page."""
SHOWN_RESTING = 200
"""Runs that wait for their next attempt: no more are counted."""


class Counts(NamedTuple):
    """Claims of this process since it started, by outcome."""

    by_outcome: dict[str, int]

    @property
    def total(self) -> int:
        return sum(self.by_outcome.values())

    @property
    def prevented(self) -> int:
        """Requests that did not run a second time."""
        return sum(self.by_outcome[name] for name in PREVENTED)

    def share(self, name: str) -> int:
        """Per cent of all claims."""
        return round(100 * self.by_outcome[name] / self.total) if self.total else 0


def count_claims(figures: Figures) -> Counts:
    found = dict.fromkeys(OUTCOMES, 0)
    for name, _, number in figures.list_counts():
        if name in found:
            found[name] += number
    return Counts(found)


def order_groups(groups: tuple[OpenGroup, ...]) -> list[OpenGroup]:
    """What an operator must decide comes first."""
    return sorted(groups, key=lambda group: (-group.uncertain, -group.lapsed, -group.in_progress))


def find_resting(visit: Visit) -> tuple[list[Record], bool]:
    """Runs that wait for their next attempt, and whether there are more. Stores have an index of them."""
    search = RunSearch(visit.safe, SHOWN_RESTING, examine=EXAMINED_ROWS)
    return list(search.iter_runs(State.RELEASED, resting=True)), bool(search.unfinished)


def show_now(visit: Visit) -> ConsoleResponse:
    overview = read_overview(visit.session, visit.safe.namespace, EXAMINED_ROWS, passed=PASSED_ROWS)
    resting, resting_more = find_resting(visit)
    return visit.render(
        "now.html",
        title="Now",
        resting=resting,
        resting_more=resting_more,
        open=overview.open,
        jobs=overview.jobs,
        groups=order_groups(overview.open.groups),
        claims=count_claims(visit.safe.figures),
        outcomes=OUTCOMES,
        verdict=visit.console.verdict.read(),
        verdict_error=visit.console.verdict.error,
    )
