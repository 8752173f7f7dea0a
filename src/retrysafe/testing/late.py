"""Late copies: what was sent once arrives again, after its resend and after what followed (rule 13, I32).

`resending(do)` is a transport. After each operation it sends copies of earlier writes of the same key once more, as a
network that had held them back would, and looks whether anything changed.
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
"""Of each key: the newest writes. Each later operation is followed by a copy of every one of them."""

COPIED_OPS = (Claim, Renew, Advance, Complete, Release, Withdraw, Suspect, Resolve, Forget)
assert {*COPIED_OPS} == {Claim, *FENCED}


def has_succeeded(reply: Any) -> bool:
    """Only of what was done a second copy must change nothing. A claim that was refused may be granted later: its owner
    has to see to that (engine/aperform.py)."""
    return reply.granted if isinstance(reply, ClaimReply) else reply is True


def may_change_again(op: Op[Any]) -> bool:
    """Those that may change something when they arrive once more: the sweeper judges by what is there then, and a
    renewal makes a lease longer (never shorter: contract/late.py)."""
    return isinstance(op, Renew) or (isinstance(op, Suspect) and op.lapsed_only)


class LateCopies:
    """What was sent so far, by key."""

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
            self._sent.clear()  # what is gone knows nobody: an hour after its end, at the least, a copy is born again
        for op, reply in zip(ops, replies, strict=True):
            if isinstance(op, COPIED_OPS):
                for earlier in self._sent.get(op.id, ()):
                    self._check_copy_changes_nothing(earlier, op.now)
                if has_succeeded(reply) and not may_change_again(op):
                    self._sent[op.id] = [op, *self._sent.get(op.id, ())][:MAX_REMEMBERED_OPS]

    def _check_copy_changes_nothing(self, copy: Any, now: int | None) -> None:
        """By the store's clock it arrives now, whenever it was sent."""
        before = self._read_record(copy, now)
        self._do(replace(copy, now=now))
        after = self._read_record(copy, now)
        assert after == before, f"a late copy of {copy} changed {before} into {after}"

    def _read_record(self, op: Any, now: int | None) -> Record | None:
        return self._do(Lookup(op.id, now)).record


def resending(do: Do) -> Do:
    late = LateCopies(do)
    return do.through(late.execute, late.execute_many)
