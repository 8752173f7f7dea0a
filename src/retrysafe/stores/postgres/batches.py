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
from retrysafe.core.ops import Claim, ClaimReply, Complete, Release, Renew, Withdraw
from retrysafe.core.records import Answer
from retrysafe.stores.postgres import arrays
from retrysafe.stores.postgres.arrays import Pack
from retrysafe.stores.postgres.pipeline import BoundStatement, StatementRows, number_parameters
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.batches import HELD, SEND_UNBATCHED, is_batchable, read_refusal

CLAIM_AGAIN = object()
"""In the place of a reply: the claim only tried to insert and met a record, or only looked for a record and found none.
Send the whole claim, together with others."""

ReadReplies = Callable[[Sequence[Any], StatementRows], list[Any]]


class BatchStatement(NamedTuple):
    """How operations of one kind are batched. `values` returns an operation's fields in the order of `columns`, and
    `columns` has the packing function of each."""

    text: str
    columns: dict[str, Pack]
    values: Callable[[Any], tuple[Any, ...]]
    read: ReadReplies


class OpGroup(NamedTuple):
    """Operations of one kind, sorted by id, and their statement."""

    ops: Sequence[Any]
    part: BoundStatement
    read: ReadReplies


def can_batch(ops: Sequence[Any]) -> bool:
    return is_batchable(ops, BATCHES)


def group_by_kind(texts: dict[str, str], ops: Sequence[Any], claims: BatchStatement) -> list[OpGroup]:
    """Build the statement of each kind; `claims` is the one for claims. Raises UnicodeError or struct.error for a value
    that cannot be packed."""
    kinds: dict[type[Any], list[Any]] = {}
    for op in ops:
        kinds.setdefault(type(op), []).append(op)
    statements = {**BATCHES, Claim: claims}
    return [_build_group(texts, batch, kinds[kind]) for kind, batch in statements.items() if kind in kinds]


def _build_group(texts: dict[str, str], batch: BatchStatement, ops: list[Any]) -> OpGroup:
    ops.sort(key=_ID)
    now = ops[0].now
    packed: dict[str, bytes | None] = {"now": None if now is None else arrays.pack_number(now)}
    for (name, pack), column in zip(batch.columns.items(), zip(*map(batch.values, ops), strict=True), strict=True):
        packed[name] = pack(column)
    text = number_parameters(texts[batch.text])
    return OpGroup(ops, BoundStatement(text, [packed[name] for name in text.parameters]), batch.read)


_ID = attrgetter("id")


def settings_part(texts: dict[str, str]) -> BoundStatement:
    """The first statement of every batch (settings_many.sql)."""
    return BoundStatement(number_parameters(texts["settings_many"]), ())


def build_waiting_renewals(texts: dict[str, str], ops: Sequence[Renew]) -> tuple[BoundStatement, OpGroup]:
    """The settings and the statement for renewals that wait for locked rows. The shortest lease limits the wait."""
    lease = arrays.pack_number(min(op.lease for op in ops))
    settings = BoundStatement(number_parameters(texts["settings_renew_many"]), (lease,))
    return settings, _build_group(texts, WAITING_RENEWALS, list(ops))


def read_replies(ops: Sequence[Any], sent: Sequence[OpGroup], answers: Sequence[StatementRows]) -> list[Any]:
    """The replies in the order of the operations; SEND_UNBATCHED for an operation that must be executed alone, and
    CLAIM_AGAIN for a claim that was only tried."""
    found: dict[bytes, Any] = {}
    for group, answer in zip(sent, answers, strict=True):
        found.update(zip(map(_ID, group.ops), group.read(group.ops, answer), strict=True))
    return [found[op.id] for op in ops]


def choose_claims(replies: Sequence[Any], before: BatchStatement) -> BatchStatement:
    """The statement for the claims of the next batch: replays come together, and so do new keys. A batch without claims
    tells nothing."""
    granted = {reply.granted for reply in replies if type(reply) is ClaimReply}
    if not granted:
        return before
    return WHOLE_CLAIMS if len(granted) == 2 else SHORT_CLAIMS if True in granted else LOOKED_UP_CLAIMS


# Claims -----------------------------------------------------------------------------------------

_CLAIM_COLUMNS: dict[str, Pack] = {
    "id": arrays.pack_bytea,
    "namespace": arrays.pack_text,
    "kind": arrays.pack_text,
    "scope": arrays.pack_text,
    "key": arrays.pack_text,
    "target": arrays.pack_text,
    "fingerprint": arrays.pack_fingerprints,
    "token": arrays.pack_bytea,
    "run": arrays.pack_bytea,
    "lease": arrays.pack_bigint,
    "retention": arrays.pack_bigint,
    "on_lapse": arrays.pack_text,
    "input": arrays.pack_bytea,
}


_claim_values = attrgetter(*_CLAIM_COLUMNS)


