"""Operations: the steps of each as a diagram with where its unfinished runs stand, and the runs themselves."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from itertools import islice

from retrysafe.console.access import LOOK
from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.step_diagram import draw_operation
from retrysafe.console.visit import Visit
from retrysafe.core.records import Record
from retrysafe.core.states import STATES, State
from retrysafe.errors import UsageError
from retrysafe.operators.runs import RunSearch, find_operations

EXAMINED_ROWS = 2_000
"""Records of each state that one page reads at most."""
SHOWN_RUNS = 200
UNFINISHED = (State.UNCERTAIN, State.CLAIMED)


def show_operations(visit: Visit) -> ConsoleResponse:
    state, name = visit.request.param("state"), visit.request.param("name")
    if state and state not in STATES:
        raise UsageError(f"state {state!r}: there are {', '.join(STATES)}")
    search = RunSearch(visit.safe, EXAMINED_ROWS, examine=EXAMINED_ROWS)
    found = search.iter_state(STATES[state]) if state else iter_unfinished(search)
    seen = (run for run in found if (not name or run.target.partition("@")[0] == name) and visit.may(LOOK, run))
    runs = list(islice(seen, SHOWN_RUNS))
    operations = find_operations(visit.safe, name or None) if visit.safe.operations else []
    return visit.render(
        "operations.html",
        title="Operations",
        drawn=[(each, draw_operation(each, count_standing(runs, each.target))) for each in operations],
        runs=runs,
        state=state,
        name=name,
        states=list(STATES),
        names=sorted({each.name for each in visit.safe.operations.values()}),
        now=visit.now,
        bounded=bool(search.unfinished) or len(runs) == SHOWN_RUNS,
    )


def iter_unfinished(search: RunSearch) -> Iterable[Record]:
    for state in UNFINISHED:
        yield from search.iter_runs(state)
    yield from search.iter_runs(State.RELEASED, resting=True)


def count_standing(runs: Iterable[Record], target: str) -> dict[str, int]:
    """How many unfinished runs of an operation stand at each recovery point."""
    return Counter(run.point or "started" for run in runs if run.target == target and run.state is not State.COMPLETED)
