"""The transaction strength: the receipt is written together with the user's own writes, in one TransactWriteItems.

The receipt is the first item of the transaction. It is a completed record. It is put where there is no record, or
replaces one that may be taken over and has not changed since it was read. DynamoDB carries out all writes or none. It
remembers a request for ten minutes by its ClientRequestToken, which covers the SDK's own retries. After that, and for
all other callers, the token in the receipt identifies its owner.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrysafe.core.moves import Grant, apply_grant, build_new_record, decide_grant, settle
from retrysafe.core.ops import Claim, ClaimReply, Op, value_class
from retrysafe.core.records import Answer, Fence, Record
from retrysafe.core.states import State
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.dynamodb.items import (
    Item,
    check_size,
    encode_bytes,
    encode_number,
    from_item,
    revision_of,
    to_item,
)
from retrysafe.stores.dynamodb.plans import MAX_CONTENTION_TRIES, ClockReading, Plan, TableRef, contention_error
from retrysafe.stores.dynamodb.requests import DynamoRequest, Expression, TransactionConflict, put_if_absent

MAX_USER_WRITES = 99
"""The most writes beside the receipt: DynamoDB allows a hundred items in a transaction."""

CONDITION_FAILED_CODE, CONFLICT_CODE = "ConditionalCheckFailed", "TransactionConflict"
THROTTLED_CODES = frozenset({"ThrottlingError", "ProvisionedThroughputExceeded"})


class CancellationReason(NamedTuple):
    """Why one of the user's writes was not carried out."""

    place: int
    """The index of the write, from 0."""
    code: str
    message: str
    item: Mapping[str, Any] | None
    """The existing item, if the write asked for it with ReturnValuesOnConditionCheckFailure."""


class TransactReply(NamedTuple):
    """If `claim.granted`, everything was carried out. Otherwise the claim's record prevented it, or `reasons` name the
    writes that failed."""

    claim: ClaimReply
    reasons: tuple[CancellationReason, ...] = ()


class TransactionCancelled(NamedTuple):
    """DynamoDB carried out nothing, and gives a reason for each item."""

    reasons: tuple[Mapping[str, Any], ...]


@value_class
class TransactOp(Op[TransactReply]):
    """Carry out `writes` and store `answer`, together and once. A repeated attempt is the same request."""

    claim: Claim
    answer: Answer
    writes: tuple[Mapping[str, Any], ...]
    at: int
    """The time, fixed by the caller, because the request must be the same in every attempt."""


def transact(op: TransactOp, ref: TableRef) -> Plan[TransactReply]:
    now = op.at if op.claim.now is None else op.claim.now
    at = ClockReading(now, now - ref.skew if op.claim.now is None else now)
    receipt = build_receipt(build_new_record(op.claim, now), op, now)
    first: dict[str, Any] = put_if_absent(ref.table, to_item(receipt, 0))
    seen: Item | None = None
    for _ in range(MAX_CONTENTION_TRIES):
        found = yield from send_transaction(op, first, request_token(op.claim, seen))
        if not isinstance(found, TransactionCancelled):
            return TransactReply(ClaimReply(True, receipt, now))
        receipt_reason, *write_reasons = found.reasons
        if receipt_reason.get("Code") != CONDITION_FAILED_CODE:
            return TransactReply(ClaimReply(False, None, now), read_reasons(receipt_reason, write_reasons))
        seen = receipt_reason.get("Item")
        if seen is None:
            continue
        record = from_item(seen)
        if record.token == op.claim.token and record.state is State.COMPLETED:
            return TransactReply(ClaimReply(True, record, now))  # our own: an earlier reply was lost
        grant = decide_grant(record, op.claim, at.judged)
        if grant is None or grant is Grant.OWN:
            return TransactReply(ClaimReply(False, record, now))
        receipt = build_receipt(apply_grant(grant, record, op.claim, now), op, now)
        first = put_if_unchanged(ref, to_item(receipt, revision_of(seen) + 1), record.fence, revision_of(seen))
    raise contention_error()


def build_receipt(record: Record, op: TransactOp, now: int) -> Record:
    return settle(record, State.COMPLETED, now, "", op.answer)


def request_token(claim: Claim, seen: Item | None) -> str:
    """The ClientRequestToken: the same for the same request, another one if the receipt replaces another record."""
    replaced = b"" if seen is None else bytes(seen["token"]["B"]) + seen["rev"]["N"].encode()
    return hashlib.sha256(b"retrysafe" + claim.token + replaced).hexdigest()[:36]


def put_if_unchanged(ref: TableRef, item: Item, fence: Fence, revision: int) -> dict[str, Any]:
    """The arguments of a Put that replaces a record, on the condition that it has not changed."""
    check_size(item)
    found = Expression()
    condition = " AND ".join(
        [
            found.compare("attempt", "=", encode_number(fence.attempt)),
            found.compare("token", "=", encode_bytes(fence.token)),
            found.compare("rev", "=", encode_number(revision)),
        ]
    )
    old = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {"TableName": ref.table, "Item": item, "ConditionExpression": condition, **found.build_arguments(), **old}


def send_transaction(op: TransactOp, first: dict[str, Any], token: str) -> Plan[Any]:
    """Send the transaction. While an earlier attempt is still running, DynamoDB refuses; then it is sent again."""
    items = [{"Put": first}, *op.writes]
    for _ in range(MAX_CONTENTION_TRIES):
        try:
            return (yield DynamoRequest("transact_write_items", {"TransactItems": items, "ClientRequestToken": token}))
        except TransactionConflict:
            continue
    raise StoreUnclear(
        "an earlier attempt of this transaction is still running; send it again to find out how it ended"
    )


def read_reasons(receipt: Mapping[str, Any], writes: list[Mapping[str, Any]]) -> tuple[CancellationReason, ...]:
    """The reasons why the user's writes failed. Raises if the store itself is the cause, for example by throttling."""
    codes = {str(each.get("Code")) for each in (receipt, *writes)}
    throttled = codes & THROTTLED_CODES
    if throttled:
        raise StoreUnavailable(f"DynamoDB throttles this caller ({', '.join(sorted(throttled))}); nothing was done")
    reasons = tuple(
        CancellationReason(place, str(each["Code"]), str(each.get("Message", "")), each.get("Item"))
        for place, each in enumerate(writes)
        if each.get("Code") not in (None, "None")
    )
    if not reasons and receipt.get("Code") == CONFLICT_CODE:
        return (CancellationReason(-1, CONFLICT_CODE, "another transaction has this key", None),)
    if not reasons:
        raise StoreError(f"DynamoDB cancelled the transaction ({receipt.get('Code')}: {receipt.get('Message')})")
    return reasons
