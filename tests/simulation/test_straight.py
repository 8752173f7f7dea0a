"""The simulation plays both ways of a web request (web/sync_async.py): what is decided without a flow, and what is
handed over to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import pytest

from retrysafe.core.ops import ClaimReply
from retrysafe.engine.drive import CancelledDuringOp, FirstReply
from retrysafe.errors import StoreError
from retrysafe.testing.simulation import World, check
from retrysafe.web.exchange import Exchange
from tests.simulation.ablations.straight import CALM
from tests.simulation.scenarios.interruptions import INTERRUPTIONS
from tests.simulation.scenarios.straight import STRAIGHT, by_flows_only

HISTORIES = 150


@contextmanager
def count_ways() -> Iterator[Counter[str]]:
    """What each claim and completion came to, and by which way."""
    met: Counter[str] = Counter()
    take, end, first = Exchange.take_plain_reply, Exchange.end_plain_completion, FirstReply.__init__

    def take_plain_reply(self: Any, task: Any, claim: Any, reply: Any) -> Any:
        grant = take(self, task, claim, reply)
        if grant is not None:
            met["straight birth" if grant.record.attempt == 1 else "straight takeover"] += 1
        elif self.response is not None:
            met["straight replay"] += 1
        return grant

    def end_plain_completion(self: Any, answer: Any) -> bool:
        ended = end(self, answer)
        met["straight completion" if ended else "completion, handed over to wake waiters"] += 1
        return ended

    def begin(self: Any, reply: Any = None, error: BaseException | None = None) -> None:
        met[describe(reply, error)] += 1
        first(self, reply, error)

    with ExitStack() as stack:
        for owner, name, instead in (
            (Exchange, "take_plain_reply", take_plain_reply),
            (Exchange, "end_plain_completion", end_plain_completion),
            (FirstReply, "__init__", begin),
        ):
            stack.enter_context(mock.patch.object(owner, name, instead))
        yield met


def describe(reply: Any, error: BaseException | None) -> str:
    """With what a flow begins that the straight way has handed over to."""
    if isinstance(error, CancelledDuringOp):
        what = "claim" if isinstance(error.reply, ClaimReply) else "completion"
        return "flow: cancelled, unanswered" if error.reply is None else f"flow: {what} of a cancelled request"
    if error is not None:
        return f"flow: {'store error' if isinstance(error, StoreError) else type(error).__name__}"
    if not isinstance(reply, ClaimReply):
        return f"flow: completion answered {reply}"
    if reply.granted:
        return "flow: granted, and lapsed"
    return "flow: another request" if reply.record is None else f"flow: refused, {reply.record.state.name.lower()}"


def test_both_ways_are_played() -> None:
    with count_ways() as met:
        for seed in range(HISTORIES):
            World(seed, STRAIGHT).run()
    expected = {
        "straight birth": 30,
        "straight replay": 20,
        "straight completion": 40,
        "straight takeover": 20,
        "completion, handed over to wake waiters": 5,
        "flow: refused, claimed": 50,
        "flow: refused, uncertain": 50,
        "flow: refused, completed": 10,  # of another request, or an answer that is gone
        "flow: store error": 50,
        "flow: claim of a cancelled request": 100,
    }
    assert {what: met[what] for what, least in expected.items() if met[what] < least} == {}, met


def test_the_general_way_alone_is_played() -> None:
    with by_flows_only(), count_ways() as met:
        for seed in range(10):
            World(seed, STRAIGHT).run()
    assert met == {}


@pytest.mark.parametrize("only_flows", [False, True], ids=["straight", "flows"])
def test_no_rule_is_broken_on_either_way(only_flows: bool) -> None:
    for seed in range(20):
        with ExitStack() as stack:
            if only_flows:
                stack.enter_context(by_flows_only())
            assert CALM.play(seed) == [], f"seed {seed}"


@pytest.mark.parametrize("seed", [5, 6, 107, 277, 282])
def test_what_a_cancelled_caller_is_granted_late_is_released(seed: int) -> None:
    """Its release was lost, too, and was not sent again: the key lapsed to a person, although nothing had run."""
    assert check(World(seed, INTERRUPTIONS, kinds=("guard",)).run()) == []
