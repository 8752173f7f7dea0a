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

from retrysafe.core.moves import Grant, born, grantable, granted_as, settled
from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.records import Answer, Fence, Record
from retrysafe.core.states import State
from retrysafe.core.value import value
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from retrysafe.stores.dynamodb.items import Item, fitting, from_item, number, raw, revision_of, to_item
from retrysafe.stores.dynamodb.plans import TRIES, Moment, Place, Plan, contended
from retrysafe.stores.dynamodb.requests import Expression, Held, Request, put_if_absent

MOST = 99
"""Writes that go with a receipt: a transaction has room for a hundred."""

REFUSED, CONFLICT = "ConditionalCheckFailed", "TransactionConflict"
BUSY = frozenset({"ThrottlingError", "ProvisionedThroughputExceeded"})


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


@value
class Transact(Op[TransactReply]):
    """Carry out `writes` and store `answer`, together and once. Sent again it is the very same request."""

    claim: Claim
    answer: Answer
    writes: tuple[Mapping[str, Any], ...]
    at: int
    """The moment, fixed by the caller: the request must stay the same over every sending."""


def transact(op: Transact, place: Place) -> Plan[TransactReply]:
    now = op.at if op.claim.now is None else op.claim.now
    at = Moment(now, now - place.skew if op.claim.now is None else now)
    receipt = receipt_of(born(op.claim, now), op, now)
    first: dict[str, Any] = put_if_absent(place.table, to_item(receipt, 0))
    seen: Item | None = None
    for _ in range(TRIES):
        found = yield from sent(op, first, request_token(op.claim, seen))
        if not isinstance(found, Cancelled):
            return TransactReply(ClaimReply(True, receipt, now))
        ours, *theirs = found.reasons
        if ours.get("Code") != REFUSED:
            return TransactReply(ClaimReply(False, None, now), told(ours, theirs))
        seen = ours.get("Item")
        if seen is None:
            continue
        record = from_item(seen)
        if record.token == op.claim.token and record.state is State.COMPLETED:
            return TransactReply(ClaimReply(True, record, now))  # our own, and its reply was lost
        grant = grantable(record, op.claim, at.judged)
        if grant is None or grant is Grant.OWN:
            return TransactReply(ClaimReply(False, record, now))
        receipt = receipt_of(granted_as(grant, record, op.claim, now), op, now)
        first = put_if_unchanged(place, to_item(receipt, revision_of(seen) + 1), record.fence, revision_of(seen))
    raise contended()


def receipt_of(record: Record, op: Transact, now: int) -> Record:
    return settled(record, State.COMPLETED, now, "", op.answer)


def request_token(claim: Claim, seen: Item | None) -> str:
    """The same for the same request, another where the receipt takes the place of another record."""
    over = b"" if seen is None else bytes(seen["token"]["B"]) + seen["rev"]["N"].encode()
    return hashlib.sha256(b"retrysafe" + claim.token + over).hexdigest()[:36]


def put_if_unchanged(place: Place, item: Item, fence: Fence, revision: int) -> dict[str, Any]:
    """Take the place of a record that is as it was."""
    fitting(item)
    found = Expression()
    condition = " AND ".join(
        [
            found.compare("attempt", "=", number(fence.attempt)),
            found.compare("token", "=", raw(fence.token)),
            found.compare("rev", "=", number(revision)),
        ]
    )
    old = {"ReturnValuesOnConditionCheckFailure": "ALL_OLD"}
    return {"TableName": place.table, "Item": item, "ConditionExpression": condition, **found.arguments(), **old}


def sent(op: Transact, first: dict[str, Any], token: str) -> Plan[Any]:
    """While an earlier sending of it is under way DynamoDB says so: then it is asked again."""
    items = [{"Put": first}, *op.writes]
    for _ in range(TRIES):
        try:
            return (yield Request("transact_write_items", {"TransactItems": items, "ClientRequestToken": token}))
        except Held:
            continue
    raise StoreUnclear(
        "an earlier sending of this transaction is still under way; send it again and learn how it ended"
    )


def told(ours: Mapping[str, Any], theirs: list[Mapping[str, Any]]) -> tuple[Reason, ...]:
    """What the user's writes met; raises where that is the store's trouble and not theirs."""
    codes = {str(each.get("Code")) for each in (ours, *theirs)}
    busy = codes & BUSY
    if busy:
        raise StoreUnavailable(f"DynamoDB takes no more for now ({', '.join(sorted(busy))}); nothing was done")
    reasons = tuple(
        Reason(place, str(each["Code"]), str(each.get("Message", "")), each.get("Item"))
        for place, each in enumerate(theirs)
        if each.get("Code") not in (None, "None")
    )
    if not reasons and ours.get("Code") == CONFLICT:
        return (Reason(-1, CONFLICT, "another transaction has this key", None),)
    if not reasons:
        raise StoreError(f"DynamoDB cancelled the transaction ({ours.get('Code')}: {ours.get('Message')})")
    return reasons
