"""The collections and their indexes. MongoDB creates a collection at the first insert. A migration creates them before,
because a transaction needs them, and adds the indexes that lists, the worker and the sweeper use.
"""

from __future__ import annotations

from typing import Any

from retrysafe.stores.base import Plan
from retrysafe.stores.mongo.plans import RESTING, MongoCommand, MongoPlans
from retrysafe.stores.mongo.settings import WRITE_CONCERN, CollectionNames

_OPEN_FILTER = {"state": {"$in": ["claimed", "uncertain"]}}


def build_indexes(names: CollectionNames) -> dict[str, list[dict[str, Any]]]:
    """The indexes of each collection. Operations find a record by `_id`, which always has a unique index."""
    return {
        names.keys: [
            {"name": "by_state", "key": {"state": 1, "lease_until": 1}},
            {"name": "expiring", "key": {"expires": 1}},
            {"name": "resting", "key": {"namespace": 1, "_id": 1}, "partialFilterExpression": RESTING},
            # A TTL index: MongoDB deletes settled records some time after this date. Nothing depends on it (I12).
            {"name": "sweep", "key": {"sweep": 1}, "expireAfterSeconds": 0},
        ],
        names.meta: [],
        names.outbox: [
            {"name": "by_sequence", "key": {"sequence": 1}, "unique": True},
            {"name": "ordered", "key": {"order": 1, "sequence": 1}},
            {"name": "turns", "key": {"namespace": 1, "order": 1, "sequence": 1}},
            {"name": "dead_letters", "key": {"dead": 1, "sequence": 1}},
            {"name": "lanes", "key": {"namespace": 1, "dead": 1, "topic": 1, "sequence": 1}},
        ],
    }


def upgrade(plans: MongoPlans) -> Plan[MongoCommand, list[str]]:
    """Create what is missing and return the names of those collections. Two processes may do this at once."""
    listed = yield MongoCommand(
        {"listCollections": 1, "nameOnly": True, "cursor": {"batchSize": 100_000}}, writes=False
    )
    existing = {each["name"] for each in listed["cursor"]["firstBatch"]}
    made: list[str] = []
    for name, wanted in build_indexes(plans.names).items():
        if name in existing and not (yield from _lacks_indexes(name, wanted)):
            continue
        made.append(name)
        if wanted:
            yield MongoCommand({"createIndexes": name, "indexes": wanted, "writeConcern": WRITE_CONCERN})
    yield from plans.write_barrier()  # creates the meta collection
    return made


def _lacks_indexes(name: str, wanted: list[dict[str, Any]]) -> Plan[MongoCommand, bool]:
    found = yield MongoCommand({"listIndexes": name, "cursor": {"batchSize": 1000}}, writes=False)
    have = {each["name"] for each in found["cursor"]["firstBatch"]}
    return any(index["name"] not in have for index in wanted)


def build_script(names: CollectionNames) -> str:
    """The migration as commands for the MongoDB shell."""
    import json

    lines = []
    for collection, wanted in build_indexes(names).items():
        lines.append(f'db.createCollection("{collection}")')
        for index in wanted:
            options = {name: value for name, value in index.items() if name != "key"}
            lines.append(f"db.{collection}.createIndex({json.dumps(index['key'])}, {json.dumps(options)})")
    return "\n".join(lines) + "\n"
