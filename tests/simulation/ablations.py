"""Safeguards taken out, one at a time. Each must be noticed by the rule that is named for it: a checker that does not
notice is a checker that is missing.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple
from unittest import mock

from retrysafe.core import moves, ops
from retrysafe.core.records import Record
from retrysafe.core.states import OPEN, SETTLED, State
from retrysafe.engine import guard
from retrysafe.operations import foreign, run
from retrysafe.testing.simulation import shop
from retrysafe.testing.simulation.checkers import check
from retrysafe.testing.simulation.shrink import read_rule
from retrysafe.testing.simulation.world import World


class Ablation(NamedTuple):
    """One safeguard. `patch` takes it out for a block; `rule` is what has to be seen broken; `kinds` are the purchases
    that can show it."""

    name: str
    rule: str
    patch: Callable[[], contextlib.AbstractContextManager[Any]]
    kinds: tuple[str, ...] = shop.KINDS


def find_seed(ablation: Ablation, first: int, last: int) -> int | None:
    """The first seed whose history breaks the rule with the safeguard gone."""
    with ablation.patch():
        for seed in range(first, last):
            problems = check(World(seed, shop.SHOP, kinds=ablation.kinds).run())
            if any(read_rule(problem) == ablation.rule for problem in problems):
                return seed
    return None


def _unfenced(kind: type[Any]) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """An operation that is carried out whoever sends it."""

    @contextmanager
    def patch() -> Iterator[None]:
        original = moves.move

        def move(found: Record | None, op: Any, now: int) -> Any:
            if found is not None and type(op) is kind:
                allowed, change = moves.FENCED_MOVES[kind]
                after = change(found, op, now) if found.state in allowed else None
                if after is not None:
                    return after, True
            return original(found, op, now)

        with mock.patch("retrysafe.stores.memory.move", move):
            yield

    return patch


def _grant(change: Callable[[Record, ops.Claim, int], bool]) -> Callable[[], contextlib.AbstractContextManager[Any]]:
    """A claim that is granted where it must not be."""

    def patch() -> contextlib.AbstractContextManager[Any]:
        original = moves.decide_grant

        def decide_grant(found: Record | None, op: ops.Claim, now: int) -> moves.Grant | None:
            decided = original(found, op, now)
            if decided is None and found is not None and not op.resumes and change(found, op, now):
                return moves.Grant.TAKEOVER
            return decided

        return mock.patch.object(moves, "decide_grant", decide_grant)

    return patch


def _advance_any() -> contextlib.AbstractContextManager[Any]:
    original = moves.advance

    def advance(record: Record, op: ops.Advance, now: int) -> Record | None:
        return original(record._replace(advances=op.number - 1), op, now)

    return mock.patch.dict(moves.FENCED_MOVES, {ops.Advance: (OPEN, advance)})


def _complete_twice() -> contextlib.AbstractContextManager[Any]:
    return mock.patch.dict(moves.FENCED_MOVES, {ops.Complete: (OPEN | SETTLED, moves.complete)})


def _suspect_the_living() -> contextlib.AbstractContextManager[Any]:
    def suspect(record: Record, op: ops.Suspect, now: int) -> Record | None:
        return moves.suspect(record._replace(lease_until=now - 1), op, now) if op.lapsed_only else None

    return mock.patch.dict(moves.FENCED_MOVES, {ops.Suspect: (OPEN, suspect)})


def _reap_all() -> contextlib.AbstractContextManager[Any]:
    return mock.patch("retrysafe.stores.memory.reapable", lambda record, now: record.started < now - 60_000_000)


def _new_key_each_time() -> contextlib.AbstractContextManager[Any]:
    original = run.OperationRun.derive_key

    def derive_key(self: Any, *args: Any, **kwargs: Any) -> str:
        return original(self, *args, **kwargs)[:40] + os.urandom(8).hex()

    return mock.patch.object(run.OperationRun, "derive_key", derive_key)


def _repeat_the_unrepeatable() -> contextlib.AbstractContextManager[Any]:
    def send_once(attempt: Any, step: Any, place: int, given: Any, begun: Any, *, asked_before: bool) -> Any:
        return (yield from foreign.send_repeatably(attempt, step, place, given, attempt.latest_time()))

    return mock.patch.object(foreign, "send_once", send_once)


def _forget_the_lease() -> contextlib.AbstractContextManager[Any]:
    """A guard whose owner died may run again, whatever its policy says."""
    original = guard.Task.build_claim

    def build_claim(self: Any) -> ops.Claim:
        from dataclasses import replace

        return replace(original(self), on_lapse="rerun")

    return mock.patch.object(guard.Task, "build_claim", build_claim)


ABLATIONS = (
    *(
        Ablation(f"no fence on {kind.__name__}", "I4 fence", _unfenced(kind))
        for kind in (ops.Renew, ops.Advance, ops.Complete, ops.Release, ops.Suspect)
    ),
    Ablation(
        "no lease",
        "I2 no grant while a lease is live",
        _grant(lambda found, op, now: found.state is State.CLAIMED and op.accepts(found.fingerprint)),
    ),
    Ablation(
        "uncertain runs again",
        "I2 no grant of what is uncertain",
        _grant(lambda found, op, now: found.state is State.UNCERTAIN and op.token not in found.ended),
    ),
    Ablation(
        "completed runs again",
        "I5 write-once",
        _grant(lambda found, op, now: found.state is State.COMPLETED and found.token != op.token),
    ),
    Ablation(
        "a token is granted again",
        "I32 late copies",
        _grant(lambda found, op, now: found.state is State.RELEASED and op.token in (found.token, *found.ended)),
    ),
    Ablation("advances without a number", "I32 late copies", _advance_any, ("saga",)),
    Ablation("a completion replaces another", "I5 write-once", _complete_twice),
    Ablation("the sweeper suspects the living", "one effect", _suspect_the_living, ("guard", "web")),
    Ablation("the reaper takes what is unfinished", "I13 nothing is lost", _reap_all),
    Ablation("a new downstream key each time", "one effect", _new_key_each_time, ("operation", "saga")),
    Ablation("what may not be repeated is repeated", "one effect", _repeat_the_unrepeatable, ("careful",)),
    Ablation("a dead owner's guard runs again", "one effect", _forget_the_lease, ("guard", "web")),
)
