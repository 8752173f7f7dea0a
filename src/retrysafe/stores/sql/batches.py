"""What the batches of SQL stores have in common: which operations share statements, and what one statement for many
cannot decide."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from retrysafe.core.moves import decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.records import Record

SEND_UNBATCHED = object()
"""In the place of a reply: execute this operation alone."""


def is_batchable(ops: Sequence[Op[Any]], kinds: Container[type[Any]]) -> bool:
    """True if these operations can share statements: every kind has one, all have the same `now`, no key occurs twice,
    and no claim resumes a run (it must not insert)."""
    now = getattr(ops[0], "now", None)
    ids: set[bytes] = set()
    for op in ops:
        kind: Any = type(op)
        if kind not in kinds or op.now != now or (kind is Claim and op.resumes):  # type: ignore[attr-defined]
            return False
        ids.add(op.id)  # type: ignore[attr-defined]
    return len(ids) == len(ops)


def read_refusal(op: Claim, record: Record, moment: int) -> Any:
    """The reply to a claim that met a record; SEND_UNBATCHED if it may be granted."""
    return SEND_UNBATCHED if decide_grant(record, op, moment) is not None else ClaimReply(False, record, moment)
