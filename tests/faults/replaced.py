"""Somebody is held up beyond its lease, replaced by a successor, and let go on: where that happens, and what must be
true of it afterwards (test_frozen.py)."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import psycopg

from retrysafe.core.keys import record_id
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.testing import Do
from tests.faults.frozen_story import effects
from tests.opening import unique
from tests.waiting import until

DEADLINE = 60.0
ROOT = Path(__file__).parents[2]
AT_ONCE = 8
"""Processes that stand still at the same time: they wait for their leases together."""

TOLD = {"LeaseLost", "OutcomeUnknown"}
"""What one that was replaced, or may have been, is told."""

LOCKED = {"InProgress", "StoreUnavailable"}
"""And what the successor is told where the one that stands still has a lock: the end of a transaction is held back, or
on SQLite its heartbeat was stopped in the middle of a write. Nobody takes over before it goes on; nothing was done."""

UNCLEAR = "StoreUnclear"
"""And what a caller is told whose claim was held back until it had asked often enough: nothing ran."""

UNRECORDED = "OutcomeUnrecorded"
"""And what a caller is told whose end was held back until its lease was over: it ran, and that is not written down."""


@dataclass(frozen=True)
class Story:
    """What is run, and by whom it is replaced."""

    what: str
    """`saga`, or what a guarded function's abandoned call means: `rerun`, `uncertain`."""
    successor: str = "client"
    refuses: bool = False
    """Whether the last step is refused to the successor, who undoes the others then."""
    undoing: bool = False
    """Whether it is refused to the first one already."""

    def __str__(self) -> str:
        ending = " undone" if self.refuses else ""
        return f"{self.what}{ending}{' by both' if self.undoing else ''}, {self.successor}"


STORIES = [
    Story("saga"),
    Story("saga", refuses=True),
    Story("saga", refuses=True, undoing=True),
    Story("saga", successor="worker"),
    Story("rerun"),
    Story("uncertain"),
]


@dataclass
class Place:
    """A store, a log of effects, and the nursery."""

    store: str
    colour: str
    url: str
    database: str
    folder: Path
    do: Do
    rows: str = ""
    children: int = 0
    late: set[str] = field(default_factory=set)
    """The boundaries after which one that was replaced had an effect."""
    IDS: ClassVar[dict[bool, tuple[str, str]]] = {True: ("operation", "saga"), False: ("function", "frozen")}

    def __post_init__(self) -> None:
        command = [sys.executable, "-m", "tests.faults.frozen_story"]
        self.process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait(DEADLINE)
        self.do.close()

    def ask(self, **command: Any) -> list[dict[str, Any]]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        told: list[dict[str, Any]] = json.loads(self.process.stdout.readline())
        for each in told:
            assert "broken" not in each, each["broken"]
        return told

    def start(self, story: Story, role: str, keys: Sequence[str], stops: Sequence[int | str]) -> list[dict[str, Any]]:
        self.children += len(keys)
        cases = [self.case(story, role, key, stop) for key, stop in zip(keys, stops, strict=True)]
        return self.ask(do="start", cases=cases)

    def case(self, story: Story, role: str, key: str, stop: int | str) -> dict[str, Any]:
        """What frozen_story.py is told."""
        return {
            "store": self.store,
            "colour": self.colour,
            "url": self.url,
            "database": self.database,
            "rows": self.rows,
            "log": str(self.folder / "effects"),
            "what": story.what,
            "refuses": story.undoing or (story.refuses and role != "first"),
            "role": role,
            "key": key,
            "stop": stop,
        }

    def record(self, story: Story, key: str) -> tuple[Record | None, int]:
        kind, scope = self.IDS[story.what == "saga"]
        whole = key if story.what == "saga" else f'send:{{"{key}"}}'
        return self.do(Lookup(record_id(kind, "default", scope, whole)))

    def wait_for_leases(self, story: Story, keys: Sequence[str]) -> None:
        """By the store's clock."""
        for key in keys:
            until(partial(self.nobody_holds, story, key), DEADLINE, f"the end of the lease of {key}")

    def nobody_holds(self, story: Story, key: str) -> bool:
        record, now = self.record(story, key)
        return record is None or record.state is not State.CLAIMED or record.lease_until <= now

    def sql(self, text: str, *values: Any) -> list[Any]:
        """On a connection of the test's own, committed at once."""
        if self.store != "postgres":
            with closing(sqlite3.connect(self.database, timeout=DEADLINE, isolation_level=None)) as db:
                return db.execute(text, values).fetchall()
        with psycopg.connect(self.database, autocommit=True) as connection:
            cursor = connection.execute(text.replace("?", "%s"), values)
            return cursor.fetchall() if cursor.description else []

    def effects(self, key: str) -> list[dict[str, Any]]:
        return [line for line in effects(str(self.folder / "effects")) if line["item"] == key]


