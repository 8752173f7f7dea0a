"""Every kind of record in every state, written by one release, met by the other, and met again by the first.

The new release migrates between: the old one goes on afterwards on the schema as it then is.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.releases import meeting
from tests.releases.golden import EVERY, NOW, ROTATED, SEALED_ONES
from tests.releases.places import OUTBOX, Place
from tests.releases.processes import At, Release

pytestmark = pytest.mark.xdist_group("releases")


def alone(place: Place, *sides: At) -> Callable[[At], At]:
    """Where a file belongs to one process at a time, whoever had it lets go."""

    def turn(to: At) -> At:
        if place.store == "duckdb":
            for side in sides:
                if side is not to:
                    side.close()
        return to

    return turn


def test_golden_records(place: Place, old: Release, new: Release, first: str) -> None:
    writer, reader = (place.at(old), place.at(new)) if first == "old" else (place.at(new), place.at(old))
    turn = alone(place, writer, reader)
    plain = EVERY if first == "old" else ROTATED
    outbox = place.store in OUTBOX
    turn(writer)("migrate")
    meeting.plant(writer, plain, outbox=outbox)
    written, counted = writer.all(now=NOW), meeting.counts(writer)
    assert len(written) == len(plain)

    turn(reader)("migrate")
    read = reader.all(now=NOW)
    assert meeting.common(written, read)[0] == meeting.common(written, read)[1]
    assert meeting.counts(reader) == counted
    meeting.resumes_at_its_point(reader, plain)
    meeting.refuses_others(reader, plain)
    assert reader.all(now=NOW) == read, "refusals write nothing"
    meeting.judges(reader, plain)
    meeting.finishes(reader, plain)
    meeting.sweeps(reader, plain)
    meeting.reaps(reader, plain)
    if outbox:
        meeting.publishes(reader)
    left, counted = reader.all(now=NOW), meeting.counts(reader)

    turn(writer)("migrate")
    again = writer.all(now=NOW)
    assert meeting.common(left, again)[0] == meeting.common(left, again)[1]
    assert meeting.counts(writer) == counted
    meeting.meets_what_was_finished(writer, plain)
    for side in (writer, reader):
        side.close()


def test_golden_records_under_a_key_ring(place: Place, old: Release, new: Release, first: str) -> None:
    sides = (place.at(old), place.at(new)) if first == "old" else (place.at(new), place.at(old))
    turn = alone(place, *sides)
    writer, reader = sides
    turn(writer)("migrate")
    meeting.plant(writer, SEALED_ONES, outbox=False)
    stored, written = writer.all(now=NOW), writer.sealed().all(now=NOW)
    assert stored != written, "what is stored is not what is shown"

    turn(reader)("migrate")
    read = reader.sealed().all(now=NOW)
    assert meeting.common(written, read)[0] == meeting.common(written, read)[1]
    meeting.resumes_at_its_point(reader.sealed(), SEALED_ONES)
    meeting.refuses_others(reader.sealed(), SEALED_ONES)
    meeting.judges(reader.sealed(), SEALED_ONES)
    meeting.finishes(reader.sealed(), SEALED_ONES)

    meeting.meets_what_was_finished(turn(writer).sealed(), SEALED_ONES)
    for side in sides:
        side.close()
