"""Many operations in one command: claims, completions and renewals of different keys, under one wait for the majority.

An `update` with many statements says how many of them found their document, not which. So the reply of a batch is
either plain (all of them did), or read from the records (claims: whoever's token is on it has it), or, for what is
left over, not there: then each goes alone, and recognises what the batch has done of it already.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrysafe.core.moves import grantable, recognised
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Renew
from retrysafe.stores.base import Plan
from retrysafe.stores.mongo import documents, moving
from retrysafe.stores.mongo.plans import TOLD, Command, Held, Plans, granted, now_told

TOGETHER = (Claim, Complete, Renew)
AT_MOST = 200
"""Statements in a command: an answer or an input may have megabytes, and a command 48."""
SIZE = 8 << 20
"""Bytes of answers or inputs in a command, about; one that is larger goes alone."""


class Left:
    """Instead of a reply: send it alone."""


LEFT = Left()


def lanes(ops: Sequence[Op[Any]]) -> list[list[int]]:
    """The places of operations that go together, at least two at a time."""
    made: list[list[int]] = []
    for kind in TOGETHER:
        lane: list[int] = []
        size = 0
        for place, op in enumerate(ops):
            weight = _weight(op)
            if type(op) is not kind or weight > SIZE:
                continue
            if len(lane) == AT_MOST or size + weight > SIZE:
                made.append(lane)
                lane, size = [], 0
            lane.append(place)
            size += weight
        made.append(lane)
    return [lane for lane in made if len(lane) > 1]


def _weight(op: Op[Any]) -> int:
    if isinstance(op, Complete):
        return len(op.answer.body)
    return len(op.input) if isinstance(op, Claim) else 0


def together(plans: Plans, ops: Sequence[Any]) -> Plan[Command, list[Any]]:
    """The replies to operations of one kind; LEFT for those that have to go alone."""
    try:
        if isinstance(ops[0], Claim):
            return (yield from _claims(plans, ops))
        return (yield from _fenced(plans, ops))
    except Held:
        return [LEFT] * len(ops)  # one of them is held by a transaction, or the majority was slow


def _claims(plans: Plans, ops: Sequence[Claim]) -> Plan[Command, list[Any]]:
    statements = [{"q": {"_id": op.id}, "u": moving.claim(op), "upsert": not op.resumes} for op in ops]
    done = yield from plans.write({"update": plans.names.keys, "updates": statements, "ordered": False})
    seen = yield from _seen(plans, ops, done)
    return [_claimed(op, seen.get(op.id)) for op in ops]


def _seen(plans: Plans, ops: Sequence[Any], done: Mapping[str, Any]) -> Plan[Command, dict[bytes, Any]]:
    """The records after a write, as a majority has them: what others wrote since may be undone by a failover."""
    at = done.get("operationTime")  # a server on its own has none, and nobody who could undo anything
    body = {
        "find": plans.names.keys,
        "filter": {"_id": {"$in": [op.id for op in ops]}},
        "projection": TOLD,
        "batchSize": len(ops) + 1,  # one more than there can be: then the server knows that this was all
        "readConcern": {"level": "local"} if at is None else {"level": "majority", "afterClusterTime": at},
    }
    found = yield from plans.found(body)
    return {each["_id"]: each for each in found}


def _claimed(op: Claim, told: Any) -> ClaimReply | Left:
    if told is None:
        return LEFT  # reaped between the two
    record, now = documents.read(told["found"]), now_told(op.now, told)
    if not granted(record, op) and grantable(record, op, now) is not None:
        return LEFT  # it may be had by now: somebody gave it back between the two
    return ClaimReply(granted(record, op), record, now)


def _fenced(plans: Plans, ops: Sequence[Any]) -> Plan[Command, list[Any]]:
    statements = []
    for op in ops:
        condition, stages = moving.MOVES[type(op)](op)
        fence = {"_id": op.id, "attempt": op.fence.attempt, "token": op.fence.token}
        statements.append({"q": fence | condition, "u": stages})
    done = yield from plans.write({"update": plans.names.keys, "updates": statements, "ordered": False})
    if done["n"] == len(ops):
        return [True] * len(ops)
    if not isinstance(ops[0], Complete):
        return [LEFT] * len(ops)
    seen = yield from _seen(plans, ops, done)
    return [_stored(op, seen.get(op.id)) for op in ops]


def _stored(op: Complete, told: Any) -> bool | Left:
    return (told is not None and recognised(documents.read(told["found"]), op)) or LEFT
