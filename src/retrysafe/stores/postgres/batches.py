"""Many operations of one kind as one statement: arrays in, rows out, one commit.

What the statement does not settle by itself (a claim that may take over, a fenced write that was refused or had
happened before) is left to the plain plan of that operation, afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from retrysafe.core.moves import grantable
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Release, Renew
from retrysafe.stores.base import Plan
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.dialect import Statement

UNSETTLED = object()
"""In the place of a reply: ask for this one alone."""


def together(ops: Sequence[Op[Any]]) -> bool:
    """Whether one statement can carry them: one kind that has one, one clock, no key twice."""
    kind = type(ops[0])
    return (
        kind in BATCHES
        and all(type(op) is kind and op.now == ops[0].now for op in ops)  # type: ignore[attr-defined]
        and len({op.id for op in ops}) == len(ops)  # type: ignore[attr-defined]
    )


def plan(texts: dict[str, str], ops: Sequence[Any]) -> Plan[Statement, list[Any]]:
    """The replies in the order of the operations, UNSETTLED where one needs a second look."""
    name, values_of, read = BATCHES[type(ops[0])]
    each = [values_of(op) for op in ops]
    values = {field: [row[field] for row in each] for field in each[0]}
    found = yield Statement(texts[name], {**values, "now": ops[0].now})
    return read(ops, found)


def _claim_values(op: Claim) -> dict[str, Any]:
    values = rows.claim_values(op)
    del values["now"]
    return values


def _read_claims(ops: Sequence[Claim], found: Sequence[Sequence[Any]]) -> list[Any]:
    seen = {bytes(row[2]): row for row in found}
    return [_read_claim(op, seen.get(op.id)) for op in ops]


def _read_claim(op: Claim, row: Sequence[Any] | None) -> Any:
    if row is None:
        return UNSETTLED
    granted, moment, *columns = row
    record = rows.read(columns)
    if not granted and grantable(record, op, moment) is not None:
        return UNSETTLED
    return ClaimReply(bool(granted), record, moment)


def _read_fenced(ops: Sequence[Any], found: Sequence[Sequence[Any]]) -> list[Any]:
    done = {bytes(row[0]) for row in found}
    return [True if op.id in done else UNSETTLED for op in ops]


def _fenced(op: Any, **more: Any) -> dict[str, Any]:
    return {"id": op.id, "attempt": op.fence.attempt, "token": op.fence.token, **more}


Batch = tuple[str, Callable[[Any], dict[str, Any]], Callable[[Sequence[Any], Any], list[Any]]]

BATCHES: dict[type[Any], Batch] = {
    Claim: ("claim_many", _claim_values, _read_claims),
    Complete: ("complete_many", lambda op: _fenced(op, **rows.answer_values(op.answer)), _read_fenced),
    Renew: ("renew_many", lambda op: _fenced(op, lease=op.lease), _read_fenced),
    Release: ("release_many", lambda op: _fenced(op, note=op.note), _read_fenced),
}
