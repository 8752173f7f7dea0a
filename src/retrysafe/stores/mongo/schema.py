"""The collections and their indexes. MongoDB makes a collection when something is put in; migrating makes them before,
so that they are there for a transaction, and gives them the indexes that lists, the worker and the sweeper use.
"""

from __future__ import annotations

from typing import Any

from retrysafe.stores.base import Plan
from retrysafe.stores.mongo.plans import RESTING, Command, MongoPlans
from retrysafe.stores.mongo.settings import WRITE_CONCERN, CollectionNames

_OPEN_FILTER = {"state": {"$in": ["claimed", "uncertain"]}}


def indexes(names: CollectionNames) -> dict[str, list[dict[str, Any]]]:
    """Per collection. A record is found by `_id`, which is unique by itself."""
    return {
        names.keys: [
            {"name": "by_state", "key": {"state": 1, "lease_until": 1}},
            {"name": "expiring", "key": {"expires": 1}},
            {"name": "resting", "key": {"namespace": 1, "_id": 1}, "partialFilterExpression": RESTING},
            # The sweeper: settled records have this date, and go some time after it. Nothing relies on it (I12).
            {"name": "sweep", "key": {"sweep": 1}, "expireAfterSeconds": 0},
        ],
        names.meta: [],
        names.outbox: [
            {"name": "by_sequence", "key": {"sequence": 1}, "unique": True},
            {"name": "ordered", "key": {"order": 1, "sequence": 1}},
            {"name": "turns", "key": {"namespace": 1, "order": 1, "sequence": 1}},
            {"name": "lanes", "key": {"namespace": 1, "dead": 1, "topic": 1, "sequence": 1}},
        ],
    }


def upgrade(plans: MongoPlans) -> Plan[Command, list[str]]:
    """Make what is missing; the reply names it. Run by two at once, both end with all of it there."""
    listed = yield Command({"listCollections": 1, "nameOnly": True, "cursor": {"batchSize": 100_000}}, writes=False)
    there = {each["name"] for each in listed["cursor"]["firstBatch"]}
    made: list[str] = []
    for name, wanted in indexes(plans.names).items():
        if name in there and not (yield from _lacks_indexes(name, wanted)):
            continue
        made.append(name)
        if wanted:
            yield Command({"createIndexes": name, "indexes": wanted, "writeConcern": WRITE_CONCERN})
    yield from plans.write_barrier()  # and it makes the last of the collections
    return made


def _lacks_indexes(name: str, wanted: list[dict[str, Any]]) -> Plan[Command, bool]:
    found = yield Command({"listIndexes": name, "cursor": {"batchSize": 1000}}, writes=False)
    have = {each["name"] for each in found["cursor"]["firstBatch"]}
    return any(index["name"] not in have for index in wanted)


def build_script(names: CollectionNames) -> str:
    """What migrating does, for the shell."""
    import json

    lines = []
    for collection, wanted in indexes(names).items():
        lines.append(f'db.createCollection("{collection}")')
        for index in wanted:
            options = {name: value for name, value in index.items() if name != "key"}
            lines.append(f"db.{collection}.createIndex({json.dumps(index['key'])}, {json.dumps(options)})")
    return "\n".join(lines) + "\n"
