"""Many operations as few statements (group commit): one statement for each kind, with arrays as parameters and one
commit for all of them.

A statement cannot decide every operation: a claim that may take over, a fenced write that was refused or had happened
before. The plain plan of such an operation runs afterwards.

The kinds are sent in the order of BATCHES, claims first, and each kind is sorted by id. So two batches of two processes
cannot deadlock: a batch that waits with its claims holds only new rows, which no other transaction can see yet.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from retrysafe.core.moves import build_new_record
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Release, Renew, Withdraw
from retrysafe.stores.postgres import arrays
from retrysafe.stores.postgres.arrays import Pack
from retrysafe.stores.postgres.pipeline import BoundStatement, number_parameters
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.batches import SEND_UNBATCHED, is_batchable, read_refusal

Rows = Sequence[Sequence[Any]]


class BatchStatement(NamedTuple):
    """How operations of one kind are batched. `values` returns an operation's fields in the order of `columns`, and
    `columns` has the packing function of each."""

    text: str
    columns: dict[str, Pack]
    values: Callable[[Any], tuple[Any, ...]]
    read: Callable[[Sequence[Any], Rows], list[Any]]


class OpGroup(NamedTuple):
    """Operations of one kind, sorted by id, and their statement."""

    ops: Sequence[Any]
    part: BoundStatement
    read: Callable[[Sequence[Any], Rows], list[Any]]


def can_batch(ops: Sequence[Op[Any]]) -> bool:
    return is_batchable(ops, BATCHES)


def group_by_kind(texts: dict[str, str], ops: Sequence[Any]) -> list[OpGroup]:
    """Build the statement of each kind. Raises UnicodeError or struct.error for a value that cannot be packed."""
    kinds: dict[type[Any], list[Any]] = {kind: [] for kind in BATCHES}
    for op in ops:
        kinds[type(op)].append(op)
    return [_build_group(texts, BATCHES[kind], found) for kind, found in kinds.items() if found]


def _build_group(texts: dict[str, str], batch: BatchStatement, ops: list[Any]) -> OpGroup:
    ops.sort(key=_ID)
    columns = zip(*map(batch.values, ops), strict=True)
    packed: dict[str, bytes | None] = {
        name: pack(column) for (name, pack), column in zip(batch.columns.items(), columns, strict=True)
    }
    packed["now"] = None if ops[0].now is None else ops[0].now.to_bytes(8, "big", signed=True)
    text = number_parameters(texts[batch.text])
    return OpGroup(ops, BoundStatement(text, [packed[name] for name in text.parameters]), batch.read)


_ID = attrgetter("id")


def settings_part(texts: dict[str, str]) -> BoundStatement:
    """The first statement of every batch (settings_many.sql)."""
    return BoundStatement(number_parameters(texts["settings_many"]), ())


def read_replies(ops: Sequence[Any], sent: Sequence[OpGroup], answers: Sequence[Rows]) -> list[Any]:
    """The replies in the order of the operations; SEND_UNBATCHED for an operation that must be executed alone."""
    found: dict[bytes, Any] = {}
    for group, answer in zip(sent, answers, strict=True):
        found.update(zip(map(_ID, group.ops), group.read(group.ops, answer), strict=True))
    return [found[op.id] for op in ops]


# Claims -----------------------------------------------------------------------------------------

_CLAIM_COLUMNS: dict[str, Pack] = {
    "id": arrays.pack_bytea,
    "namespace": arrays.pack_text,
    "kind": arrays.pack_text,
    "scope": arrays.pack_text,
    "key": arrays.pack_text,
    "target": arrays.pack_text,
    "fingerprint": arrays.pack_text,
    "token": arrays.pack_bytea,
    "run": arrays.pack_bytea,
    "lease": arrays.pack_bigint,
    "retention": arrays.pack_bigint,
    "on_lapse": arrays.pack_text,
    "input": arrays.pack_bytea,
}


def _claim_values(op: Claim) -> tuple[Any, ...]:
    return (
        op.id, op.namespace, op.kind, op.scope, op.key, op.target, str(op.fingerprint), op.token, op.run, op.lease,
        op.retention, op.on_lapse, op.input,
    )  # fmt: skip


def _read_claims(ops: Sequence[Claim], found: Rows) -> list[Any]:
    """Read which claims are granted. The inserted rows and the refused claims must add up to all claims (I1)."""
    taken = {row[2]: row for row in found if row[2] is not None}
    if not found or found[0][0] + len(taken) != len(ops):
        return [SEND_UNBATCHED] * len(ops)
    moment = found[0][1]
    if not taken:
        return [ClaimReply(True, build_new_record(op, moment), moment) for op in ops]
    return [_read_claim(op, taken.get(op.id), moment) for op in ops]


def _read_claim(op: Claim, row: Sequence[Any] | None, moment: int) -> Any:
    if row is None:
        return ClaimReply(True, build_new_record(op, moment), moment)
    columns = row[3:]
    if columns[0] is None:  # another transaction inserted it after our snapshot
        return SEND_UNBATCHED
    return read_refusal(op, rows.read_record(columns), moment)


# Fenced writes ----------------------------------------------------------------------------------

_FENCE_COLUMNS: dict[str, Pack] = {"id": arrays.pack_bytea, "attempt": arrays.pack_integer, "token": arrays.pack_bytea}


def _complete_values(op: Complete) -> tuple[Any, ...]:
    answer = op.answer
    fence = op.fence
    return (
        op.id, fence.attempt, fence.token, answer.status, rows.write_headers(answer), answer.body, answer.gone
    )  # fmt: skip


def _note_values(op: Release | Withdraw) -> tuple[Any, ...]:
    return (op.id, op.fence.attempt, op.fence.token, op.note)


def _read_fenced(ops: Sequence[Any], found: Rows) -> list[Any]:
    if len(found) == len(ops):  # ids are unique, in the table and in the batch
        return [True] * len(ops)
    done = {row[0] for row in found}
    return [True if op.id in done else SEND_UNBATCHED for op in ops]


BATCHES: dict[type[Any], BatchStatement] = {
    Claim: BatchStatement("claim_many", _CLAIM_COLUMNS, _claim_values, _read_claims),
    Renew: BatchStatement(
        "renew_many",
        {**_FENCE_COLUMNS, "lease": arrays.pack_bigint},
        lambda op: (op.id, op.fence.attempt, op.fence.token, op.lease),
        _read_fenced,
    ),
    Complete: BatchStatement(
        "complete_many",
        {
            **_FENCE_COLUMNS,
            "status": arrays.pack_integer,
            "headers": arrays.pack_text,
            "body": arrays.pack_bytea,
            "gone": arrays.pack_text,
        },
        _complete_values,
        _read_fenced,
    ),
    Release: BatchStatement("release_many", {**_FENCE_COLUMNS, "note": arrays.pack_text}, _note_values, _read_fenced),
    Withdraw: BatchStatement("withdraw_many", {**_FENCE_COLUMNS, "note": arrays.pack_text}, _note_values, _read_fenced),
}
