"""Each operation as a plan: which commands to send, and how to read the replies. A plan does no I/O, so the sync store,
the async store and the user's own session use the same plans.

A write is one command, mostly `findAndModify`, that contains its whole condition, acknowledged by a majority and their
journals. A write that changes nothing also waits for the majority, so what it returns cannot be rolled back any more.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, TypeVar

from retrysafe.core.backlog import Backlog, BacklogReply, OpenGroup
from retrysafe.core.moves import KEPT_AFTER_COMPLETION_MICROS, decide_grant, is_recognised
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    ForgetMarker,
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
from retrysafe.stores.base import LockNotAvailable, Plan, read_id_cursor, read_page
from retrysafe.stores.mongo import documents, updates
from retrysafe.stores.mongo.settings import WRITE_CONCERN, CollectionNames

R = TypeVar("R")

MAX_WRITE_TRIES = 20
"""How often a write is sent again after a write conflict. At each conflict another writer succeeded."""

_RECOGNISABLE = (Advance, Release, Withdraw, Suspect, Resolve)
RESTING = {"state": State.RELEASED.value, "point": {"$gt": ""}}
"""Records that were released at a recovery point. The index `resting` has the same filter."""
_SETTLED = sorted(state.value for state in SETTLED)
FOUND_AND_NOW = {"found": "$$ROOT", "now": {"$toLong": "$$NOW"}}
"""A projection: the document, and the server's clock at the time of the read."""


class MongoCommand(NamedTuple):
    """One command to send. Its reply is the server's reply, as a mapping."""

    body: dict[str, Any]
    writes: bool = True
    """The command writes. Outside a transaction it has our write concern and time limit; inside, the commit has."""
    outside: bool = False
    """Send it on the user's client, but outside the user's transaction."""
    database: str = ""
    """The database, on a user's client. The store's own client has a fixed one."""
    existing_allowed: bool = False
    """An `insert` that may meet documents that exist. Its reply names them. Otherwise that is a WriteConflict."""


class WriteConflict(Exception):
    """Two writers met on one document (WriteConflict, E11000). Nothing was done, and the next try may succeed. Raised
    to a plan by its sender."""


