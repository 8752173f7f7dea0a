"""Late copies: a write arrives a second time, after its resend and after later writes (rule 13, I32).

`with_late_copies(do)` wraps a `Do`. After each operation it sends copies of earlier writes of the same key, as a
network that delayed them would, and checks that they change nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from retrysafe.core.ops import (
    FENCED,
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Forget,
    Lookup,
    Op,
    Reap,
    Release,
    Renew,
    Resolve,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import Record
from retrysafe.testing.driver import Do

MAX_REMEMBERED_OPS = 5
"""The number of writes kept for each key, newest first. After each later operation a copy of every one is sent."""

COPIED_OPS = (Claim, Renew, Advance, Complete, Release, Withdraw, Suspect, Resolve, Forget)
assert {*COPIED_OPS} == {Claim, *FENCED}


def has_succeeded(reply: Any) -> bool:
    """True if the operation was applied. Only then a second copy must change nothing. A copy of a refused claim may be
    granted later: the engine has to give it back (engine/orphaned_claims.py)."""
    return reply.granted if isinstance(reply, ClaimReply) else reply is True


def may_change_again(op: Op[Any]) -> bool:
    """True if a second copy may change something. The sweeper decides by the record at that time, and a renewal may
    make the lease longer (never shorter: contract/late.py)."""
    return isinstance(op, Renew) or (isinstance(op, Suspect) and op.lapsed_only)


class LateCopies:
    """Runs operations, and sends copies of the earlier writes of the same key after each."""

    def __init__(self, do: Do) -> None:
        self._do = do
        self._sent: dict[bytes, list[Any]] = {}

    def execute(self, op: Op[Any]) -> Any:
        reply = self._do(op)
        self._resend_copies([op], [reply])
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        replies = self._do.many(ops)
        self._resend_copies(ops, replies)
        return replies

    def _resend_copies(self, ops: Sequence[Op[Any]], replies: Sequence[Any]) -> None:
        if any(isinstance(op, Reap) for op in ops):
            # A reaped record knows no tokens, so a copy of its claim may be granted, an hour after its end or later.
            self._sent.clear()
        for op, reply in zip(ops, replies, strict=True):
            if isinstance(op, COPIED_OPS):
                for earlier in self._sent.get(op.id, ()):
                    self._check_copy_changes_nothing(earlier, op.now)
                if has_succeeded(reply) and not may_change_again(op):
                    self._sent[op.id] = [op, *self._sent.get(op.id, ())][:MAX_REMEMBERED_OPS]

    def _check_copy_changes_nothing(self, copy: Any, now: int | None) -> None:
        """Send a copy that arrives at `now`, and compare the record before and after."""
        before = self._read_record(copy, now)
        self._do(replace(copy, now=now))
        after = self._read_record(copy, now)
        assert after == before, f"a late copy of {copy} changed {before} into {after}"

    def _read_record(self, op: Any, now: int | None) -> Record | None:
        return self._do(Lookup(op.id, now)).record


def with_late_copies(do: Do) -> Do:
    """A `Do` that sends late copies after each operation."""
    copies = LateCopies(do)
    return do.through(copies.execute, copies.execute_many)
