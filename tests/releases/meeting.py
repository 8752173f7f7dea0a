"""What a release must make of golden records that another release wrote: read, refuse, replay, resume, reap."""

from __future__ import annotations

from typing import Any

from tests.releases.golden import (
    BEGAN,
    INPUT,
    JOBS,
    NOW,
    OTHER_ANSWER,
    POINT,
    PROGRESS,
    SECOND,
    Golden,
    digest,
    planted,
    stage,
)
from tests.releases.processes import At

THIRD = 3
"""The attempt's number in tokens of claims that the reader makes: nobody else's."""


def plant(side: At, records: list[Golden], *, outbox: bool) -> None:
    for told in side.ops(planted([each for each in records if not each.sealed])):
        assert told is True or told["granted"], told
    sealed = [each for each in records if each.sealed]
    if sealed:
        for told in side.sealed().ops(planted(sealed)):
            assert told is True or told["granted"], told
    if outbox:
        assert side.op(**stage()) == len(JOBS)


def common(*sides: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    """What both releases know of records: a later one may have more fields."""
    known = set.intersection(*({name for record in records for name in record} for records in sides))
    return [[{name: record[name] for name in sorted(known)} for record in records] for records in sides]


def counts(side: At) -> dict[str, int]:
    told: dict[str, int] = side.op("Stats", now=NOW)
    return told


def refuses_others(side: At, records: list[Golden]) -> None:
    """Another request under the same key: never run, never shown the answer, and nothing is written."""
    asked = [each for each in records if each.outcome not in ("Rebirth", "Reap")]
    replies = side.ops([each.claim(THIRD, body="another", now=NOW) for each in asked])
    assert {each.key: told["outcome"] for each, told in zip(asked, replies, strict=True)} == {
        each.key: "Mismatch" for each in asked
    }


def judges(side: At, records: list[Golden]) -> None:
    """The same request again: each state means what it meant to who wrote it."""
    asked = [each for each in records if each.outcome != "Reap"]
    before = {record["id"]: record for record in side.all(now=NOW)}
    replies = side.ops([each.claim(THIRD, now=NOW, lease=SECOND * 3600, on_lapse="rerun") for each in asked])
    for golden, told in zip(asked, replies, strict=True):
        outcome, was, now = told["outcome"], before[golden.id], told["record"]
        expected = "Execute" if golden.outcome == "Rebirth" else golden.outcome
        assert outcome == expected, f"{golden.key}: {told}"
        if golden.outcome == "Rebirth":
            assert (now["attempt"], now["run"]) == (1, digest("run", golden.key, str(THIRD))[:16]), golden.key
        elif outcome == "Execute":
            kept = ("run", "point", "progress", "input", "created", "fingerprint")
            assert (now["attempt"], [now[each] for each in kept]) == (2, [was[each] for each in kept]), golden.key
        else:
            assert now == was, f"{golden.key}: a refusal writes nothing"


def resumes_at_its_point(side: At, records: list[Golden]) -> None:
    """Looked at before anything is claimed: recovery point, journal and input are as they were written, opened."""
    found = {record["id"]: record for record in side.all(now=NOW)}
    for golden in records:
        record = found[golden.id]
        if "point" in golden.state or "intent" in golden.state:
            assert (record["point"], record["progress"]) == (POINT, PROGRESS), golden.key
        if golden.kind == "operation" and golden.state != "forgotten":
            assert record["input"] == INPUT, golden.key


def sweeps(side: At, records: list[Golden]) -> None:
    """The sweeper accuses the lapsed whose lapse means that nobody knows, and nobody else."""
    for golden in records:
        lapsed = golden.state in ("lapsed, uncertain", "lapsed in an intent")
        if lapsed or golden.state == "live":
            mark = golden.move("Suspect", note="swept", lapsed_only=True, now=NOW)
            assert side.op(**mark) is lapsed, golden.key


def reaps(side: At, records: list[Golden]) -> None:
    due = sum(golden.outcome == "Reap" for golden in records)
    assert side.op("Reap", limit=1000, now=NOW) == due
    assert side.op("Reap", limit=1000, now=NOW) == 0


def taken_over(records: list[Golden]) -> list[Golden]:
    return [golden for golden in records if golden.outcome == "Execute"]


def finishes(side: At, records: list[Golden]) -> None:
    """Who took over completes; who was replaced does not."""
    taken = taken_over(records)
    late = [golden.move("Complete", 1, answer=OTHER_ANSWER, now=NOW + SECOND) for golden in taken]
    assert not any(side.ops(late)), "an owner that was replaced changes nothing"
    fences = [[2, golden.fence(THIRD)[1]] for golden in taken]
    done = [
        {"op": "Complete", "id": golden.id, "fence": fence, "answer": OTHER_ANSWER, "now": NOW + SECOND}
        for golden, fence in zip(taken, fences, strict=True)
    ]
    assert all(side.ops(done))


def meets_what_was_finished(side: At, records: list[Golden]) -> None:
    """By who wrote it in the first place: its late owner is refused, and its next caller gets the other's answer."""
    taken = taken_over(records)
    late = [golden.move("Complete", 1, answer={**OTHER_ANSWER, "status": 500}, now=NOW + SECOND) for golden in taken]
    assert not any(side.ops(late))
    replies = side.ops([golden.claim(4, now=NOW + 2 * SECOND) for golden in taken])
    for golden, told in zip(taken, replies, strict=True):
        assert told["outcome"] == "Replay", golden.key
        assert told["record"]["answer"] == OTHER_ANSWER, golden.key


def publishes(side: At) -> None:
    """Jobs of one order key one after the other, each with its id and payload, and deleted when they are done."""
    seen: list[Any] = []
    for round_ in range(2):
        token = digest("taken", str(round_))[:16]
        taken = side.op("TakeJobs", limit=10, token=token, lease=SECOND, now=BEGAN + (round_ + 1) * SECOND * 60)
        seen += [list(each["job"].values()) for each in taken]
        ids = [each["job"]["id"] for each in taken]
        assert side.op("FinishJobs", ids=ids, token=token, now=BEGAN + (round_ + 1) * SECOND * 60) == len(ids)
    assert sorted(seen) == sorted(JOBS)
    assert seen.index(JOBS[0]) < seen.index(JOBS[1])
    assert side.op("ListJobs", now=NOW) == []