# What is done at a boundary ------------------------------------------------------------------------


Stops = Sequence[int | str]
"""Where to stop: at the boundary with this number, or with this name."""


def boundaries(place: Place, story: Story) -> list[str]:
    """Of a run that nobody stops. On a machine that is busy a lease may be renewed once more than on another."""
    (ended,) = place.start(story, "first", [unique("counted")], [0])
    names: list[str] = ended["boundaries"]
    return names


def freeze_at(place: Place, story: Story, stops: Stops) -> None:
    for begin in range(0, len(stops), AT_ONCE):
        freeze_together(place, story, stops[begin : begin + AT_ONCE])


def freeze_together(place: Place, story: Story, stops: Stops) -> None:
    keys = [unique("k") for _ in stops]
    frozen = place.start(story, "first", keys, stops)
    passed = [each for each in frozen if "stopped" not in each]
    assert passed == [], f"not all of {stops} were met"
    place.wait_for_leases(story, keys)
    before = {key: len(place.effects(key)) for key in keys}
    if story.successor == "worker":
        place.start(story, "worker", keys[:1], [0])
        successors: list[dict[str, Any]] = [{} for _ in keys]
    else:
        successors = place.start(story, "successor", keys, [0] * len(keys))
    seen = {key: (place.record(story, key)[0], len(place.effects(key))) for key in keys}
    woken = place.ask(do="go on", pids=[each["pid"] for each in frozen])
    place.wait_for_leases(story, keys)  # one that woke may have kept its own for a moment
    asked = place.start(story, "asker", keys, [0] * len(keys))
    for key, stopped, *ends in zip(keys, (each["stopped"] for each in frozen), successors, woken, asked, strict=True):
        record, known = seen[key]
        check(place, story, key, stopped, ends, record, place.effects(key)[before[key] : known])


def check(
    place: Place,
    story: Story,
    key: str,
    stopped: str,
    ends: list[dict[str, Any]],
    taken: Record | None,
    successors: list[dict[str, Any]],
) -> None:
    lines = place.effects(key)
    shown = f"{story}, stopped {stopped!r}: {[(line['role'], line['step']) for line in lines]}, told {ends}"
    last = max((n for n, line in enumerate(lines) if line["role"] in ("successor", "worker")), default=-1)
    replaced = bool(successors) or (taken is not None and (taken.attempt > 1 or taken.state is State.COMPLETED))
    late = [line["step"] for line in lines[last + 1 :] if line["role"] == "first"] if last >= 0 else []
    if late and replaced:
        assert [stopped] == [f"gap {step}" for step in late], f"an effect after the successor's: {shown}"
        place.late.add(stopped)
    sent = [line["step"] for line in lines]
    assert sent.count("charge") <= 1, f"what may not be repeated was sent twice: {shown}"
    answers = [end["answer"] for end in ends if "answer" in end]
    assert all(answer == answers[0] for answer in answers), f"two answers: {shown}"
    told = TOLD | {UNRECORDED} if stopped.startswith("message") else TOLD
    if not replaced:
        told = told | LOCKED
    if stopped.startswith("message") and not any(line["role"] == "first" for line in lines):
        told = told | {UNCLEAR}
    assert {end["error"] for end in ends if "error" in end} <= told, shown
    assert all("held the file" in end["why"] for end in ends if end.get("error") == "StoreUnavailable"), shown
    record, _ = place.record(story, key)
    assert record is not None, shown
    if not answers:
        assert record.on_lapse == "uncertain", f"nobody was told how it ended: {shown}"
        return
    assert record.state is State.COMPLETED, shown
    check_whole(place, story, key, answers[0], sent, late, shown)


def check_whole(
    place: Place, story: Story, key: str, answer: Any, sent: list[str], late: list[str], shown: str
) -> None:
    """What was done is what the answer says."""
    undone = story.what == "saga" and answer[0] == 409
    if story.what == "saga":
        rows = [step for (step,) in place.sql(f"SELECT step FROM {place.rows} WHERE item = ?", key)]
        assert sorted(rows) == ([] if undone else ["note", "reserve"]), shown
    if undone:
        began = min(n for n, step in enumerate(sent) if step.startswith("undo"))
        forward = [step for step in sent[began:] if not step.startswith("undo")]
        gap = [step for step in late if not step.startswith("undo")]
        assert forward == gap, f"a forward effect after the undoing began: {shown}"
        assert "undo quote" in sent, shown
    elif story.what == "saga":
        assert {"quote", "charge", "ship"} <= set(sent), shown
    else:
        assert "send" in sent, shown
