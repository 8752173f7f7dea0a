"""A deployment that changes the application's code and the release of retrysafe at once, and its rollback: what one
began is finished by the other, or refused and left to who began it. Nothing is charged or shipped twice, nothing
undone."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.releases.conftest import met
from tests.releases.deployments import BOUNDARIES, CHANGES
from tests.releases.places import MAIN, World
from tests.releases.processes import At

pytestmark = pytest.mark.xdist_group("releases")

KILLED = {"signal": signal.SIGKILL, "said": None}

UNNAMED = {
    ("step added before", "charge:after"),
    ("step added after", "ship:after"),
    ("step added after", "finish:after"),
}
"""What the release before sent without a trace carries no name (docs/howto/deploying.md): code that puts a step before
it sends it under another key. Nothing can be done about it when it is found; so it is not to be deployed so."""


ON = [
    pytest.param(store, marks=[pytest.mark.store(store), *([] if store == "sqlite" else [pytest.mark.campaign])])
    for store in MAIN
]


@pytest.fixture(params=ON)
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    yield from met(request, tmp_path)


def asked(side: At, change: str, key: str, die: str = "") -> dict[str, object]:
    """In a process of its own, as after a deployment."""
    told = side.dying("deployed", change=change, key=key, die=die)
    if die:
        assert told == KILLED
        return {}
    said: dict[str, object] = told["said"]["ok"]
    return said


@pytest.mark.parametrize("change", CHANGES)
def test_begun_by_one_with_its_code_and_met_by_the_other_with_other_code(world: World, first: str, change: str) -> None:
    """The old release with the old code and the new one with the new code, as in a deployment; `first` begins."""
    begins, meets = world.sides(first)
    its_code, other_code = ("none", change) if first == "old" else (change, "none")
    boundaries = [
        each
        for each in BOUNDARIES
        if not (its_code == "step removed" and each.startswith("ship"))  # it never comes there
        and not (first == "old" and (change, each) in UNNAMED)
    ]
    for boundary in boundaries:
        asked(begins, its_code, boundary, die=boundary)
    world.lapse()
    for boundary in boundaries:
        told = asked(meets, other_code, boundary)
        if "error" in told:
            # The release before refuses in other words, too: it tells a changed input from another request badly.
            assert first == "new" or told["error"] == "OperationChanged", (boundary, told)
            assert change not in ("none", "body renamed"), (boundary, told)
            world.lapse()
            told = asked(begins, its_code, boundary)
        assert told == {"result": told.get("result")}, (boundary, told)
        assert told["result"]["status"] == 201, boundary  # type: ignore[index]
    rows = Counter(world.orders())
    for boundary in boundaries:
        assert (rows[boundary], rows[f"done {boundary}"]) == (1, 1), boundary
        for what, fewest in (("charge", 1), ("ship", 0), ("refund", 0)):
            keys = {key for kind, item, key in world.effects() if (kind, item) == (what, boundary)}
            assert fewest <= len(keys) <= (what != "refund"), (boundary, what, keys)
