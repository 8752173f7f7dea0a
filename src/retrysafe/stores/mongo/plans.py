"""Each operation as a plan: which commands to send, and how to read what comes back. Written once for both colours;
who sends them (our client, the user's own session) is not known here.

A write is one `findAndModify` with its whole condition in it, acknowledged by a majority and its journals. One that
changes nothing waits for the majority all the same, so what it shows cannot be rolled back any more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from retrysafe.core.moves import KEPT_AFTER_COMPLETION_MICROS, decide_grant, is_recognised
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Install,
    List,
    Lookup,
    LookupReply,
    Op,
    Page,
    Reap,
    Release,
    Resolve,
    Stats,
    StatsReply,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import Record
from retrysafe.core.states import SETTLED, State
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Plan, read_id_cursor, read_page
from retrysafe.stores.mongo import documents, updates
from retrysafe.stores.mongo.settings import WRITE_CONCERN, CollectionNames

R = TypeVar("R")

MAX_WRITE_TRIES = 20
"""How often a command is sent again when two writers met on one document. Each time somebody got on."""

_RECOGNISABLE = (Advance, Complete, Release, Withdraw, Suspect, Resolve)
RESTING = {"state": State.RELEASED.value, "point": {"$gt": ""}}
"""What was released at a recovery point; the index for it says the same."""
_SETTLED = sorted(state.value for state in SETTLED)
FOUND_AND_NOW = {"found": "$$ROOT", "now": {"$toLong": "$$NOW"}}
"""A projection: the document, and the server's clock when it was read."""


class Command(NamedTuple):
    """One thing to send; the reply is the server's, as a mapping."""

    body: dict[str, Any]
    writes: bool = True
    """It gets our write concern and our patience. Inside a transaction neither is said: the commit has them."""
    outside: bool = False
    """It is to be sent outside the user's transaction, though on the user's client."""
    database: str = ""
    """Where, on a user's client; our own knows."""


class LockNotAvailable(Exception):
    """Raised by an executor: an open transaction holds the document and would not let go in time (I28)."""


class WriteConflict(Exception):
    """Raised by an executor: two writers met (WriteConflict, E11000). Nothing was done, and the next try may work."""


