"""The receipt: a completed record that commits together with the user's work, in the user's own transaction.

The lock is a document that is written when the transaction begins and deleted before it commits. If two transactions
write it, MongoDB aborts the second at once (WriteConflict), and nothing of the lock remains. A lock document that other
sessions can see was committed early, by the user: that is how an early commit is noticed.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim
from retrysafe.core.records import Answer, Record
from retrysafe.errors import UsageError
from retrysafe.stores.base import Plan
from retrysafe.stores.mongo import documents, updates
from retrysafe.stores.mongo.plans import MongoCommand, MongoPlans, read_now
from retrysafe.stores.mongo.settings import LOCK_TIMEOUT_SECONDS, Collections
from retrysafe.stores.sql.dialect import Dialect
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.receipts import CommittedEarly, LockedRead, TxMarker, build_claimed_record

CONFLICT_CODES = frozenset({112, 11000})


class MongoDialect(Dialect):
    """A placeholder: transactions expect a Dialect, and MongoDB has no SQL."""

    def load(self, names: TableNames) -> dict[str, str]:
        raise UsageError(
            "a local step of an operation cannot run in a MongoDB transaction: its recovery point is written in SQL; "
            "make it a foreign step, or use @safe.transactional"
        )


MONGO = MongoDialect(package="retrysafe.stores.mongo", now="", empty="", least="", greatest="")


class MongoReceipts:
    """The commands of one installation, inside a user's transaction."""

    def __init__(self, home: Collections) -> None:
        self.plans = CollectionPlans(home)
        self._home = home

    def lock_and_read(self, claim: Claim) -> Plan[MongoCommand, LockedRead]:
        """Read the record, and take the lock if the claim may be granted."""
        reply = yield self._build_command(self._read_command(claim.id))
        seen = reply["cursor"]["firstBatch"]
        if not seen:
            return LockedRead(False, 0, "", 0, None)  # another database, or it was never migrated
        record = documents.read_record(seen[0]["found"][0]) if seen[0]["found"] else None
        look = LockedRead(False, 0, str(seen[0]["value"]), read_now(claim.now, seen[0]), record)
        if decide_grant(record, claim, look.now) is None:
            return look  # nothing will run, so no lock is needed
        locked, left = yield from self._lock(claim)
        ended = () if record is None else (record.token, *record.ended)  # what became of these is on the record
        return look._replace(locked=locked, committed_early=bool(left) and left not in ended)

    def _read_command(self, record_id: bytes) -> dict[str, Any]:
        found = {"from": self._home.names.keys, "pipeline": [{"$match": {"_id": record_id}}], "as": "found"}
        stages = [
            {"$match": {"_id": "install"}},
            {"$lookup": found},
            {"$project": {"value": 1, "found": 1, "now": {"$toLong": "$$NOW"}}},
        ]
        return {"aggregate": self._home.names.meta, "pipeline": stages, "cursor": {}}

    def _lock(self, claim: Claim) -> Plan[MongoCommand, tuple[bool, bytes]]:
        """Take the lock. Returns whether this transaction has it, and the token of a lock that was left behind."""
        written = {"query": {"_id": claim.id}, "update": {"$set": {"token": claim.token}}, "upsert": True}
        try:
            before = yield self._build_command({"findAndModify": self._home.names.meta, **written})
        except Exception as error:
            if getattr(error, "code", None) not in CONFLICT_CODES:
                raise
            return False, b""
        return True, bytes(before["value"]["token"]) if before["value"] else b""

    @staticmethod
    def build_claimed_record(claim: Claim, look: LockedRead, grant: Grant) -> Record:
        """The record as a claim would have left it at the moment of the look."""
        return build_claimed_record(claim, look, grant)

    def mark_transaction(
        self, look: LockedRead | None = None, owner: bytes = b"", base: Record | None = None
    ) -> Generator[MongoCommand, Any, TxMarker]:
        """The lock is the mark. Raises CommittedEarly if it was there before: an earlier attempt committed it by hand,
        and has not come to the end of its work, or died."""
        yield from ()  # a plan that has nothing to say
        if look is not None and look.committed_early:
            raise CommittedEarly
        return TxMarker(0)

    def was_committed(self, mark: TxMarker) -> Plan[MongoCommand, bool | None]:
        """Nobody can tell once it is over."""
        yield from ()
        return None

    def forget_marker(self, owner: bytes) -> Plan[MongoCommand, None]:
        """Delete the lock that an early commit has left, once the record says so."""
        yield self._build_command({"delete": self._home.names.meta, "deletes": [{"q": {"_id": owner}, "limit": 1}]})

    def is_other_transaction(self, claim: Claim, mark: TxMarker) -> Plan[MongoCommand, bool]:
        """A lock that others can see was committed."""
        lock = {"_id": claim.id, "token": claim.token}
        seen = yield self._build_command({"find": self._home.names.meta, "filter": lock, "limit": 1}, outside=True)
        return bool(seen["cursor"]["firstBatch"])

    def write_receipt(
        self, claim: Claim, look: LockedRead, grant: Grant, answer: Answer, mark: TxMarker
    ) -> Plan[MongoCommand, Record | None]:
        """Insert the receipt, or replace the record that was read. None: another transaction changed the record
        meanwhile. Raises CommittedEarly if the open transaction is not the one that began."""
        if (yield from self.is_other_transaction(claim, mark)):
            raise CommittedEarly
        lock = {"_id": claim.id, "token": claim.token}
        freed = yield self._build_command({"delete": self._home.names.meta, "deletes": [{"q": lock, "limit": 1}]})
        if freed["n"] != 1:
            raise CommittedEarly  # our own lock is not there: it was rolled back
        base = documents.write_record(build_claimed_record(claim, look, grant))
        body = {
            "findAndModify": self._home.names.keys,
            "query": {"_id": claim.id, **_seen_filter(look.record)},
            "update": [
                {"$replaceWith": updates.as_literal(base)},
                *updates.settle_stages(claim.now, "completed", "", answer),
            ],
            "upsert": look.record is None,
            "new": True,
        }
        put = yield self._build_command(body)
        return None if put["value"] is None else documents.read_record(put["value"])

    def _build_command(self, body: dict[str, Any], *, outside: bool = False) -> MongoCommand:
        return MongoCommand(body, outside=outside, database=self._home.database)


class CollectionPlans:
    """The plans of plans.py, with every command addressed to the store's database."""

    def __init__(self, home: Collections) -> None:
        self._plans = MongoPlans(home.names, LOCK_TIMEOUT_SECONDS)
        self._database = home.database

    def plan_operation(self, op: Any) -> Plan[MongoCommand, Any]:
        return self._address_commands(self._plans.plan_operation(op))

    def _address_commands(self, plan: Plan[MongoCommand, Any]) -> Plan[MongoCommand, Any]:
        try:
            command = next(plan)
            while True:
                try:
                    reply = yield command._replace(database=self._database)
                except Exception as error:
                    command = plan.throw(error)
                else:
                    command = plan.send(reply)
        except StopIteration as done:
            return done.value


def _seen_filter(record: Record | None) -> dict[str, Any]:
    if record is None:
        return {"state": {"$exists": False}}
    return {"attempt": record.attempt, "token": record.token, "state": record.state.value}
