"""Rules that are checked on every operation that the store carries out, whoever sent it.

The store under watch may itself be wrong: that is what an ablation of `core/moves.py` does. So nothing here calls it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, TypeVar

from retrysafe.core.ops import Advance, Claim, ClaimReply, Complete, Forget, Op, Reap, Resolve
from retrysafe.core.records import Record
from retrysafe.core.states import SETTLED, State
from retrysafe.stores.memory import MemoryStore
from retrysafe.testing.simulation.loop import SimulatedLoop

R = TypeVar("R")


class WatchedRecords:
    """A memory store whose every change is looked at."""

    def __init__(self, records: MemoryStore, loop: SimulatedLoop, broken: list[str]) -> None:
        self.capabilities = records.capabilities
        self._records = records
        self._loop = loop
        self._broken = broken
        self._granted: dict[tuple[bytes, bytes, int], bytes] = {}
        self._ended: dict[bytes, set[bytes]] = {}
        """The tokens of each record's attempts that are over."""
        self._points: dict[tuple[bytes, bytes], list[bytes]] = {}
        """What was in progress in each attempt, in order."""

    def execute(self, op: Op[R]) -> R:
        record_id: bytes | None = getattr(op, "id", None)
        before = self._records._records.get(record_id) if record_id is not None else None
        now = time.time_ns() // 1000
        kept = list(self._records._records.values()) if isinstance(op, Reap) else []
        reply = self._records.execute(op)
        after = self._records._records.get(record_id) if record_id is not None else None
        if isinstance(op, Claim):
            self._watch_claim(op, reply, before, after, now)
        elif isinstance(op, Reap):
            self._watch_reaping(kept)
        elif before is not None:
            self._watch_answer(op, before, after)
            self._watch_progress(op, before, after)
        if before is not None and (after is None or after.token != before.token or after.state in SETTLED):
            self._ended.setdefault(before.id, set()).add(before.token)
        return reply

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return [self.execute(op) for op in ops]

    def migrate(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""

    def _watch_claim(self, op: Claim, reply: Any, before: Record | None, after: Record | None, now: int) -> None:
        assert isinstance(reply, ClaimReply)
        if not reply.granted or after is None:
            return
        grant = (op.id, after.run, after.attempt)
        known = self._granted.setdefault(grant, op.token)
        if known != op.token:
            self._report("I1 single grant", f"attempt {after.attempt} of {op.key} was granted to two claims")
        if op.token in self._ended.get(op.id, ()):
            self._report("I32 late copies", f"a late copy of a claim of {op.key} was granted to nobody")
        if before is None or before.token == op.token:
            return
        if before.state is State.CLAIMED and before.lease_until > now:
            self._report("I2 no grant while a lease is live", f"{op.key} was granted while its lease was live")
        if before.state is State.UNCERTAIN:
            self._report("I2 no grant of what is uncertain", f"{op.key} was granted although nobody knows how it ended")
        if before.state is State.COMPLETED and not before.expired(now):
            self._report("I5 write-once", f"{op.key} was granted again after it was completed")
        if before.fingerprint != op.fingerprint and not before.expired(now) and not op.accepts(before.fingerprint):
            self._report("I8 mismatch", f"{op.key} was granted to another request")
        if after.run == before.run and after.attempt != before.attempt + 1:
            self._report("I3 attempts grow", f"{op.key} went from attempt {before.attempt} to {after.attempt}")

    def _watch_answer(self, op: Op[Any], before: Record, after: Record | None) -> None:
        if after is None:
            self._report("I13 nothing is lost", f"{type(op).__name__} removed the record of {before.key}")
            return
        if before.answer is not None and after.answer != before.answer and not isinstance(op, Forget):
            self._report("I5 write-once", f"{type(op).__name__} replaced the answer of {before.key}")
        fence = getattr(op, "fence", None)
        changed = after != before
        if changed and fence is not None and (fence.attempt, fence.token) != (before.attempt, before.token):
            self._report("I4 fence", f"{type(op).__name__} of another attempt changed {before.key}")
        if changed and before.state is State.COMPLETED and isinstance(op, Complete | Resolve):
            self._report("I5 write-once", f"{type(op).__name__} changed {before.key}, which was completed")

    def _watch_progress(self, op: Op[Any], before: Record, after: Record | None) -> None:
        if not isinstance(op, Advance) or after is None or after == before:
            return
        seen = self._points.setdefault((after.id, after.token), [before.progress])
        if after.progress in seen[:-1]:
            self._report("I32 late copies", f"a late advance moved {after.key} back to {after.point!r}")
        seen.append(after.progress)

    def _watch_reaping(self, before: list[Record]) -> None:
        for record in before:
            if record.id not in self._records._records and record.state not in SETTLED:
                self._report("I13 nothing is lost", f"{record.key} was reaped while it was {record.state.value}")

    def _report(self, rule: str, what: str) -> None:
        self._broken.append(f"{rule}: {what} at {self._loop.now:.3f} s")


def watch_records(records: MemoryStore, loop: SimulatedLoop, broken: list[str]) -> Any:
    return WatchedRecords(records, loop, broken)