def _read_short_claims(ops: Sequence[Claim], found: StatementRows) -> list[Any]:
    """Only a claim whose id was returned was inserted (I1)."""
    if not found.count:
        return [CLAIM_AGAIN] * len(ops)
    moment = found.read_bigint(0, 1)
    if found.count == len(ops):  # ids are unique, in the table and in the batch
        return [ClaimReply(True, build_new_record(op, moment), moment) for op in ops]
    inserted = {row[0] for row in found.read_all()}
    return [ClaimReply(True, build_new_record(op, moment), moment) if op.id in inserted else CLAIM_AGAIN for op in ops]


def _read_claims(ops: Sequence[Claim], answer: StatementRows) -> list[Any]:
    """Read which claims are granted. The inserted rows and the refused claims must add up to all claims (I1)."""
    found = answer.read_all()
    taken = {row[2]: row for row in found if row[2] is not None}
    if not found or found[0][0] + len(taken) != len(ops):
        return [SEND_UNBATCHED] * len(ops)
    moment = found[0][1]
    return [_read_claim(op, taken.get(op.id), moment) for op in ops]


def _read_claim(op: Claim, row: Sequence[Any] | None, moment: int) -> Any:
    if row is None:
        return ClaimReply(True, build_new_record(op, moment), moment)
    columns = row[3:]
    if columns[0] is None:  # another transaction inserted it after our snapshot
        return SEND_UNBATCHED
    return read_refusal(op, rows.read_record(columns, op.fingerprint), moment)


def _read_looked_up_claims(ops: Sequence[Claim], answer: StatementRows) -> list[Any]:
    """A claim whose record was not returned is neither granted nor refused (I1)."""
    found = {row[1]: row for row in answer.read_all()}
    return [_read_looked_up_claim(op, found.get(op.id)) for op in ops]


def _read_looked_up_claim(op: Claim, row: Sequence[Any] | None) -> Any:
    if row is None:
        return CLAIM_AGAIN
    return read_refusal(op, rows.read_record(row[1:], op.fingerprint), row[0])


# Fenced writes ----------------------------------------------------------------------------------

_FENCE_COLUMNS: dict[str, Pack] = {"id": arrays.pack_bytea, "attempt": arrays.pack_integer, "token": arrays.pack_bytea}


_FENCE_VALUES = ("id", "fence.attempt", "fence.token")


def _pack_headers(answers: Sequence[Answer]) -> bytes:
    headers = [answer.headers for answer in answers]
    if headers.count(headers[0]) == len(headers):  # the answers of one route, often
        return arrays.pack_text([rows.write_headers(answers[0])] * len(answers))
    return arrays.pack_text([rows.write_headers(answer) for answer in answers])


def _read_fenced(ops: Sequence[Any], found: StatementRows) -> list[Any]:
    if found.count == len(ops):  # ids are unique, in the table and in the batch
        return [True] * len(ops)
    done = {row[0] for row in found.read_all()}
    return [True if op.id in done else SEND_UNBATCHED for op in ops]


def _read_renewals(ops: Sequence[Renew], found: StatementRows) -> list[Any]:
    replies = {row[0]: True if row[1] else HELD for row in found.read_all()}
    return [replies.get(op.id, SEND_UNBATCHED) for op in ops]


_WITH_NOTE = {**_FENCE_COLUMNS, "note": arrays.pack_text}
_note_values = attrgetter(*_FENCE_VALUES, "note")

WHOLE_CLAIMS = BatchStatement("claim_many", _CLAIM_COLUMNS, _claim_values, _read_claims)
"""Claims that insert, or else return the record."""

SHORT_CLAIMS = BatchStatement("claim_new_many", _CLAIM_COLUMNS, _claim_values, _read_short_claims)
"""Claims that only insert. The server has less to do; a claim whose key exists is sent again, as in WHOLE_CLAIMS."""

LOOKED_UP_CLAIMS = BatchStatement("lookup_many", {"id": arrays.pack_bytea}, lambda op: (op.id,), _read_looked_up_claims)
"""Claims that only look for their records: both sides have less to do. A claim of a new key is sent again, too."""

BATCHES: dict[type[Any], BatchStatement] = {
    Claim: WHOLE_CLAIMS,
    Renew: BatchStatement(
        "renew_many",
        {**_FENCE_COLUMNS, "lease": arrays.pack_bigint},
        attrgetter(*_FENCE_VALUES, "lease"),
        _read_renewals,
    ),
    Complete: BatchStatement(
        "complete_many",
        {
            **_FENCE_COLUMNS,
            "status": arrays.pack_integer,
            "headers": _pack_headers,
            "body": arrays.pack_bytea,
            "gone": arrays.pack_text,
        },
        attrgetter(*_FENCE_VALUES, "answer.status", "answer", "answer.body", "answer.gone"),
        _read_fenced,
    ),
    Release: BatchStatement("release_many", _WITH_NOTE, _note_values, _read_fenced),
    Withdraw: BatchStatement("withdraw_many", _WITH_NOTE, _note_values, _read_fenced),
}

_RENEW = BATCHES[Renew]
WAITING_RENEWALS = BatchStatement("renew_waiting_many", _RENEW.columns, _RENEW.values, _read_fenced)
"""Renewals that wait for locked rows."""