class MongoPlans:
    """The commands of one installation."""

    def __init__(self, names: CollectionNames, patience: float) -> None:
        self.names = names
        self._max_time_ms = max(1, round(patience * 1000))

    def plan_operation(self, op: Op[R]) -> Plan[Command, R]:
        """The plan of an operation."""
        plan: Plan[Command, R] = PLANS[type(op)](self, op)
        return plan

    def write(self, body: dict[str, Any]) -> Plan[Command, Mapping[str, Any]]:
        """A write of ours, again where two met."""
        command = Command({**body, "writeConcern": WRITE_CONCERN, "maxTimeMS": self._max_time_ms})
        for _ in range(MAX_WRITE_TRIES):
            try:
                reply: Mapping[str, Any] = yield command
            except WriteConflict:
                continue
            return reply
        raise StoreUnavailable(f"the key was contended {MAX_WRITE_TRIES} times in a row; nothing was done, try again")

    def find_all(self, body: dict[str, Any]) -> Plan[Command, list[Mapping[str, Any]]]:
        """All that a `find` finds, in as many replies as it takes: one ends at 16 MB."""
        reply = yield Command(body, writes=False)
        found = list(reply["cursor"]["firstBatch"])
        while reply["cursor"]["id"]:
            reply = yield Command({"getMore": reply["cursor"]["id"], "collection": body["find"]}, writes=False)
            found.extend(reply["cursor"]["nextBatch"])
        return found

    # Claim ----------------------------------------------------------------------------------

    def claim(self, op: Claim) -> Plan[Command, ClaimReply]:
        body = {
            "findAndModify": self.names.keys,
            "query": {"_id": op.id},
            "update": updates.claim(op),
            "upsert": not op.resumes,
            "new": True,
            "fields": FOUND_AND_NOW,
        }
        try:
            reply = yield from self.write(body)
        except LockNotAvailable:
            return (yield from self._read_held_claim(op))
        told = reply["value"]
        if told is None:
            return ClaimReply(False, None, (yield from self.read_clock(op.now)))
        record = documents.read_record(told["found"])
        return ClaimReply(is_granted(record, op), record, read_now(op.now, told))

    def _read_held_claim(self, op: Claim) -> Plan[Command, ClaimReply]:
        """A transaction holds the key, or the majority was slow: what is committed tells which."""
        record, now = yield from self.read_majority(op.id, op.now)
        if record is not None and is_granted(record, op):
            return ClaimReply(True, record, now)
        shown = record is not None and decide_grant(record, op, now) is None
        return ClaimReply(False, record if shown else None, now)

    # Fenced writes --------------------------------------------------------------------------

    def fenced_write(self, op: Any) -> Plan[Command, bool]:
        condition, stages = updates.MOVES[type(op)](op)
        fence = {"_id": op.id, "attempt": op.fence.attempt, "token": op.fence.token}
        body = {"findAndModify": self.names.keys, "query": fence | condition, "update": stages, "fields": {"_id": 1}}
        reply = yield from self.write(body)
        if reply["value"] is not None or not isinstance(op, _RECOGNISABLE):
            return reply["value"] is not None
        # Refused, or done before and the reply was lost? What is stored tells; it can only be read now.
        record, _ = yield from self.read_majority(op.id, op.now)
        return is_recognised(record, op)

    # Reading and cleaning -------------------------------------------------------------------

    def read_majority(self, record_id: bytes, now: int | None) -> Plan[Command, tuple[Record | None, int]]:
        """The record as it is now, once a majority has all that was read. A linearizable read says the same, but
        waits for the journal's next turn: a hundred times as long."""
        found = yield Command(
            {"find": self.names.keys, "filter": {"_id": record_id}, "limit": 1, "singleBatch": True}, writes=False
        )
        seen = found["cursor"]["firstBatch"]
        _, told = yield from self.write_barrier()
        return documents.read_record(seen[0]) if seen else None, told if now is None else now

    def write_barrier(self) -> Plan[Command, tuple[str, int]]:
        """A write that changes nothing: it returns when a majority has everything before it. It tells the
        installation's name, drawing one if there is none, and the server's clock."""
        body = {
            "findAndModify": self.names.meta,
            "query": {"_id": "install"},
            "update": [{"$set": {"value": {"$ifNull": ["$value", updates.as_literal(secrets.token_hex(16))]}}}],
            "upsert": True,
            "new": True,
            "fields": FOUND_AND_NOW,
        }
        reply = yield from self.write(body)
        told = reply["value"]
        return str(told["found"]["value"]), read_now(None, told)

    def lookup(self, op: Lookup) -> Plan[Command, LookupReply]:
        record, now = yield from self.read_majority(op.id, op.now)
        return LookupReply(record, now)

    def install(self, op: Install) -> Plan[Command, str]:
        name, _ = yield from self.write_barrier()
        return name

    def read_clock(self, now: int | None) -> Plan[Command, int]:
        """A number, where a filter by an index needs one."""
        if now is not None:
            return now
        hello = yield Command({"hello": 1}, writes=False)
        moment: datetime = hello["localTime"]
        return round(moment.timestamp() * 1000) * 1000

    def reap(self, op: Reap) -> Plan[Command, int]:
        now = yield from self.read_clock(op.now)
        ended = {
            "completed": {"$lte": now - KEPT_AFTER_COMPLETION_MICROS}
        }  # only what was withdrawn expires sooner than that
        expired = {"state": {"$in": _SETTLED}, "expires": {"$lte": now}, **ended, **_namespace_filter(op.namespace)}
        found = yield Command(
            {
                "find": self.names.keys,
                "filter": expired,
                "sort": {"expires": 1},
                "projection": {"_id": 1},
                "limit": op.limit,
                "batchSize": op.limit,
                "singleBatch": True,
            },
            writes=False,
        )
        ids = [each["_id"] for each in found["cursor"]["firstBatch"]]
        if not ids:
            return 0
        # Once more with the whole condition: since it was read, a claim may have begun a new life.
        gone = yield from self.write(
            {"delete": self.names.keys, "deletes": [{"q": {"_id": {"$in": ids}, **expired}, "limit": 0}]}
        )
        return int(gone["n"])

    def list(self, op: List) -> Plan[Command, Page]:
        condition = yield from self._list_condition(op)
        wanted = op.limit + 1
        body = {"find": self.names.keys, "filter": condition, "sort": {"_id": 1}, "limit": wanted, "batchSize": wanted}
        found = yield Command(body, writes=False)
        # A batch ends at 16 MB, whatever was asked for: then this page is shorter, and there is another.
        cut = found["cursor"]["id"] != 0
        seen = found["cursor"]["firstBatch"]
        if cut:
            yield Command({"killCursors": self.names.keys, "cursors": [found["cursor"]["id"]]}, writes=False)
        shown = seen[: op.limit]
        page, unreadable = read_page(shown, documents.read_record, lambda each: bytes(each["_id"]))
        more = cut or len(seen) > op.limit
        return Page(page, bytes(shown[-1]["_id"]).hex() if more and shown else "", unreadable)

    def _list_condition(self, op: List) -> Plan[Command, dict[str, Any]]:
        condition: dict[str, Any] = {}
        if op.cursor:
            condition["_id"] = {"$gt": read_id_cursor(op.cursor)}
        for name in ("namespace", "kind", "scope"):
            value = getattr(op, name)
            if value is not None:
                condition[name] = {"$eq": value}
        states: list[dict[str, Any]] = [{"state": op.state.value}] if op.state is not None else []
        if op.lapsed:
            now = yield from self.read_clock(op.now)
            states.append({"state": State.CLAIMED.value, "lease_until": {"$lte": now}})
        if op.resting:
            states.append(RESTING)
        if op.state is State.RELEASED:
            now = yield from self.read_clock(op.now)
            states.append({"expires": {"$gt": now}})
        return {**condition, "$and": states} if states else condition

    def stats(self, op: Stats) -> Plan[Command, StatsReply]:
        now = yield from self.read_clock(op.now)
        reapable = [{"$lte": ["$expires", now]}, {"$lte": ["$completed", now - KEPT_AFTER_COMPLETION_MICROS]}]
        counted: dict[str, Any] = {
            "_id": "$state",
            "count": {"$sum": 1},
            "lapsed": {"$sum": {"$cond": [{"$lte": ["$lease_until", now]}, 1, 0]}},
            "expired": {"$sum": {"$cond": [{"$and": reapable}, 1, 0]}},
        }
        stages = [{"$match": _namespace_filter(op.namespace)}, {"$group": counted}]
        body: dict[str, Any] = {"aggregate": self.names.keys, "pipeline": stages, "cursor": {}}
        found = yield Command(body, writes=False)
        by_state = {each["_id"]: each for each in found["cursor"]["firstBatch"]}

        def count_of(state: State, what: str = "count") -> int:
            return int(by_state.get(state.value, {}).get(what, 0))

        return StatsReply(
            claimed=count_of(State.CLAIMED),
            released=count_of(State.RELEASED),
            completed=count_of(State.COMPLETED),
            uncertain=count_of(State.UNCERTAIN),
            lapsed=count_of(State.CLAIMED, "lapsed"),
            expired=count_of(State.RELEASED, "expired") + count_of(State.COMPLETED, "expired"),
            now=now,
        )


def _namespace_filter(namespace: str | None) -> dict[str, Any]:
    return {} if namespace is None else {"namespace": {"$eq": namespace}}


def is_granted(record: Record, op: Claim) -> bool:
    """Whoever's token a claimed record carries has it: granted just now, or before, and the reply was lost."""
    return record.state is State.CLAIMED and record.token == op.token


def read_now(given: int | None, told: Mapping[str, Any]) -> int:
    return int(told["now"]) * 1000 if given is None else given


PLANS: dict[type[Any], Callable[[MongoPlans, Any], Any]] = {
    Claim: MongoPlans.claim,
    Lookup: MongoPlans.lookup,
    Install: MongoPlans.install,
    Reap: MongoPlans.reap,
    List: MongoPlans.list,
    Stats: MongoPlans.stats,
    **dict.fromkeys(updates.MOVES, MongoPlans.fenced_write),
}
