"""Migrations expand: an old process that is running goes on when the store has more in it than it knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.releases import meeting
from tests.releases.golden import NOW, OTHER_ANSWER, ROTATED, Golden
from tests.releases.places import OUTBOX, SAME_DATABASE, Place, World, place_for
from tests.releases.processes import Release
from tests.releases.raw import LATER, raw


def test_an_old_process_goes_on_after_the_schema_grew(place: Place, old: Release) -> None:
    """Its connections and prepared statements are those from before."""
    side = place.at(old)
    side("migrate")
    meeting.plant(side, ROTATED, outbox=place.store in OUTBOX)
    before, counted = side.all(now=NOW), meeting.counts(side)
    if place.store == "duckdb":
        side.close()
    raw(place).expand()

    assert side("migrate") == [], "a later version is neither refused nor written over"
    assert side.all(now=NOW) == before
    assert meeting.counts(side) == counted
    meeting.refuses_others(side, ROTATED)
    meeting.judges(side, ROTATED)
    meeting.finishes(side, ROTATED)
    meeting.sweeps(side, ROTATED)
    meeting.reaps(side, ROTATED)
    if place.store in OUTBOX:
        meeting.publishes(side)
    newborn = [Golden("tool", state, "") for state in ("completed", "released", "uncertain", "forgotten")]
    meeting.plant(side, newborn, outbox=False)
    side.close()


KEPT = {"dynamodb": False}
"""Whether an old process that takes a record over leaves what it does not know of it. 06229ac writes whole items to
DynamoDB: whoever adds an attribute must be able to do without it (docs/explanation/releases.md)."""
GIVEN = ("sqlite", "postgres", "mysql", "mariadb", "duckdb")
"""Where a record that an old process begins has the later fields all the same: columns have defaults."""


def test_what_an_old_process_leaves_of_later_fields(place: Place, old: Release) -> None:
    side = place.at(old)
    side("migrate")
    met, born = Golden("http", "released at a point", "Execute"), Golden("job", "completed", "Replay")
    meeting.plant(side, [met], outbox=False)
    side.close()
    raw(place).expand()
    assert side.op(**met.claim(3, now=NOW))["granted"]
    assert side.op("Complete", id=met.id, fence=[2, met.fence(3)[1]], answer=OTHER_ANSWER, now=NOW) is True
    meeting.plant(side, [born], outbox=False)
    side.close()
    found = {golden.key: LATER in raw(place).fields(golden.id) for golden in (met, born)}
    assert found == {met.key: KEPT.get(place.store, True), born.key: place.store in GIVEN}


@pytest.mark.parametrize("store", [pytest.param(store, marks=pytest.mark.store(store)) for store in SAME_DATABASE])
def test_the_schema_grows_under_a_running_process(
    request: pytest.FixtureRequest, tmp_path: Path, old: Release, new: Release, store: str
) -> None:
    world = World(place_for(request, tmp_path, store), old, new)
    keys = [f"key-{number}" for number in range(300)]
    world.old.begin("race", keys=keys, cents=7, colour="sync")
    raw(world.place).expand()
    assert len(world.old.ended()) == len(keys)
    assert world.counted("pay") == dict.fromkeys(keys, 1)
    world.close()
