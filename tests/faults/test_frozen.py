"""A process stopped at every boundary of our code, replaced, and continued: it does nothing any more (I24, I33).

What is stopped is in frozen_story.py. Only one gap is left, and it is shown here as what it is: whoever was stopped
after the last look at its lease and before its request left sends that one request (docs/explanation/guarantees.md).

The same where it is not the process that stands still but a message: each one in turn is held back beyond the lease.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import pytest

from retrysafe import RetrySafe
from retrysafe.core.ops import Stats
from retrysafe.errors import RetrySafeError
from retrysafe.operations import operation
from retrysafe.stores.postgres import deadline
from tests.faults import frozen_story
from tests.faults.holding import HOLDING, Holding
from tests.faults.replaced import AT_ONCE, DEADLINE, STORIES, Place, Story, boundaries, check, freeze_at
from tests.opening import COLOURS, unique, with_option
from tests.waiting import until

pytestmark = pytest.mark.xdist_group("races")  # one at a time: they want the machine to themselves

STORES = [pytest.param(store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres", "redis")]
colours = pytest.mark.parametrize("colour", COLOURS)
stores = pytest.mark.parametrize("store", STORES)

# Tests ---------------------------------------------------------------------------------------------

GAPS = {
    "saga": {"gap quote", "gap ship"},
    "saga undone": {"gap quote", "gap ship"},
    "saga undone by both": {"gap quote", "gap undo ship", "gap undo quote"},
    "rerun": {"gap send"},
    "uncertain": set(),
}
"""After these an effect comes late. Not after `gap charge`: what may not be repeated is given to nobody else."""


def report(place: Place, story: Story, stops: int, of: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{place.store} {place.colour}: {story}: {stops} of {of} boundaries, {place.children} processes; late")
        print(f"only where nobody can know: {sorted(place.late)}")


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("story", STORIES, ids=str)
@colours
@stores
def test_frozen_at_every_boundary(place: Place, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    names = boundaries(place, story)
    freeze_at(place, story, range(1, len(names) + 1))
    assert place.late == GAPS[str(story).rpartition(",")[0]]
    report(place, story, len(names), len(names), capsys)


@pytest.mark.parametrize("story", STORIES[1:2], ids=str)
@colours
@stores
def test_frozen_and_replaced(place: Place, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """Every gap, and of the others one in five. The successor undoes what the first one did: the hardest story."""
    names = boundaries(place, story)
    gaps = [name for name in names if name.startswith("gap")]
    stops = [*gaps, *range(1, len(names) + 1, 5)]
    freeze_at(place, story, stops)
    assert place.late == GAPS["saga undone"]
    report(place, story, len(stops), len(names), capsys)


# A message that is late -----------------------------------------------------------------------------


class Behind:
    """One caller, in a thread of its own, behind a proxy of its own."""

    def __init__(self, place: Place, story: Story, key: str, hasty: bool = False) -> None:
        url = place.url.replace("socket_timeout=60", f"socket_timeout={HASTE}") if hasty else place.url
        self.proxy: Holding = HOLDING[place.store](url)
        url = with_option(self.proxy.url, "pool", "1") if place.store == "postgres" else self.proxy.url
        case = place.case(story, "first", key, 0)
        self.safe = RetrySafe(url, tx=frozen_story.transactions(case))
        self._run = frozen_story.declare(self.safe, case)
        self.safe.execute(Stats())  # connected

    def run(self) -> dict[str, Any]:
        try:
            return {"answer": frozen_story.plain(self._run())}
        except RetrySafeError as error:
            return {"error": type(error).__name__, "why": str(error)}

    def close(self) -> None:
        self.safe.close()
        self.proxy.close()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operation, "RENEWAL_MARGIN_SECONDS", frozen_story.ROOM)


def messages(place: Place, story: Story) -> list[str]:
    """Of a run in which none is held. The second one: the first may have to tell the server its scripts."""
    for _ in range(2):
        counted = Behind(place, story, unique("counted"))
        counted.proxy.count()
        assert "answer" in counted.run()
        counted.close()
    return list(counted.proxy.seen)


def hold_at(place: Place, story: Story, numbers: Sequence[int], seen: Sequence[str], hasty: bool = False) -> None:
    for begin in range(0, len(numbers), AT_ONCE):
        hold_together(place, story, numbers[begin : begin + AT_ONCE], seen, hasty)


def met_or_ended(caller: Behind, running: Future[dict[str, Any]]) -> bool:
    """A heartbeat that was counted and does not come again makes the last message one that is not met."""
    return caller.proxy.held.is_set() or running.done()


def hold_together(place: Place, story: Story, numbers: Sequence[int], seen: Sequence[str], hasty: bool) -> None:
    keys = [unique(f"m{number}_") for number in numbers]
    with ExitStack() as closing, ThreadPoolExecutor(AT_ONCE) as threads:
        callers = []
        for key in keys:
            callers.append(Behind(place, story, key, hasty))
            closing.callback(callers[-1].close)
        running: list[Future[dict[str, Any]]] = []
        for each, number in zip(callers, numbers, strict=True):
            each.proxy.hold(number, alone=hasty)
            closing.callback(each.proxy.deliver)
            running.append(threads.submit(each.run))
        for each, future in zip(callers, running, strict=True):
            until(partial(met_or_ended, each, future), DEADLINE, "its message")
        place.wait_for_leases(story, keys)
        before = {key: len(place.effects(key)) for key in keys}
        successors = place.start(story, "successor", keys, [0] * len(keys))
        known = {key: (place.record(story, key)[0], len(place.effects(key))) for key in keys}
        for each in callers:
            each.proxy.deliver()
        woken = [each.result(DEADLINE) for each in running]
    place.wait_for_leases(story, keys)
    asked = place.start(story, "asker", keys, [0] * len(keys))
    for key, number, *ends in zip(keys, numbers, successors, woken, asked, strict=True):
        record, lines = known[key]
        taken = place.effects(key)[before[key] : lines]
        check(place, story, key, f"message {number} ({seen[number - 1]})", ends, record, taken)
    met = sum(each.proxy.held.is_set() for each in callers)
    assert met >= len(callers) - 2, "the run that was counted had a heartbeat more, not the half of its messages"


def report_held(place: Place, story: Story, held: int, of: int, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print(f"\n{place.store}: {story}: {held} of {of} messages held back beyond the lease, none had an effect")


HASTE = 0.5
"""Seconds after which a caller gives a silent connection up, and sends again on another."""

WIRED = [pytest.param(store, marks=pytest.mark.store(store)) for store in HOLDING]


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("story", [*STORIES[:3], *STORIES[4:]], ids=str)
@pytest.mark.parametrize("colour", ["sync"])
@pytest.mark.parametrize("store", WIRED)
def test_every_message_beyond_the_lease(place: Place, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    seen = messages(place, story)
    hold_at(place, story, range(1, len(seen) + 1), seen)
    assert place.late == set()
    report_held(place, story, len(seen), len(seen), capsys)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("story", STORIES[1:2], ids=str)
@pytest.mark.parametrize("colour", ["sync"])
@pytest.mark.parametrize("store", WIRED)
def test_messages_beyond_the_lease(place: Place, story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    """Eight of them, all over the story."""
    seen = messages(place, story)
    numbers = range(1, len(seen) + 1, -(-len(seen) // AT_ONCE))
    hold_at(place, story, numbers, seen)
    assert place.late == set()
    report_held(place, story, len(numbers), len(seen), capsys)


@pytest.mark.campaign
@pytest.mark.timeout(1800)
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("story", STORIES[:3], ids=str)
@pytest.mark.parametrize("colour", ["sync"])
@pytest.mark.parametrize("store", WIRED)
def test_every_message_after_its_resend(
    place: Place, story: Story, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The caller gives up before the lease is over, sends again and goes on; what was held comes in after its end."""
    seen = messages(place, story)
    monkeypatch.setattr(deadline, "STATEMENT_TIMEOUT_SECONDS", HASTE)
    hold_at(place, story, range(1, len(seen) + 1), seen, hasty=True)
    assert place.late == set()
    report_held(place, story, len(seen), len(seen), capsys)
