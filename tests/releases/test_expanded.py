"""Migrations expand: an old process that is running goes on when the store has more in it than it knows."""

from __future__ import annotations

from tests.releases import meeting
from tests.releases.golden import NOW, ROTATED, Golden
from tests.releases.places import OUTBOX, Place
from tests.releases.processes import Release
from tests.releases.raw import raw


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
    newborn = [Golden("http", state, ROTATED[0].outcome, sealed=False) for state in ("completed", "released")]
    born = [Golden("tool", golden.state, golden.outcome) for golden in newborn]
    meeting.plant(side, born, outbox=False)
    side.close()
