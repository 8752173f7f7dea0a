"""A late copy of a claim meets what the other release did meanwhile: granted, it would be nobody's (rules 13, 17)."""

from __future__ import annotations

from typing import Any

import pytest

from tests.releases.golden import BEGAN, DAY, HOUR, SECOND, Golden, Op
from tests.releases.places import Place
from tests.releases.processes import Release

pytestmark = pytest.mark.xdist_group("releases")

KEY = Golden("http", "whose claim comes late", "")


def released(attempt: int, at: int) -> Op:
    return {**KEY.move("Release", now=at, note=""), "fence": [attempt, KEY.fence(attempt)[1]]}


ENDINGS: dict[str, list[Op]] = {
    "released": [KEY.claim(now=BEGAN), released(1, BEGAN + SECOND)],
    "released at a point": [KEY.claim(now=BEGAN), KEY.advance(now=BEGAN), released(1, BEGAN + SECOND)],
    "resolved": [
        KEY.claim(now=BEGAN),
        KEY.move("Suspect", note="who knows", lapsed_only=False),
        KEY.move("Resolve", answer=None, note="it did not happen"),
    ],
    "lapsed": [KEY.claim(now=BEGAN, lease=SECOND, on_lapse="rerun")],
    "withdrawn": [KEY.claim(now=BEGAN), KEY.move("Withdraw", note="")],
    "completed and expired": [KEY.claim(now=BEGAN - 2 * DAY, retention=HOUR), KEY.complete() | {"now": BEGAN - DAY}],
}
"""How the first attempt, of the new release, may end; somebody else may have the key after each of them."""

NEW_LIVES = ("withdrawn", "completed and expired")
"""After these the old release begins a new life. Where it writes the whole record, what it does not know is gone."""


def keeps(store: str, how: str) -> bool:
    """Whether the token outlives what the old release does to the record (docs/explanation/guarantees.md)."""
    if store == "dynamodb":
        return False
    if how == "lapsed":
        return store != "redis"
    return how not in NEW_LIVES or store not in ("redis", "mongodb")


@pytest.mark.parametrize("how", ENDINGS)
def test_a_token_that_the_old_release_took_over_from_is_not_granted_again(
    place: Place, old: Release, new: Release, how: str
) -> None:
    for release in (old, new):
        side = place.at(release)
        side("migrate")
        side.close()
    assert all(told is True or told["granted"] for told in asked(place, new, *ENDINGS[how]))
    taken, given_back = asked(place, old, KEY.claim(2, now=BEGAN + 5 * SECOND), released_by_old(how))
    assert (taken["granted"], given_back) == (True, True)
    before = all_of(place, new)
    (late,) = asked(place, new, KEY.claim(now=BEGAN + 20 * SECOND))
    assert late["granted"] is not keeps(place.store, how)
    if keeps(place.store, how):
        assert [late["record"]] == before == all_of(place, new), "nothing was written"


def test_a_worker_of_the_old_release_deletes_what_was_withdrawn(place: Place, old: Release, new: Release) -> None:
    """The present reaper keeps a withdrawn row for an hour; the older one does not know of withdrawals. The row's
    expiry cannot keep it: until then the older release would refuse the next request with another body. On Redis the
    reaper reads an index, which has its own time."""
    for release in (old, new):
        side = place.at(release)
        side("migrate")
        side.close()
    asked(place, new, *ENDINGS["withdrawn"])
    reap = {"op": "Reap", "limit": 10, "now": BEGAN + 5 * SECOND}
    late = KEY.claim(now=BEGAN + 20 * SECOND)
    assert asked(place, new, reap) == [0]
    before = all_of(place, new)
    (recognised,) = asked(place, new, late)
    assert (recognised["granted"], all_of(place, new)) == (False, before)
    deleted = place.store != "redis"
    assert asked(place, old, reap) == [int(deleted)]
    (again,) = asked(place, new, late)
    assert again["granted"] is deleted, "granted to nobody, if the row with its token is gone"


def asked(place: Place, release: Release, *ops: Op) -> list[Any]:
    side = place.at(release)
    replies = side.ops(list(ops))
    if place.store == "duckdb":  # a file of one process
        side.close()
    return replies


def released_by_old(how: str) -> Op:
    attempt = 1 if how in NEW_LIVES else 2
    return {**released(2, BEGAN + 6 * SECOND), "fence": [attempt, KEY.fence(2)[1]]}


def all_of(place: Place, release: Release) -> list[dict[str, Any]]:
    side = place.at(release)
    found = side.all(now=BEGAN + 10 * SECOND)
    side.close()
    return found
