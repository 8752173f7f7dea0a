"""The rules of the record itself (core/moves.py), which the memory store runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest import mock

from retrysafe.core import moves, ops
from retrysafe.core.records import CLOSED, Record
from retrysafe.core.states import OPEN, SETTLED, State
from retrysafe.stores import memory
from retrysafe.testing.simulation.store import RemoteStore
from tests.simulation.ablations.base import Ablation, Patch, Situation, always, calm, change, put
from tests.simulation.ablations.reach import watch
from tests.simulation.scenarios.operations import OPERATIONS
from tests.simulation.scenarios.web import WEB


def unfence(kind: type[Any]) -> Patch:
    """An operation that is carried out whoever sends it."""

    @contextmanager
    def patch() -> Iterator[None]:
        original = moves.move

        def move(found: Record | None, op: Any, now: int) -> Any:
            if found is not None and type(op) is kind:
                allowed, apply = moves.FENCED_MOVES[kind]
                after = apply(found, op, now) if found.state in allowed else None
                if after is not None:
                    return after, True
            return original(found, op, now)

        with put(memory, "move", move):
            yield

    return patch


def grant(wrongly: Callable[[Record, ops.Claim, int], bool], how: moves.Grant = moves.Grant.TAKEOVER) -> Patch:
    """A claim that is granted where it must not be."""

    def patch() -> AbstractContextManager[Any]:
        original = moves.decide_grant

        def decide_grant(found: Record | None, op: ops.Claim, now: int) -> moves.Grant | None:
            decided = original(found, op, now)
            if decided is None and found is not None and not op.resumes and wrongly(found, op, now):
                return how
            return decided

        return put(moves, "decide_grant", decide_grant)

    return patch


def refuse(wrongly: Callable[[Record, ops.Claim, moves.Grant], bool]) -> Patch:
    """A claim that is refused where it must be granted."""

    def patch() -> AbstractContextManager[Any]:
        original = moves.decide_grant

        def decide_grant(found: Record | None, op: ops.Claim, now: int) -> moves.Grant | None:
            decided = original(found, op, now)
            return None if found is not None and decided is not None and wrongly(found, op, decided) else decided

        return put(moves, "decide_grant", decide_grant)

    return patch


def allow(kind: type[Any], states: frozenset[State], apply: Any) -> Patch:
    """Another rule for one operation."""
    return lambda: mock.patch.dict(moves.FENCED_MOVES, {kind: (states, watch(f"moves.{kind.__name__}", apply))})


def advance_any(record: Record, op: ops.Advance, now: int) -> Record | None:
    return moves.advance(record._replace(advances=op.number - 1), op, now)


def suspect_the_living(record: Record, op: ops.Suspect, now: int) -> Record | None:
    return moves.suspect(record._replace(lease_until=now - 1) if op.lapsed_only else record, op, now)


def renew_what_was_given_up(record: Record, op: ops.Renew, now: int) -> Record | None:
    open_again = record._replace(advances=0) if record.advances == CLOSED else record
    return moves.renew(open_again, op, now)


def count_leases_by_the_senders_clock() -> AbstractContextManager[Any]:
    original = RemoteStore.execute_many

    async def execute_many(self: RemoteStore, sent: Any) -> list[Any]:
        now = time.time_ns() // 1000
        return await original(self, [replace(op, now=now) if hasattr(op, "now") else op for op in sent])

    return put(RemoteStore, "execute_many", execute_many)


GUARDS = Situation(kinds=("guard", "web", "rerun"))
CORRECTED = Situation(WEB, ("corrected",), change(held_back=0.2, reply_lost=0.2))

ABLATIONS = (
    Ablation("no fence on Advance", "I4 fence", unfence(ops.Advance)),
    Ablation("no fence on Release", "I4 fence", unfence(ops.Release)),
    Ablation(
        "no fence on Suspect",
        "I4 fence",
        unfence(ops.Suspect),
        Situation(OPERATIONS, ("found",), calm(doubled=0.3, reply_lost=0.2, refused=0.1)),
    ),
    Ablation("no fence on Complete", "I4 fence", unfence(ops.Complete), Situation(kinds=("rerun",))),
    Ablation("no fence on Renew", "I4 fence", unfence(ops.Renew), Situation(kinds=("rerun",))),
    Ablation("no fence on Withdraw", "I4 fence", unfence(ops.Withdraw), CORRECTED),
    Ablation("the fence is the attempt alone", "I4 fence", always(moves, "owns", True), CORRECTED),
    Ablation(
        "no lease",
        "I2 no grant while a lease is live",
        grant(lambda found, op, now: found.state is State.CLAIMED and op.accepts(found.fingerprint)),
    ),
    Ablation(
        "leases by the sender's clock",
        "I2 no grant while a lease is live",
        count_leases_by_the_senders_clock,
        Situation(kinds=("rerun", "operation"), plan=change(skew=600.0)),
    ),
    Ablation(
        "uncertain runs again",
        "I2 no grant of what is uncertain",
        grant(lambda found, op, now: found.state is State.UNCERTAIN and op.token not in found.ended),
    ),
    Ablation(
        "completed runs again",
        "I5 write-once",
        grant(lambda found, op, now: found.state is State.COMPLETED and found.token != op.token),
    ),
    Ablation(
        "a token is granted again",
        "I32 late copies",
        grant(lambda found, op, now: found.state is State.RELEASED and op.token in (found.token, *found.ended)),
    ),
    Ablation(
        "a takeover forgets the tokens before it",
        "I32 late copies",
        lambda: put(Record, "ended_with_this", property(lambda record: ())),
    ),
    Ablation(
        "advances without a number",
        "I32 late copies",
        allow(ops.Advance, OPEN, advance_any),
        Situation(kinds=("saga",)),
    ),
    Ablation("a completion replaces another", "I5 write-once", allow(ops.Complete, OPEN | SETTLED, moves.complete)),
    Ablation(
        "the sweeper suspects the living",
        "I2 the living are not suspected",
        allow(ops.Suspect, OPEN, suspect_the_living),
        Situation(kinds=("guard", "web"), plan=calm(freezes=8, slow=0.4, tick=5.0, purchases=3)),
    ),
    Ablation(
        "a renewal brings back what was given up",
        "I32 late copies",
        allow(ops.Renew, OPEN, renew_what_was_given_up),
        Situation(kinds=("careful",), plan=change(held_back=0.2, reply_lost=0.2)),
    ),
    Ablation(
        "the reaper takes what is unfinished",
        "I13 nothing is lost",
        lambda: put(memory, "reapable", lambda record, now: record.started < now - 60_000_000),
    ),
    Ablation(
        "an own claim is not recognised",
        "I32 nothing is burnt",
        refuse(lambda found, op, decided: decided is moves.Grant.OWN),
        Situation(kinds=("guard", "web")),
    ),
    Ablation(
        "an own success is not recognised",
        "I11 own success is recognised",
        always(moves, "is_recognised", False),
    ),
    Ablation(
        "expired is not new",
        "I12 expired means new",
        refuse(lambda found, op, decided: decided is moves.Grant.REBIRTH),
        CORRECTED,
    ),
    Ablation(
        "a claim is granted to another request",
        "I8 mismatch",
        grant(lambda found, op, now: found.state is State.RELEASED and not op.accepts(found.fingerprint)),
        Situation(WEB, ("redirected", "plain"), change(freezes=2)),
    ),
)
