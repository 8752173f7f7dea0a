"""Many operations in one command (group commit): claims, completions and renewals of different keys, with one wait for
the majority.

Claims are an `insert` of ready documents, which is the cheapest write that MongoDB has. Their times come from the
server's clock, which is read just before. The reply names the keys that existed; all others were created. If the claims
before met records (replays), an `update` is sent instead: it leaves records as they are without an error for each.

The reply to an `update` has only the number of documents that it changed. If it changed all of them, every operation
succeeded. Otherwise claims and completions are read from the records (the token on the record says who has the claim).
What is still open is sent alone, and recognises what the batch has already done.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

from retrysafe.core.moves import build_new_record, decide_grant, is_recognised
from retrysafe.core.ops import Claim, ClaimReply, Complete, Op, Renew
from retrysafe.stores.base import LockNotAvailable, Plan
from retrysafe.stores.mongo import documents, updates
from retrysafe.stores.mongo.plans import FOUND_AND_NOW, MongoCommand, MongoPlans, build_fence, is_granted, read_now

BATCHED_KINDS = (Claim, Complete, Renew)
MAX_BATCH_STATEMENTS = 200
"""Statements in one command. MongoDB takes 48 MB in one command."""
MAX_BATCH_BYTES = 8 << 20
"""Approximate bytes of answers or inputs in one command. A larger operation is sent alone."""


class SendUnbatched:
    """In the place of a reply: send this operation alone."""


SEND_UNBATCHED = SendUnbatched()


def group_batches(ops: Sequence[Op[Any]]) -> list[list[int]]:
    """The positions of operations that share a command. An operation that shares none is a group of its own."""
    open_groups: dict[type[Any], tuple[list[int], int]] = {}
    groups: list[list[int]] = []
    for place, op in enumerate(ops):
        kind, weight = type(op), _payload_bytes(op)
        group, size = open_groups.get(kind, ([], 0))
        if kind not in BATCHED_KINDS or weight > MAX_BATCH_BYTES:
            groups.append([place])
            continue
        if not group or len(group) == MAX_BATCH_STATEMENTS or size + weight > MAX_BATCH_BYTES:
            group, size = [], 0
            groups.append(group)
        group.append(place)
        open_groups[kind] = group, size + weight
    return groups


def pair_replies(groups: Sequence[list[int]], found: Sequence[list[Any]]) -> Iterator[tuple[int, Any]]:
    """Each position with its reply."""
    return zip(chain.from_iterable(groups), chain.from_iterable(found), strict=True)


def _payload_bytes(op: Op[Any]) -> int:
    if isinstance(op, Complete):
        return len(op.answer.body)
    return len(op.input) if isinstance(op, Claim) else 0


def plan_batch(plans: MongoPlans, ops: Sequence[Any]) -> Plan[MongoCommand, list[Any]]:
    """The replies to operations of one kind; SEND_UNBATCHED for each one that must be sent alone."""
    try:
        if isinstance(ops[0], Claim):
            return (yield from _plan_claims(plans, ops))
        if isinstance(ops[0], Complete):
            return (yield from _plan_completions(plans, ops))
        return (yield from _plan_renewals(plans, ops))
    except LockNotAvailable:
        return [SEND_UNBATCHED] * len(ops)  # a transaction holds one of the documents, or the majority was slow


def _plan_claims(plans: MongoPlans, ops: Sequence[Claim]) -> Plan[MongoCommand, list[Any]]:
    """Begin with what the claims before would have needed. A wrong guess costs time and nothing else."""
    inserts = not plans.expects_records and not any(op.resumes for op in ops)
    replies = yield from (_insert_or_read(plans, ops) if inserts else _update_or_read(plans, ops))
    return replies


def _insert_or_read(plans: MongoPlans, ops: Sequence[Claim]) -> Plan[MongoCommand, list[Any]]:
    """The clock is read after the callers asked, so no lease ends later than its caller believes (I33)."""
    clock = yield from plans.read_clock(None if any(op.now is None for op in ops) else 0)
    times = [clock if op.now is None else op.now for op in ops]
    records = [build_new_record(op, now) for op, now in zip(ops, times, strict=True)]
    written = [documents.write_record(record) for record in records]
    done = yield from plans.write(
        {"insert": plans.names.keys, "documents": written, "ordered": False}, existing_allowed=True
    )
    met = {each["index"] for each in done.get("writeErrors", ())}
    plans.expects_records = _are_most(len(met), ops)
    seen = (yield from _read_after_write(plans, [ops[place] for place in met], done)) if met else {}
    return [
        _read_claim_reply(op, seen.get(op.id)) if place in met else ClaimReply(True, record, now)
        for place, (op, record, now) in enumerate(zip(ops, records, times, strict=True))
    ]


def _are_most(met: int, ops: Sequence[Claim]) -> bool:
    """Whether an `update` is cheaper than an `insert` if so many of these claims meet a record."""
    return 2 * met > len(ops)


def _update_or_read(plans: MongoPlans, ops: Sequence[Claim]) -> Plan[MongoCommand, list[Any]]:
    """The reply names the records that the command created. One of them is read for its time, which is that of all of
    them: the server's clock stands still during a command. The other records are read, too."""
    statements = [{"q": {"_id": op.id}, "u": _claim_stages(op), "upsert": not op.resumes} for op in ops]
    done = yield from plans.write({"update": plans.names.keys, "updates": statements, "ordered": False})
    born = {ops[each["index"]].id for each in done.get("upserted", ())}
    plans.expects_records = _are_most(len(ops) - len(born), ops)
    dated = next((op for op in ops if op.id in born and op.now is None), None)
    read = [op for op in ops if op.id not in born or op is dated]
    seen = (yield from _read_after_write(plans, read, done)) if read else {}
    created = None if dated is None else _read_birth_time(dated, seen.get(dated.id))
    return [_read_birth(op, created) if op.id in born else _read_claim_reply(op, seen.get(op.id)) for op in ops]


