"""Many operations in one packet (group commit): one statement for each kind, one commit for all of them.

MySQL has no arrays. Claims are the rows of a derived table, `SELECT … UNION ALL SELECT …`, which MySQL and MariaDB both
read. What owners write is chosen by the id of the row, `ELT(FIELD(id, …), …)`. Bytes are written in hexadecimal, so
that no byte is taken for text.

A write says how many rows it changed, not which. If all of them changed, every operation succeeded. Otherwise a second
packet reads their records after the commit: the token on a record says who has the claim, and a settled record whether
it was settled by this operation. What is still open is executed alone.

Claims go first, sorted by id. So two batches of two processes cannot deadlock: a batch that waits with its claims holds
only new rows, which no other transaction can see yet. It waits for no other rows (lock_many.sql): if one is locked,
each operation goes its own way.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

from retrysafe.core.moves import build_new_record, is_recognised
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Release, Renew, Withdraw
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.stores.base import Plan
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.batches import SEND_UNBATCHED, is_batchable, read_refusal

MAX_BATCH_BYTES = 1 << 18
"""Bytes of answers and inputs in one packet, where each becomes two characters. Larger ones go statement by
statement."""

Packet = Sequence[str]
"""Statements that are sent together."""


class Quoted(dict[str, str]):
    """Texts as SQL literals. The operations of a batch have many texts in common: a namespace, a target, headers."""

    def __init__(self, quote: Callable[[str], str]) -> None:
        super().__init__()
        self._quote = quote

    def __missing__(self, text: str) -> str:
        made = self[text] = self._quote(text)
        return made


class RowsStatement(NamedTuple):
    """How operations of one kind are batched: `write_row` returns the literals of an operation, in the order of
    `columns`."""

    text: str
    columns: tuple[str, ...]
    write_row: Callable[[Any, Quoted], tuple[str, ...]]


Found = Mapping[bytes, tuple[int, Record]]
"""Records by id, each with the time of the read."""


def can_batch(ops: Sequence[Op[Any]]) -> bool:
    return is_batchable(ops, BATCHES) and sum(map(_count_payload, ops)) <= MAX_BATCH_BYTES


def _count_payload(op: Any) -> int:
    return len(op.answer.body) if type(op) is Complete else len(op.input) if type(op) is Claim else 0


def plan_batch(
    texts: Mapping[str, str], ops: Sequence[Any], quoted: Quoted, expects_record: bool
) -> Plan[Packet, tuple[list[Any], bool | None]]:
    """The replies, with SEND_UNBATCHED for each operation that must be executed alone; and whether a claim met a record
    (None: there was no claim).

    If the claims before met records (replays), the records are read first: a batch of replays writes nothing.
    """
    claims = [op for op in ops if type(op) is Claim]
    found: Found = {}
    if claims and expects_record:
        found = yield from _read_records(texts, claims)
    sent = [op for op in ops if op.id not in found]
    replies = (yield from _write(texts, sent, quoted)) if sent else {}
    unclear = [op for op in sent if op.id not in replies]
    if unclear:
        found = {**found, **(yield from _read_records(texts, unclear))}
    for op in ops:
        if op.id not in replies:
            replies[op.id] = _read_reply(op, found.get(op.id))
    return [replies[op.id] for op in ops], any(op.id in found for op in claims) if claims else None


def _write(texts: Mapping[str, str], ops: Sequence[Any], quoted: Quoted) -> Plan[Packet, dict[bytes, Any]]:
    """Send the writes. The replies to the kinds whose rows all changed; the other operations are not in it."""
    kinds = {kind: sorted((op for op in ops if type(op) is kind), key=_ID) for kind in BATCHES}
    kinds = {kind: group for kind, group in kinds.items() if group}
    now = ops[0].now
    statements = [build_statement(texts, BATCHES[kind], group, quoted) for kind, group in kinds.items()]
    clock = build_clock(texts, now)
    if list(kinds) == [Claim]:
        _, *answers = yield [clock, *statements]  # a statement alone is a transaction
    else:
        births = statements[:1] if Claim in kinds else []
        lock = texts["lock_many"].replace("{ids}", _list_ids(op for op in ops if type(op) is not Claim))
        _, _, *answers, _ = yield [clock, _BEGIN, *births, lock, *statements[len(births) :], _COMMIT]
        del answers[len(births)]
    replies: dict[bytes, Any] = {}
    for (kind, group), changed in zip(kinds.items(), answers, strict=True):
        if len(changed) == len(group):
            moment = changed[0][0] if now is None else now
            replies.update({op.id: _build_reply(op, moment) if kind is Claim else True for op in group})
    return replies


_BEGIN, _COMMIT = "START TRANSACTION", "COMMIT"
_ID = attrgetter("id")


def build_clock(texts: Mapping[str, str], now: int | None) -> str:
    return _fill_now(texts["clock_many"], now)


def build_statement(texts: Mapping[str, str], batch: RowsStatement, ops: Sequence[Any], quoted: Quoted) -> str:
    text = texts[batch.text]
    written = [batch.write_row(op, quoted) for op in ops]
    if "{rows}" in text:
        return text.replace("{rows}", _build_rows(batch.columns, written))
    ids, *others = zip(*written, strict=True)
    literals = {"ids": ", ".join(ids)}
    for name, each in zip(batch.columns[1:], others, strict=True):
        literals[name] = _build_choice(literals["ids"], each)
    return _WORD.sub(lambda word: literals[word.group(1)], text)  # in one pass: a literal may contain such a word


_WORD = re.compile(r"\{(\w+)\}")


def _build_rows(columns: Sequence[str], written: Sequence[Sequence[str]]) -> str:
    """The operations as the rows of a derived table."""
    first, *others = written
    named = ", ".join([f"{value} AS `{name}`" for name, value in zip(columns, first, strict=True)])
    return f"SELECT {named}" + "".join([f" UNION ALL SELECT {', '.join(row)}" for row in others])


def _build_choice(ids: str, literals: Sequence[str]) -> str:
    """The literal of the row with this id. Operations of a batch have many in common: a status, headers, an attempt."""
    if literals.count(literals[0]) == len(literals):
        return literals[0]
    return f"ELT(FIELD(id, {ids}), {', '.join(literals)})"


def _read_records(texts: Mapping[str, str], ops: Sequence[Any]) -> Plan[Packet, Found]:
    [answer] = yield [_fill_now(texts["read_many"], ops[0].now).replace("{ids}", _list_ids(ops))]
    records = [(moment, rows.read_record(columns)) for moment, *columns in answer]
    return {record.id: (moment, record) for moment, record in records}


def _fill_now(text: str, now: int | None) -> str:
    return text.replace("%(now)s", "NULL" if now is None else str(now))


def _build_reply(op: Claim, moment: int) -> ClaimReply:
    return ClaimReply(True, build_new_record(op, moment), moment)


def _read_reply(op: Any, seen: tuple[int, Record] | None) -> Any:
    if seen is None:
        return SEND_UNBATCHED  # reaped between the write and the read, or a fence that owns nothing
    moment, record = seen
    if type(op) is not Claim:
        return is_recognised(record, op) or SEND_UNBATCHED
    if record.token == op.token and record.state is State.CLAIMED:
        return ClaimReply(True, record, moment)  # granted now, or earlier and the reply was lost
    return read_refusal(op, record, moment)


# How operations are written ------------------------------------------------------------------------


def _hex(value: bytes) -> str:
    return f"x'{value.hex()}'"


def _list_ids(ops: Iterable[Any]) -> str:
    return ", ".join([_hex(op.id) for op in ops])


def _write_claim(op: Claim, quoted: Quoted) -> tuple[str, ...]:
    return (
        _hex(op.id), quoted[op.namespace], quoted[op.kind], quoted[op.scope], quoted[op.key], quoted[op.target],
        quoted[str(op.fingerprint)], _hex(op.token), _hex(op.run), str(op.lease), str(op.retention),
        quoted[op.on_lapse], _hex(op.input),
    )  # fmt: skip


def _write_fence(op: Any) -> tuple[str, ...]:
    return _hex(op.id), str(op.fence.attempt), _hex(op.fence.token)


def _write_complete(op: Complete, quoted: Quoted) -> tuple[str, ...]:
    answer = op.answer
    headers = quoted[rows.write_headers(answer)]
    return (*_write_fence(op), str(answer.status), headers, _hex(answer.body), quoted[answer.gone])


def _write_note(op: Release | Withdraw, quoted: Quoted) -> tuple[str, ...]:
    return (*_write_fence(op), quoted[op.note])


_FENCE = ("id", "attempt", "token")

BATCHES: dict[type[Any], RowsStatement] = {
    Claim: RowsStatement(
        "claim_many",
        (
            "id", "namespace", "kind", "scope", "key", "target", "fingerprint", "token", "run", "lease", "retention",
            "on_lapse", "input",
        ),
        _write_claim,
    ),
    Renew: RowsStatement(
        "renew_many", (*_FENCE, "lease"), lambda op, quoted: (*_write_fence(op), str(op.lease))
    ),
    Complete: RowsStatement("complete_many", (*_FENCE, "status", "headers", "body", "gone"), _write_complete),
    Release: RowsStatement("release_many", (*_FENCE, "note"), _write_note),
    Withdraw: RowsStatement("withdraw_many", (*_FENCE, "note"), _write_note),
}  # fmt: skip
