"""What the batches of SQL stores have in common: which operations share statements, and what one statement for many
cannot decide."""

from __future__ import annotations

from collections.abc import Container, Sequence
from typing import Any

from retrysafe.core.moves import decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.records import Record
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.base import BatchRefused

SEND_UNBATCHED = object()
"""In the place of a reply: execute this operation alone."""

HELD = object()
"""In the place of a reply: another transaction has locked the row, and the renewal did not wait for it."""


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


def held_rows_error(replies: Sequence[Any]) -> BatchRefused:
    """For a batch in which some renewals met a locked row. The other operations of the batch are committed."""
    each = [row_held_error() if reply is HELD else reply for reply in replies]
    return BatchRefused("a key of this batch is held by an open transaction; send its operation again", each)


def row_held_error() -> StoreUnavailable:
    """For a renewal whose row is still locked after its short wait."""
    return StoreUnavailable(
        "the key's row is held by an open transaction; nothing was done: end that transaction, and send the operation "
        "again"
    )


def partly_committed_error(error: StoreError) -> StoreUnclear:
    return StoreUnclear(f"a part of this batch is committed, another part is not: {error}")