class MongoPlans:
    """The commands of one installation."""

    def __init__(self, names: CollectionNames, patience: float) -> None:
        self.names = names
        self.expects_records = False
        """What most claims of the last batch met. The next batch begins with what is cheaper then."""
        self._max_time_ms = max(1, round(patience * 1000))

    def plan_operation(self, op: Op[R]) -> Plan[MongoCommand, R]:
        """The plan of an operation."""
        plan: Plan[MongoCommand, R] = PLANS[type(op)](self, op)
        return plan

    def write(self, body: dict[str, Any], *, existing_allowed: bool = False) -> Plan[MongoCommand, Mapping[str, Any]]:
        """Send a write with our write concern, and again after a write conflict."""
        limited = {**body, "writeConcern": WRITE_CONCERN, "maxTimeMS": self._max_time_ms}
        command = MongoCommand(limited, existing_allowed=existing_allowed)
        for _ in range(MAX_WRITE_TRIES):
            try:
                reply: Mapping[str, Any] = yield command
            except WriteConflict:
                continue
            return reply
        raise StoreUnavailable(f"the key was contended {MAX_WRITE_TRIES} times in a row; nothing was done, try again")

    def find_all(self, body: dict[str, Any]) -> Plan[MongoCommand, list[Mapping[str, Any]]]:
        """All documents of a `find` or an `aggregate`. One reply ends at 16 MB, so there may be several."""
        reply = yield MongoCommand(body, writes=False)
        found = list(reply["cursor"]["firstBatch"])
        while reply["cursor"]["id"]:
            collection = body.get("find") or body["aggregate"]
            reply = yield MongoCommand({"getMore": reply["cursor"]["id"], "collection": collection}, writes=False)
            found.extend(reply["cursor"]["nextBatch"])
        return found

    # Claim ----------------------------------------------------------------------------------

    def claim(self, op: Claim) -> Plan[MongoCommand, ClaimReply]:
        """Create the record, or read the one that exists. Only if that one may be granted, the whole table is sent."""
        if not op.resumes:
            found = yield from self._update_or_read(op, updates.birth(op))
            if found.granted or found.record is None or decide_grant(found.record, op, found.now) is None:
                return found
        return (yield from self._update_or_read(op, updates.claim(op)))

    def _update_or_read(self, op: Claim, stages: updates.Stages) -> Plan[MongoCommand, ClaimReply]:
        body = {
            "findAndModify": self.names.keys,
            "query": {"_id": op.id},
            "update": stages,
            "upsert": not op.resumes,
            "new": True,
            "fields": FOUND_AND_NOW,
        }
        try:
            reply = yield from self.write(body)
        except LockNotAvailable:
            return (yield from self._read_held_claim(op))
        value = reply["value"]
        if value is None:
            return ClaimReply(False, None, (yield from self.read_clock(op.now)))
        record = documents.read_record(value["found"])
        return ClaimReply(is_granted(record, op), record, read_now(op.now, value))

    def _read_held_claim(self, op: Claim) -> Plan[MongoCommand, ClaimReply]:
        """After a timeout: a transaction holds the key, or the majority was slow. The committed record shows which."""
        record, now = yield from self.read_majority(op.id, op.now)
        if record is not None and is_granted(record, op):
            return ClaimReply(True, record, now)
        shown = record is not None and decide_grant(record, op, now) is None
        return ClaimReply(False, record if shown else None, now)

    # Fenced writes --------------------------------------------------------------------------

    def fenced_write(self, op: Any) -> Plan[MongoCommand, bool]:
        condition, stages = updates.MOVES[type(op)](op)
        query = build_fence(op) | condition
        body = {"findAndModify": self.names.keys, "query": query, "update": stages, "fields": {"_id": 1}}
        reply = yield from self.write(body)
        if reply["value"] is not None or not isinstance(op, _RECOGNISABLE):
            return reply["value"] is not None
        return (yield from self._recognise(op))

    def _recognise(self, op: Any) -> Plan[MongoCommand, bool]:
        """The write was refused, or it was done before and its reply was lost. The stored record shows which."""
        record, _ = yield from self.read_majority(op.id, op.now)
        return is_recognised(record, op)

    def complete(self, op: Complete) -> Plan[MongoCommand, bool]:
        done = yield from self.complete_many([op])
        return done["nModified"] == 1 or (yield from self._recognise(op))

    def complete_many(self, ops: Sequence[Complete]) -> Plan[MongoCommand, Mapping[str, Any]]:
        """The reply says how many were completed: `nModified`."""
        statements = [updates.build_completion(op) for op in ops]
        body = {"update": self.names.keys, "updates": statements, "ordered": False, "let": updates.COMPLETION_TIMES}
        return (yield from self.write(body))

    # Reading and cleaning -------------------------------------------------------------------

    def read_majority(self, record_id: bytes, now: int | None) -> Plan[MongoCommand, tuple[Record | None, int]]:
        """The record as it is now, after a majority has all that was read. A linearizable read guarantees the same, but
        waits for the next write of the journal, which takes a hundred times as long."""
        found = yield MongoCommand(
            {"find": self.names.keys, "filter": {"_id": record_id}, "limit": 1, "singleBatch": True}, writes=False
        )
        seen = found["cursor"]["firstBatch"]
        _, clock = yield from self.write_barrier()
        return documents.read_record(seen[0]) if seen else None, clock if now is None else now

    def write_barrier(self) -> Plan[MongoCommand, tuple[str, int]]:
        """A write that changes nothing. It returns when a majority has everything that was written before. The reply is
        the installation's name, which is drawn if there is none, and the server's clock."""
        body = {
            "findAndModify": self.names.meta,
            "query": {"_id": "install"},
            "update": [{"$set": {"value": {"$ifNull": ["$value", updates.as_literal(secrets.token_hex(16))]}}}],
            "upsert": True,
            "new": True,
            "fields": FOUND_AND_NOW,
        }
        reply = yield from self.write(body)
        value = reply["value"]
        return str(value["found"]["value"]), read_now(None, value)

    def lookup(self, op: Lookup) -> Plan[MongoCommand, LookupReply]:
        record, now = yield from self.read_majority(op.id, op.now)
        return LookupReply(record, now)

    def install(self, op: Install) -> Plan[MongoCommand, str]:
        name, _ = yield from self.write_barrier()
        return name

    def forget_marker(self, op: ForgetMarker) -> Plan[MongoCommand, None]:
        """Delete the lock that an early commit has left, once the record says so."""
        yield from self.write({"delete": self.names.meta, "deletes": [{"q": {"_id": op.marker}, "limit": 1}]})

    def read_clock(self, now: int | None) -> Plan[MongoCommand, int]:
        """The time as a number. A filter that uses an index needs a number, not an expression."""
        if now is not None:
            return now
        hello = yield MongoCommand({"hello": 1}, writes=False)
        moment: datetime = hello["localTime"]
        return round(moment.timestamp() * 1000) * 1000

    def reap(self, op: Reap) -> Plan[MongoCommand, int]:
        now = yield from self.read_clock(op.now)
        # Only a withdrawn record expires sooner than that.
        ended = {"completed": {"$lte": now - KEPT_AFTER_COMPLETION_MICROS}}
        expired = {"state": {"$in": _SETTLED}, "expires": {"$lte": now}, **ended, **_namespace_filter(op.namespace)}
        found = yield MongoCommand(
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
        # The delete has the whole condition again: since the read, a claim may have started the record anew.
        deleted = yield from self.write(
            {"delete": self.names.keys, "deletes": [{"q": {"_id": {"$in": ids}, **expired}, "limit": 0}]}
        )
        return int(deleted["n"])

    def list(self, op: List) -> Plan[MongoCommand, Page]:
        condition = yield from self._list_condition(op)
        wanted = op.limit + 1
        body = {"find": self.names.keys, "filter": condition, "sort": {"_id": 1}, "limit": wanted, "batchSize": wanted}
        bounded = (
            op.examine and not op.resting and not (op.only_open and (yield from self._are_few_open(op.max_sorted)))
        )
        stop = (yield from self._find_stop(op)) if bounded else None
        if stop is not None:
            condition["_id"] = {**condition.get("_id", {}), "$lte": stop}
            body["hint"] = {"_id": 1}
        found = yield MongoCommand(body, writes=False)
        # A reply ends at 16 MB, whatever the limit is. Then this page is shorter, and another page follows.
        cut = found["cursor"]["id"] != 0
        seen = found["cursor"]["firstBatch"]
        if cut:
            yield MongoCommand({"killCursors": self.names.keys, "cursors": [found["cursor"]["id"]]}, writes=False)
        shown = seen[: op.limit]
        page, unreadable = read_page(shown, documents.read_record, lambda each: bytes(each["_id"]))
        more = cut or len(seen) > op.limit
        last = bytes(shown[-1]["_id"]) if more and shown else bytes(stop or b"")
        return Page(page, last.hex(), unreadable)

    def _are_few_open(self, limit: int) -> Plan[MongoCommand, bool]:
        """Whether at most so many records are open."""
        body = {"count": self.names.keys, "query": updates.build_open_filter(), "limit": limit + 1}
        found = yield MongoCommand(body, writes=False)
        return int(found["n"]) <= limit

    def _find_stop(self, op: List) -> Plan[MongoCommand, bytes | None]:
        """The id that a page ends at which examines so many records. None: fewer are left."""
        after = {"_id": {"$gt": read_id_cursor(op.cursor)}} if op.cursor else {}
        body = {"find": self.names.keys, "filter": after, "sort": {"_id": 1}, "skip": op.examine - 1, "limit": 1}
        found = yield MongoCommand({**body, "projection": {"_id": 1}, "hint": {"_id": 1}}, writes=False)
        return next((bytes(each["_id"]) for each in found["cursor"]["firstBatch"]), None)

    def _list_condition(self, op: List) -> Plan[MongoCommand, dict[str, Any]]:
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

    def stats(self, op: Stats) -> Plan[MongoCommand, StatsReply]:
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
        found = yield MongoCommand(body, writes=False)
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

    def backlog(self, op: Backlog) -> Plan[MongoCommand, BacklogReply]:
        now = yield from self.read_clock(op.now)
        opened = {"state": {"$in": [State.CLAIMED.value, State.UNCERTAIN.value]}, **_namespace_filter(op.namespace)}
        # The order of the index by state: whatever the limit is, what has lapsed is among the documents that are read.
        stages = [
            {"$match": opened},
            {"$sort": {"lease_until": 1}},
            {"$limit": op.limit},
            {"$group": _build_groups(now)},
        ]
        found = yield from self.find_all({"aggregate": self.names.keys, "pipeline": stages, "cursor": {}})
        groups = tuple(sorted(map(_read_group, found)))
        ended = {"completed": {"$lte": now - KEPT_AFTER_COMPLETION_MICROS}}
        expired = {"state": {"$in": _SETTLED}, "expires": {"$lte": now}, **ended, **_namespace_filter(op.namespace)}
        body = {"find": self.names.keys, "filter": expired, "sort": {"expires": 1}, "projection": {"expires": 1}}
        due = yield from self.find_all({**body, "limit": op.limit})
        counted = sum(group.in_progress + group.uncertain for group in groups)
        oldest = int(due[0]["expires"]) if due else 0
        return BacklogReply(groups, len(due), oldest, max(counted, len(due)) >= op.limit, now)


def _build_groups(now: int) -> dict[str, Any]:
    """A $group stage: the open documents by kind and target."""
    lapsed = {"$lte": ["$lease_until", now]}
    marked = {"$eq": ["$state", State.UNCERTAIN.value]}
    unknown = {"$or": [marked, {"$and": [lapsed, {"$eq": ["$on_lapse", "uncertain"]}]}]}
    known = {"$not": [unknown]}

    def count(*conditions: Any) -> dict[str, Any]:
        return {"$sum": {"$cond": [{"$and": list(conditions)}, 1, 0]}}

    def oldest(condition: Any) -> dict[str, Any]:
        return {"$min": {"$cond": [condition, "$started", None]}}  # $min leaves out null

    return {
        "_id": {"kind": "$kind", "target": "$target"},
        "in_progress": count(known),
        "lapsed": count(known, lapsed),
        "uncertain": count(unknown),
        "unmarked": count(unknown, {"$not": [marked]}),
        "oldest_in_progress": oldest(known),
        "oldest_uncertain": oldest(unknown),
    }


def _read_group(found: Mapping[str, Any]) -> OpenGroup:
    counts = {name: int(value or 0) for name, value in found.items() if name != "_id"}
    return OpenGroup(found["_id"]["kind"], found["_id"]["target"], **counts)


def _namespace_filter(namespace: str | None) -> dict[str, Any]:
    return {} if namespace is None else {"namespace": {"$eq": namespace}}


def build_fence(op: Any) -> dict[str, Any]:
    """The filter of a fenced write: the record, if its attempt is still the one of this fence."""
    return {"_id": op.id, "attempt": op.fence.attempt, "token": op.fence.token}


def is_granted(record: Record, op: Claim) -> bool:
    """True if the claimed record has this claim's token: it was granted now, or earlier and the reply was lost."""
    return record.state is State.CLAIMED and record.token == op.token


def read_now(given: int | None, value: Mapping[str, Any]) -> int:
    return int(value["now"]) * 1000 if given is None else given


PLANS: dict[type[Any], Callable[[MongoPlans, Any], Any]] = {
    Claim: MongoPlans.claim,
    Lookup: MongoPlans.lookup,
    Install: MongoPlans.install,
    Reap: MongoPlans.reap,
    List: MongoPlans.list,
    Stats: MongoPlans.stats,
    Backlog: MongoPlans.backlog,
    ForgetMarker: MongoPlans.forget_marker,
    **dict.fromkeys(updates.MOVES, MongoPlans.fenced_write),
    Complete: MongoPlans.complete,
}
