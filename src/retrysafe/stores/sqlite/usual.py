"""The two writes of every request, the claim of a new key and the completion, as the driver executes them fastest.

They do what the plans of sql/plans.py do, by the same SQL texts, with four differences. Values are bound by position:
SQLite finds a named parameter by a search. Bytes are bound as a bytearray: for bytes, sqlite3 looks for an adapter, and
two attribute lookups fail. The statements return no row, because SQLite collects the rows of RETURNING in a temporary
table; the number of changed rows says the same. And a batch is one call of the driver for each kind.

Only the usual outcome is decided here: every claim was inserted, every completion was accepted. Otherwise the plans of
the operations run, in the same transaction. There each operation recognises what it has done here, as after a resend.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from retrysafe.core.moves import build_new_record
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op
from retrysafe.core.records import pack_tokens
from retrysafe.stores.sql import rows
from retrysafe.stores.sqlite.connection import OwnConnection

_PARAMETER = re.compile(r":([a-z_]+)")
_RETURNING = re.compile(r"\s+RETURNING [^\n]*$")


class UsualWrite(NamedTuple):
    """One kind of operation. `values` returns the parameters of an operation by position; None as the time means that
    the statement reads the clock."""

    text: str
    values: Callable[[Any, int | None], tuple[Any, ...]]
    reply: Callable[[Any, int], Any]


def build_usual_writes(texts: dict[str, str]) -> dict[type[Any], UsualWrite]:
    return {
        Claim: UsualWrite(bind_by_position(texts["insert"], _CLAIM_PARAMETERS), _claim_values, _claim_reply),
        Complete: UsualWrite(bind_by_position(texts["complete"], _COMPLETE_PARAMETERS), _complete_values, _accept),
    }


def bind_by_position(text: str, names: Sequence[str]) -> str:
    """The statement with numbered parameters in the order of `names`, and without RETURNING."""
    return _PARAMETER.sub(lambda found: f"?{names.index(found.group(1)) + 1}", _RETURNING.sub("", text))


def is_usual(op: Op[Any]) -> bool:
    """A claim that resumes a run must not insert."""
    return type(op) is Complete or (type(op) is Claim and not op.resumes)


def write_one(connection: OwnConnection, write: UsualWrite, op: Any) -> Any:
    """The reply, or None if the plan of the operation has to decide. The statement is its own transaction."""
    moment = connection.moment
    moment.reset()
    if connection.execute(write.text, write.values(op, op.now)).rowcount != 1:
        return None
    return write.reply(op, moment() if op.now is None else op.now)


def write_many(connection: OwnConnection, write: UsualWrite, ops: Sequence[Any], now: int) -> list[Any] | None:
    """The replies, or None if the plans of the operations have to decide. Called inside a write transaction, whose time
    is `now`; an operation that brings its own time keeps it."""
    times = [now if op.now is None else op.now for op in ops]
    if connection.executemany(write.text, map(write.values, ops, times)).rowcount != len(ops):
        return None
    return list(map(write.reply, ops, times))


_CLAIM_PARAMETERS = (
    "id", "namespace", "kind", "scope", "key", "target", "fingerprint", "token", "run", "now", "lease", "on_lapse",
    "input", "retention", "tokens",
)  # fmt: skip


def _claim_values(op: Claim, now: int | None) -> tuple[Any, ...]:
    token = op.token
    return (
        bytearray(op.id), op.namespace, op.kind, op.scope, op.key, op.target, str(op.fingerprint), bytearray(token),
        bytearray(op.run), now, op.lease, op.on_lapse, bytearray(op.input), op.retention,
        bytearray(pack_tokens((token,))),
    )  # fmt: skip


def _claim_reply(op: Claim, now: int) -> ClaimReply:
    return ClaimReply(True, build_new_record(op, now), now)


_COMPLETE_PARAMETERS = ("now", "status", "headers", "body", "gone", "id", "attempt", "token")


def _complete_values(op: Complete, now: int | None) -> tuple[Any, ...]:
    answer, fence = op.answer, op.fence
    return (
        now, answer.status, rows.write_headers(answer), bytearray(answer.body), answer.gone, bytearray(op.id),
        fence.attempt, bytearray(fence.token),
    )  # fmt: skip


def _accept(op: Complete, now: int) -> bool:
    return True
