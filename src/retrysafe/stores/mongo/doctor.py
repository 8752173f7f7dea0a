"""The doctor's checks of a MongoDB server: its version, replica set, journal and indexes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from pymongo import MongoClient
from pymongo.errors import OperationFailure, PyMongoError

from retrysafe.errors import RetrySafeError, StoreUnavailable
from retrysafe.stores.diagnosis import Diagnosis, Finding, bad, good
from retrysafe.stores.mongo import schema
from retrysafe.stores.mongo.client import CODEC, make_client
from retrysafe.stores.mongo.errors import translate_error
from retrysafe.stores.mongo.settings import MongoLocation

OLDEST_VERSION = (5, 0)
"""The first version that understands the commands. docs/reference/stores.md names the tested versions."""

Settings = Mapping[str, Any]


def diagnose(at: MongoLocation) -> Diagnosis:
    client: MongoClient[Any] = make_client(MongoClient, at.url)
    try:
        with client:
            found = read_settings(client, at)
    except PyMongoError as error:
        translated = translate_error(error)
        if isinstance(translated, RetrySafeError):
            raise translated from error
        raise StoreUnavailable(f"the server cannot be queried: {error}") from error
    return Diagnosis(f"MongoDB {found['version']}", tuple(check_settings(found)))


def read_settings(client: MongoClient[Any], at: MongoLocation) -> Settings:
    """The server's settings; None for what this user may not read."""
    database = client.get_database(at.database, codec_options=CODEC)
    hello = client.admin.command("hello")
    return {
        "version": client.server_info()["version"],
        "hello": hello,
        "config": _run_or_none(client, {"replSetGetConfig": 1}),
        "defaults": _run_or_none(client, {"getDefaultRWConcern": 1}),
        "options": _run_or_none(client, {"getCmdLineOpts": 1}),
        "indexes": _read_indexes(database, at),
        "wanted": {index["name"] for index in schema.build_indexes(at.names)[at.names.keys]},
    }


def _run_or_none(client: MongoClient[Any], command: dict[str, Any]) -> Any:
    try:
        return client.admin.command(command)
    except OperationFailure:
        return None


def _read_indexes(database: Any, at: MongoLocation) -> set[str] | None:
    if at.names.keys not in database.list_collection_names(filter={"name": at.names.keys}):
        return None
    return set(database[at.names.keys].index_information())


def check_settings(found: Settings) -> Iterator[Finding]:
    yield _check_version(found)
    yield _check_replica_set(found)
    yield _check_role(found)
    if found["hello"].get("setName"):
        yield _check_members(found)
        yield _check_majority_journal(found)
    yield _check_journal(found)
    yield _check_write_concern(found)
    yield _check_collections(found)


def _check_version(found: Settings) -> Finding:
    number = found["version"]
    parts = tuple(int(part) for part in number.split(".")[:2] if part.isdigit())
    oldest = ".".join(map(str, OLDEST_VERSION))
    if parts >= OLDEST_VERSION:
        return good("version", number, f"MongoDB {oldest} and later understand the commands", invariant="I1")
    why = f"MongoDB before {oldest} does not understand all commands"
    return bad("version", number, "best-effort", why, "upgrade the server", invariant="I1")


def _check_replica_set(found: Settings) -> Finding:
    hello = found["hello"]
    if hello.get("setName"):
        why = "it has the log that majorities and transactions need"
        return good("replica set", hello["setName"], why, invariant="I1")
    if hello.get("msg") == "isdbgrid":
        why = "a sharded cluster; each shard is a replica set; run the doctor on each"
        return good("replica set", "mongos", why, invariant="I1")
    why = "a server on its own has no majority and no transactions"
    fix = "start it with --replSet rs0, once say rs.initiate(), and put replicaSet=rs0 in the URL"
    return bad("replica set", "none", "best-effort", why, fix, invariant="I1")


def _check_role(found: Settings) -> Finding:
    if found["hello"].get("isWritablePrimary"):
        return good("role", "primary", "it takes claims", invariant="I1")
    why = "only a primary takes claims"
    fix = "give all members and replicaSet= in the URL, without directConnection"
    return bad("role", "secondary", "best-effort", why, fix, invariant="I1")


def _check_members(found: Settings) -> Finding:
    hello = found["hello"]
    bearing = len(hello.get("hosts", ())) + len(hello.get("passives", ()))
    arbiters = len(hello.get("arbiters", ()))
    shown = f"{bearing} with data" + (f", {arbiters} arbiters" if arbiters else "")
    if bearing == 1:
        return good("members", shown, "there is no failover that could lose anything; its disk is the only one")
    if bearing > arbiters + 1 or not arbiters:
        return good("members", shown, "a claim is on a majority of them before it is acknowledged")
    why = "with as many arbiters as that, losing one member with data stops every write"
    return bad("members", shown, "exactly-once-capable", why, "replace the arbiter by a member with data: rs.add(…)")


def _check_majority_journal(found: Settings) -> Finding:
    name = "writeConcernMajorityJournalDefault"
    config = found["config"]
    value = None if config is None else config["config"].get(name, True)
    if value is None or value:
        why = "a member counts for the majority when it is in its journal"
        return good(name, "not shown to this user" if value is None else "true", why)
    why = "our own writes ask for the journal themselves; commits of your transactions may count members without"
    fix = f"cfg = rs.conf(); cfg.{name} = true; rs.reconfig(cfg)"
    return bad(name, "false", "at-most-once-until-failover", why, fix)


def _check_journal(found: Settings) -> Finding:
    options = found["options"]
    storage = {} if options is None else options.get("parsed", {}).get("storage", {})
    if storage.get("engine") == "inMemory":
        why = "nothing survives the server"
        return bad("storage", "inMemory", "best-effort", why, "start it with --storageEngine wiredTiger")
    if storage.get("journal", {}).get("enabled", True) is False:
        why = "a crash loses what was written since the last checkpoint"
        return bad("journal", "off", "best-effort", why, "start it without --nojournal")
    return good(
        "journal", "not shown to this user" if options is None else "on", "a write is in it before it is acknowledged"
    )


def _check_write_concern(found: Settings) -> Finding:
    defaults = found["defaults"]
    value = None if defaults is None else defaults.get("defaultWriteConcern", {}).get("w", "implicit")
    why = "our own writes always say majority and j; a transaction of yours is committed with the same"
    return good("default write concern", "not shown to this user" if value is None else value, why)


def _check_collections(found: Settings) -> Finding:
    have = found["indexes"]
    if have is None:
        why = "the collections are made at the first claim, but without their indexes"
        return bad("collections", "missing", "exactly-once-capable", why, "retrysafe migrate URL", invariant="I13")
    lacking = sorted(found["wanted"] - have)
    if not lacking:
        return good("collections", "there, with their indexes", "lists and the worker find by them", invariant="I13")
    why = "lists, the worker and the sweeper read everything, every time; claims are safe"
    return bad("collections", f"no index {', '.join(lacking)}", "exactly-once-capable", why, "retrysafe migrate URL")