def _claim_stages(op: Claim) -> updates.Stages:
    return updates.claim(op) if op.resumes else updates.birth(op)


def _read_birth_time(op: Claim, seen_document: Any) -> int | None:
    """None if the record was started anew or reaped between the write and the read."""
    found = None if seen_document is None else seen_document["found"]
    return int(found["created"]) if found is not None and found["token"] == op.token else None


def _read_birth(op: Claim, created: int | None) -> ClaimReply | SendUnbatched:
    """The reply to a claim that created its record. Without a time it is sent alone, and recognises its record."""
    moment = created if op.now is None else op.now
    return SEND_UNBATCHED if moment is None else ClaimReply(True, build_new_record(op, moment), moment)


def _read_after_write(
    plans: MongoPlans, ops: Sequence[Any], done: Mapping[str, Any]
) -> Plan[MongoCommand, dict[bytes, Any]]:
    """The records after a write, as a majority has them: what others wrote since may be undone by a failover."""
    at = done.get("operationTime")  # a standalone server has none: no failover can undo its writes
    body = {
        "find": plans.names.keys,
        "filter": {"_id": {"$in": [op.id for op in ops]}},
        "projection": FOUND_AND_NOW,
        "batchSize": len(ops) + 1,  # one more than there can be: then the server knows that this was all
        "readConcern": {"level": "local"} if at is None else {"level": "majority", "afterClusterTime": at},
    }
    found = yield from plans.find_all(body)
    return {each["_id"]: each for each in found}


def _read_claim_reply(op: Claim, seen_document: Any) -> ClaimReply | SendUnbatched:
    if seen_document is None:
        return SEND_UNBATCHED  # reaped between the write and the read
    record, now = documents.read_record(seen_document["found"]), read_now(op.now, seen_document)
    if not is_granted(record, op) and decide_grant(record, op, now) is not None:
        return SEND_UNBATCHED  # it was released between the write and the read: a claim may be granted now
    return ClaimReply(is_granted(record, op), record, now)


def _plan_completions(plans: MongoPlans, ops: Sequence[Complete]) -> Plan[MongoCommand, list[Any]]:
    done = yield from plans.complete_many(ops)
    if done["nModified"] == len(ops):
        return [True] * len(ops)
    seen = yield from _read_after_write(plans, ops, done)
    return [_read_complete_reply(op, seen.get(op.id)) for op in ops]


def _plan_renewals(plans: MongoPlans, ops: Sequence[Renew]) -> Plan[MongoCommand, list[Any]]:
    statements = []
    for op in ops:
        condition, stages = updates.renew(op)
        statements.append({"q": build_fence(op) | condition, "u": stages})
    done = yield from plans.write({"update": plans.names.keys, "updates": statements, "ordered": False})
    return [True if done["n"] == len(ops) else SEND_UNBATCHED] * len(ops)


def _read_complete_reply(op: Complete, seen_document: Any) -> bool | SendUnbatched:
    return (
        seen_document is not None and is_recognised(documents.read_record(seen_document["found"]), op)
    ) or SEND_UNBATCHED
