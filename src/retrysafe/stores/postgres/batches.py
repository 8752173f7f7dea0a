"""Many operations of one kind as one statement: arrays in, rows out, one commit.

What the statement does not settle by itself (a claim that may take over, a fenced write that was refused or had
happened before) is left to the plain plan of that operation, afterwards.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrysafe.core.moves import born, grantable
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Release, Renew
from retrysafe.stores.base import Plan
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.dialect import Statement

UNSETTLED = object()
"""In the place of a reply: ask for this one alone."""


class Batch(NamedTuple):
    """How one kind goes together. `values` gives an operation's fields, in the order of their names."""

    text: str
    names: tuple[str, ...]
    values: Callable[[Any], tuple[Any, ...]]
    read: Callable[[Sequence[Any], Any], list[Any]]
    prepared: bool


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
    batch = BATCHES[type(ops[0])]
    columns = zip(*map(batch.values, ops), strict=True)
    values: dict[str, Any] = {name: array(column) for name, column in zip(batch.names, columns, strict=True)}
    values["now"] = ops[0].now
    found = yield Statement(texts[batch.text], values, prepared=batch.prepared)
    return batch.read(ops, found)


def array(values: Sequence[Any]) -> str:
    """An array as PostgreSQL writes it. The driver's own arrays take ten times as long for a batch."""
    first = values[0]
    element = _text if isinstance(first, str) else _bytea if isinstance(first, bytes) else int.__repr__
    return "{" + ",".join(map(element, values)) + "}"


def _text(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _bytea(value: bytes) -> str:
    return '"\\\\x' + value.hex() + '"'


# Claims -----------------------------------------------------------------------------------------

_CLAIM = (
    "id", "namespace", "kind", "scope", "key", "target", "fingerprint", "token", "run", "lease", "retention",
    "on_lapse", "input",
)  # fmt: skip


def _claim(op: Claim) -> tuple[Any, ...]:
    return (
        op.id, op.namespace, op.kind, op.scope, op.key, op.target, str(op.fingerprint), op.token, op.run, op.lease,
        op.retention, op.on_lapse, op.input,
    )  # fmt: skip


def _read_claims(ops: Sequence[Claim], found: Sequence[Sequence[Any]]) -> list[Any]:
    seen = {row[2]: row for row in found}
    return [_read_claim(op, seen.get(op.id)) for op in ops]


def _read_claim(op: Claim, row: Sequence[Any] | None) -> Any:
    if row is None:
        return UNSETTLED
    granted, moment, _, *columns = row
    if granted:
        return ClaimReply(True, born(op, moment), moment)
    if columns[0] is None:  # inserted by somebody else after our snapshot
        return UNSETTLED
    record = rows.read(columns)
    return UNSETTLED if grantable(record, op, moment) is not None else ClaimReply(False, record, moment)


# Fenced writes ----------------------------------------------------------------------------------

_FENCE = ("id", "attempt", "token")


def _complete(op: Complete) -> tuple[Any, ...]:
    answer = op.answer
    fence = (op.id, op.fence.attempt, op.fence.token)
    return (*fence, answer.status, rows.write_headers(answer), answer.body, answer.gone)


def _read_fenced(ops: Sequence[Any], found: Sequence[Sequence[Any]]) -> list[Any]:
    done = {row[0] for row in found}
    return [True if op.id in done else UNSETTLED for op in ops]


# A plan that was made once and kept would read the whole table for each of these: they are planned each time, which
# costs a fraction of a millisecond for all of them together (tests/batching/test_plans.py).
BATCHES: dict[type[Any], Batch] = {
    Claim: Batch("claim_many", _CLAIM, _claim, _read_claims, prepared=True),
    Complete: Batch(
        "complete_many", (*_FENCE, "status", "headers", "body", "gone"), _complete, _read_fenced, prepared=False
    ),
    Renew: Batch(
        "renew_many",
        (*_FENCE, "lease"),
        lambda op: (op.id, op.fence.attempt, op.fence.token, op.lease),
        _read_fenced,
        prepared=False,
    ),
    Release: Batch(
        "release_many",
        (*_FENCE, "note"),
        lambda op: (op.id, op.fence.attempt, op.fence.token, op.note),
        _read_fenced,
        prepared=False,
    ),
}
