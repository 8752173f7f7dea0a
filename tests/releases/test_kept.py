"""Golden records kept as data: what 06229ac wrote, in the store's own words, one entry per line.

`planted` are the golden records (golden.py); `lived` are records of the shop's own calls: real fingerprints, input,
journals, results. Whoever wants to know how a stored form looked then can read it; and as long as this release must
go on with such records, these tests say that it does.

    RETRYSAFE_KEEP_GOLDEN=1 python -m pytest tests/releases/test_kept.py

writes the files anew, with the release that processes.OLD names.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from tests.releases import meeting, wire
from tests.releases.golden import NOW, ROTATED, derived
from tests.releases.places import OUTBOX, Place, World, place_for
from tests.releases.processes import HERE, OLD, At, Release
from tests.releases.raw import Entry, raw

pytestmark = pytest.mark.xdist_group("releases")

FAMILY = {"mariadb": "mysql"}
"""Whose file is another's: the same statements, the same form."""


def file_of(place: Place) -> Path:
    return HERE / "golden" / OLD / f"{FAMILY.get(place.store, place.store)}.jsonl"


def kept(place: Place, part: str) -> list[Entry]:
    lines = map(wire.load, file_of(place).read_text().splitlines())
    return [(where, held) for which, where, held in lines if which == part]


def planted(place: Place, old: Release) -> list[Entry]:
    side = place.at(old)
    side("migrate")
    meeting.plant(side, ROTATED, outbox=place.store in OUTBOX)
    side.close()
    return raw(place).read()


def shop(place: Place, release: Release) -> At:
    """The shop without a database of its own: only calls to others."""
    ledger = place.folder / "ledger.txt"
    ledger.touch()
    return place.at(release, ledger=str(ledger), tx=None)


def live(place: Place, old: Release) -> list[Entry]:
    """Only what is kept for ever: the file is read in years to come."""
    side = shop(place, old)
    side("migrate")
    for one in (side, side.sealed()):
        name = "sealed" if one is not side else "plain"
        assert "result" in one.call("function", f"{name}-function")
        assert "result" in one.call("operation", f"{name}-operation")
        assert one.call("operation", f"{name}-stopped", fail="ship:before")["error"] == "NotFinished"
        assert "result" in one.call("operation", f"{name}-undone", item="undone")
    side.close()
    return raw(place).read()


def keep(place: Place, parts: dict[str, list[Entry]]) -> None:
    lines = [wire.dump([part, *entry]) for part, entries in parts.items() for entry in entries]
    file_of(place).parent.mkdir(parents=True, exist_ok=True)
    file_of(place).write_text("\n".join(lines) + "\n")


def test_the_files_say_what_the_release_writes(
    request: pytest.FixtureRequest, tmp_path: Path, place: Place, old: Release
) -> None:
    """On the servers of today, byte for byte: so the files are neither edited nor out of date."""
    fresh = planted(place, old)
    if "RETRYSAFE_KEEP_GOLDEN" in os.environ and place.store not in FAMILY:
        keep(place, {"planted": fresh, "lived": live(place_for(request, tmp_path, place.store), old)})
    assert [wire.load(wire.dump(entry)) for entry in fresh] == [list(entry) for entry in kept(place, "planted")]


def test_kept_records_are_what_they_were(place: Place, old: Release, new: Release) -> None:
    old_side, side = place.at(old), place.at(new)
    old_side("migrate")
    old_side.close()
    raw(place).write(kept(place, "planted"))
    side("migrate")
    assert len(side.all(now=NOW)) == len(ROTATED)
    meeting.resumes_at_its_point(side, ROTATED)
    meeting.refuses_others(side, ROTATED)
    meeting.judges(side, ROTATED)
    meeting.finishes(side, ROTATED)
    meeting.sweeps(side, ROTATED)
    meeting.reaps(side, ROTATED)
    if place.store in OUTBOX:
        meeting.publishes(side)
    side.close()


def test_kept_calls_are_replayed_and_resumed(place: Place, old: Release, new: Release) -> None:
    old_side, side = place.at(old), shop(place, new)
    old_side("migrate")
    old_side.close()
    raw(place).write(kept(place, "lived"))
    side("migrate")
    runs = {record["key"]: record["run"] for record in side.all()}
    for one, name in ((side, "plain"), (side.sealed(), "sealed")):
        paid = repr({"cents": 500, "order": f"{name}-function", "proof": (1, b"\x00\xff", {"é"})})
        assert one.call("function", f"{name}-function") == {"result": paid}
        assert one.call("function", f"{name}-function", 501)["error"] == "FingerprintMismatch"
        run = runs[f"{name}-operation"]
        assert body(one.call("operation", f"{name}-operation")) == answered(run)
        assert one.call("operation", f"{name}-operation", 501)["error"] == "FingerprintMismatch"
        assert body(one.call("operation", f"{name}-undone", item="undone")) == {"error": "out of stock"}
        assert World.lines(side_ledger(place)) == []
        run = runs[f"{name}-stopped"]
        assert body(one.call("operation", f"{name}-stopped")) == answered(run)
        # It goes on at its point: the charge is in the journal, the shipment goes out under the key of its run.
        assert World.lines(side_ledger(place)) == [["ship", "book", derived(run, "ship", 1)]]
        side_ledger(place).write_text("")
    side.close()


def side_ledger(place: Place) -> Path:
    return place.folder / "ledger.txt"


def body(told: dict[str, Any]) -> Any:
    assert "result" in told, told
    return wire.load(told["result"]["body"])


def answered(run: bytes) -> dict[str, str]:
    charge, ship = derived(run, "charge", 0), derived(run, "ship", 1)
    return {"item": "book", "paid": f"ch_{charge[:8]}", "shipped": f"sh_{ship[:8]}"}
