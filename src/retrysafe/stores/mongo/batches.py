"""Many operations in one command: claims, completions and renewals of different keys, under one wait for the majority.

An `update` with many statements says how many of them found their document, not which. So the reply of a batch is
either plain (all of them did), or read from the records (claims: whoever's token is on it has it), or, for what is
left over, not there: then each goes alone, and recognises what the batch has done of it already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrysafe.core.moves import decide_grant, is_recognised
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Renew
from retrysafe.stores.base import Plan
from retrysafe.stores.mongo import documents, updates
from retrysafe.stores.mongo.plans import FOUND_AND_NOW, Command, LockNotAvailable, MongoPlans, is_granted, read_now

BATCHED_KINDS = (Claim, Complete, Renew)
MAX_BATCH_STATEMENTS = 200
"""Statements in a command: an answer or an input may have megabytes, and a command 48."""
MAX_BATCH_BYTES = 8 << 20
"""Bytes of answers or inputs in a command, about; one that is larger goes alone."""


class SendUnbatched:
    """Instead of a reply: send it alone."""


SEND_UNBATCHED = SendUnbatched()


def group_batches(ops: Sequence[Op[Any]]) -> list[list[int]]:
    """The places of operations that go together, at least two at a time."""
    made: list[list[int]] = []
    for kind in BATCHED_KINDS:
        lane: list[int] = []
        size = 0
        for place, op in enumerate(ops):
            weight = _payload_bytes(op)
            if type(op) is not kind or weight > MAX_BATCH_BYTES:
                continue
            if len(lane) == MAX_BATCH_STATEMENTS or size + weight > MAX_BATCH_BYTES:
                made.append(lane)
                lane, size = [], 0
            lane.append(place)
            size += weight
        made.append(lane)
    return [lane for lane in made if len(lane) > 1]


def _payload_bytes(op: Op[Any]) -> int:
    if isinstance(op, Complete):
        return len(op.answer.body)
    return len(op.input) if isinstance(op, Claim) else 0


def plan_batch(plans: MongoPlans, ops: Sequence[Any]) -> Plan[Command, list[Any]]:
    """The replies to operations of one kind; LEFT for those that have to go alone."""
    try:
        if isinstance(ops[0], Claim):
            return (yield from _plan_claims(plans, ops))
        return (yield from _plan_fenced(plans, ops))
    except LockNotAvailable:
        return [SEND_UNBATCHED] * len(ops)  # one of them is held by a transaction, or the majority was slow


def _plan_claims(plans: MongoPlans, ops: Sequence[Claim]) -> Plan[Command, list[Any]]:
    statements = [{"q": {"_id": op.id}, "u": updates.claim(op), "upsert": not op.resumes} for op in ops]
    done = yield from plans.write({"update": plans.names.keys, "updates": statements, "ordered": False})
    seen = yield from _read_after_write(plans, ops, done)
    return [_read_claim_reply(op, seen.get(op.id)) for op in ops]


def _read_after_write(
    plans: MongoPlans, ops: Sequence[Any], done: Mapping[str, Any]
) -> Plan[Command, dict[bytes, Any]]:
    """The records after a write, as a majority has them: what others wrote since may be undone by a failover."""
    at = done.get("operationTime")  # a server on its own has none, and nobody who could undo anything
    body = {
        "find": plans.names.keys,
        "filter": {"_id": {"$in": [op.id for op in ops]}},
        "projection": FOUND_AND_NOW,
        "batchSize": len(ops) + 1,  # one more than there can be: then the server knows that this was all
        "readConcern": {"level": "local"} if at is None else {"level": "majority", "afterClusterTime": at},
    }
    found = yield from plans.find_all(body)
    return {each["_id"]: each for each in found}


def _read_claim_reply(op: Claim, told: Any) -> ClaimReply | SendUnbatched:
    if told is None:
        return SEND_UNBATCHED  # reaped between the two
    record, now = documents.read_record(told["found"]), read_now(op.now, told)
    if not is_granted(record, op) and decide_grant(record, op, now) is not None:
        return SEND_UNBATCHED  # it may be had by now: somebody gave it back between the two
    return ClaimReply(is_granted(record, op), record, now)


def _plan_fenced(plans: MongoPlans, ops: Sequence[Any]) -> Plan[Command, list[Any]]:
    statements = []
    for op in ops:
        condition, stages = updates.MOVES[type(op)](op)
        fence = {"_id": op.id, "attempt": op.fence.attempt, "token": op.fence.token}
        statements.append({"q": fence | condition, "u": stages})
    done = yield from plans.write({"update": plans.names.keys, "updates": statements, "ordered": False})
    if done["n"] == len(ops):
        return [True] * len(ops)
    if not isinstance(ops[0], Complete):
        return [SEND_UNBATCHED] * len(ops)
    seen = yield from _read_after_write(plans, ops, done)
    return [_read_complete_reply(op, seen.get(op.id)) for op in ops]


def _read_complete_reply(op: Complete, told: Any) -> bool | SendUnbatched:
    return (told is not None and is_recognised(documents.read_record(told["found"]), op)) or SEND_UNBATCHED
