"""Migrations expand: an old process that is running goes on when the store has more in it than it knows."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.releases import meeting
from tests.releases.golden import NOW, OTHER_ANSWER, ROTATED, Golden
from tests.releases.places import OUTBOX, SAME_DATABASE, Place, World, place_for
from tests.releases.processes import Release
from tests.releases.raw import LATER, MysqlRaw, raw

pytestmark = pytest.mark.xdist_group("releases")


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


SQL = ("sqlite", "postgres", "mysql", "mariadb", "duckdb")


def left(store: str) -> dict[str, bool]:
    """Whether a record has a later field after an old process took it over, began it, or began it anew.

    A column has a default, and keeps what an earlier life of the key left in it. 06229ac writes whole items to
    DynamoDB, so whoever adds an attribute must be able to do without it (docs/explanation/releases.md).
    """
    return {"taken over": store != "dynamodb", "begun": store in SQL, "begun anew": store in SQL}


def test_what_an_old_process_leaves_of_later_fields(place: Place, old: Release) -> None:
    side = place.at(old)
    side("migrate")
    met, gone = Golden("http", "released at a point", "Execute"), Golden("http", "completed and expired", "Rebirth")
    born = Golden("job", "completed", "Replay")
    meeting.plant(side, [met, gone], outbox=False)
    side.close()
    raw(place).expand()
    assert side.op(**met.claim(3, now=NOW))["granted"]
    assert side.op("Complete", id=met.id, fence=[2, met.fence(3)[1]], answer=OTHER_ANSWER, now=NOW) is True
    assert side.op(**gone.claim(3, now=NOW))["record"]["attempt"] == 1
    meeting.plant(side, [born], outbox=False)
    side.close()
    records = {"taken over": met, "begun": born, "begun anew": gone}
    assert {how: LATER in raw(place).fields(each.id) for how, each in records.items()} == left(place.store)


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


@pytest.mark.parametrize(
    "store", [pytest.param(store, marks=pytest.mark.store(store)) for store in ("mysql", "mariadb")]
)
def test_a_migration_that_died_before_it_was_written_down_is_repeated(
    request: pytest.FixtureRequest, tmp_path: Path, new: Release, store: str
) -> None:
    """There a CREATE or an ALTER commits by itself, and the version comes after it: between the two one may die."""
    place = place_for(request, tmp_path, store)
    side, tables = place.at(new), MysqlRaw(place)
    side("migrate")
    meeting.plant(side, ROTATED, outbox=True)
    before, latest = side.all(now=NOW), tables.version()
    for version in reversed(range(latest)):
        tables.write_down(version)
        assert len(side("migrate")) == latest - version
        assert tables.version() == latest
    assert side.all(now=NOW) == before
    side.close()
