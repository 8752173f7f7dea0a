"""The transaction strength: the receipt goes with the user's own writes, in one TransactWriteItems.

The receipt is the first item of the transaction: a completed record, put where there is none, or in the place of one
that may be taken and has not changed since it was read. DynamoDB carries out
all of it or nothing. It remembers a request for ten minutes by its ClientRequestToken, which the SDK's own retries use;
after that, and for everybody else, the receipt's token tells whose it is.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrysafe.core.moves import Grant, apply_grant, build_new_record, decide_grant, settle
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.records import Answer, Fence, Record
from retrysafe.core.states import State
from retrysafe.core.value import value_class
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
from retrysafe.stores.dynamodb.requests import DynamoRequest, Expression, LockNotAvailable, put_if_absent

MAX_USER_WRITES = 99
"""Writes that go with a receipt: a transaction has room for a hundred."""

CONDITION_FAILED_CODE, CONFLICT_CODE = "ConditionalCheckFailed", "TransactionConflict"
THROTTLED_CODES = frozenset({"ThrottlingError", "ProvisionedThroughputExceeded"})


class Reason(NamedTuple):
    """Why one of the user's writes was not carried out."""

    place: int
    """Which of them, from 0."""
    code: str
    message: str
    item: Mapping[str, Any] | None
    """The item in the way, if the write asked for it with ReturnValuesOnConditionCheckFailure."""


class TransactReply(NamedTuple):
    """`claim.granted`: all of it was carried out. Else its record is in the way, or `reasons` say which writes were."""

    claim: ClaimReply
    reasons: tuple[Reason, ...] = ()


class Cancelled(NamedTuple):
    """DynamoDB carried out nothing, and says why, item by item."""

    reasons: tuple[Mapping[str, Any], ...]


@value_class
class TransactOp(Op[TransactReply]):
    """Carry out `writes` and store `answer`, together and once. Sent again it is the very same request."""

    claim: Claim
    answer: Answer
    writes: tuple[Mapping[str, Any], ...]
    at: int
    """The moment, fixed by the caller: the request must stay the same over every sending."""


def transact(op: TransactOp, place: TableRef) -> Plan[TransactReply]:
    now = op.at if op.claim.now is None else op.claim.now
    at = ClockReading(now, now - place.skew if op.claim.now is None else now)
    receipt = build_receipt(build_new_record(op.claim, now), op, now)
    first: dict[str, Any] = put_if_absent(place.table, to_item(receipt, 0))
    seen: Item | None = None
    for _ in range(MAX_CONTENTION_TRIES):
        found = yield from send_transaction(op, first, request_token(op.claim, seen))
        if not isinstance(found, Cancelled):
            return TransactReply(ClaimReply(True, receipt, now))
        ours, *theirs = found.reasons
        if ours.get("Code") != CONDITION_FAILED_CODE:
            return TransactReply(ClaimReply(False, None, now), read_reasons(ours, theirs))
        seen = ours.get("Item")
        if seen is None:
            continue
        record = from_item(seen)
        if record.token == op.claim.token and record.state is State.COMPLETED:
            return TransactReply(ClaimReply(True, record, now))  # our own, and its reply was lost
        grant = decide_grant(record, op.claim, at.judged)
        if grant is None or grant is Grant.OWN:
            return TransactReply(ClaimReply(False, record, now))
        receipt = build_receipt(apply_grant(grant, record, op.claim, now), op, now)
        first = put_if_unchanged(place, to_item(receipt, revision_of(seen) + 1), record.fence, revision_of(seen))
    raise contention_error()


def build_receipt(record: Record, op: TransactOp, now: int) -> Record:
    return settle(record, State.COMPLETED, now, "", op.answer)


def request_token(claim: Claim, seen: Item | None) -> str:
    """The same for the same request, another where the receipt takes the place of another record."""
    over = b"" if seen is None else bytes(seen["token"]["B"]) + seen["rev"]["N"].encode()
    return hashlib.sha256(b"retrysafe" + claim.token + over).hexdigest()[:36]


def put_if_unchanged(place: TableRef, item: Item, fence: Fence, revision: int) -> dict[str, Any]:
    """Take the place of a record that is as it was."""
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
    return {"TableName": place.table, "Item": item, "ConditionExpression": condition, **found.build_arguments(), **old}


def send_transaction(op: TransactOp, first: dict[str, Any], token: str) -> Plan[Any]:
    """While an earlier sending of it is under way DynamoDB says so: then it is asked again."""
    items = [{"Put": first}, *op.writes]
    for _ in range(MAX_CONTENTION_TRIES):
        try:
            return (yield DynamoRequest("transact_write_items", {"TransactItems": items, "ClientRequestToken": token}))
        except LockNotAvailable:
            continue
    raise StoreUnclear(
        "an earlier sending of this transaction is still under way; send it again and learn how it ended"
    )


def read_reasons(ours: Mapping[str, Any], theirs: list[Mapping[str, Any]]) -> tuple[Reason, ...]:
    """What the user's writes met; raises where that is the store's trouble and not theirs."""
    codes = {str(each.get("Code")) for each in (ours, *theirs)}
    busy = codes & THROTTLED_CODES
    if busy:
        raise StoreUnavailable(f"DynamoDB takes no more for now ({', '.join(sorted(busy))}); nothing was done")
    reasons = tuple(
        Reason(place, str(each["Code"]), str(each.get("Message", "")), each.get("Item"))
        for place, each in enumerate(theirs)
        if each.get("Code") not in (None, "None")
    )
    if not reasons and ours.get("Code") == CONFLICT_CODE:
        return (Reason(-1, CONFLICT_CODE, "another transaction has this key", None),)
    if not reasons:
        raise StoreError(f"DynamoDB cancelled the transaction ({ours.get('Code')}: {ours.get('Message')})")
    return reasons
