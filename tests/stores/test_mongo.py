"""MongoDB beside the contract: addresses, errors, the clock, what is written, the sweeper, the schema, batches."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from pymongo import MongoClient, errors
from pymongo.monitoring import CommandListener, CommandStartedEvent

from retrysafe.core.ops import ClaimReply, List, Lookup
from retrysafe.core.states import State
from retrysafe.core.times import HOUR_MICROS, SECOND_MICROS
from retrysafe.errors import (
    BadName,
    CorruptRecord,
    StoreError,
    StoreUnavailable,
    StoreUnclear,
    StoreUnreachable,
    StoreURLError,
)
from retrysafe.stores.base import LockNotAvailable
from retrysafe.stores.mongo import batches, doctor, settings
from retrysafe.stores.mongo.errors import find_reply_error, translate_error
from retrysafe.stores.mongo.plans import WriteConflict
from retrysafe.stores.mongo.settings import parse_url
from retrysafe.stores.mongo.sync import MongoStore
from retrysafe.stores.registry import find_backend, open_store
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup, reap, record_of, release, renew, withdraw
from tests.opening import patient, unique, with_option
from tests.servers import MongoServer
from tests.waiting import until

# Addresses ----------------------------------------------------------------------------------------


def test_an_address_in_full() -> None:
    at = parse_url("mongodb://me:p%2Fw@a.example:1,b.example:2/shop?replicaSet=rs0&collection=mine&patience=0.5")
    assert at.url == "mongodb://me:p%2Fw@a.example:1,b.example:2/shop?replicaSet=rs0"
    assert (at.database, at.patience) == ("shop", 0.5)
    assert at.names == ("mine_keys", "mine_meta", "mine_outbox")
    assert parse_url("mongodb+srv://cluster.example/shop").names.keys == "retrysafe_keys"


@pytest.mark.parametrize(
    ("url", "kind", "says"),
    [
        ("mongodb://host", StoreURLError, "names no database"),
        ("mongodb://host/?replicaSet=rs0", StoreURLError, "names no database"),
        ("mongodb:///shop", StoreURLError, "names no database"),
        ("mongodb://host/a.b", StoreURLError, "takes no database named 'a.b'"),
        ("mongodb://host/shop?patience=soon", StoreURLError, "patience='soon'"),
        ("mongodb://host/shop?collection=System.x", BadName, "collection='System.x'"),
    ],
)
def test_a_wrong_address_is_told(url: str, kind: type[Exception], says: str) -> None:
    with pytest.raises(kind, match=re.escape(says)):
        parse_url(url)


def test_what_the_driver_does_not_take_is_told_when_it_is_opened() -> None:
    with pytest.raises(StoreURLError, match="not what MongoDB's driver takes"):
        find_backend("mongodb://h/d").open("mongodb://host:port/shop")


def test_a_password_is_not_shown() -> None:
    with pytest.raises(StoreURLError) as told:
        parse_url("mongodb://me:hunter2@host")
    assert "hunter2" not in str(told.value)


# Errors -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (11000, WriteConflict), (112, WriteConflict), (50, LockNotAvailable), (10107, StoreUnavailable),
        (11602, StoreUnclear), (91, StoreUnclear),
        (189, StoreUnclear), (13, StoreError), (18, StoreError), (123, StoreError), (10334, StoreError),
    ],
)  # fmt: skip
def test_what_the_server_says(code: int, kind: type[Exception]) -> None:
    assert type(translate_error(errors.OperationFailure("why", code, {"code": code, "ok": 0}))) is kind


def test_what_the_driver_says() -> None:
    assert type(translate_error(errors.ServerSelectionTimeoutError("nobody"))) is StoreUnreachable
    assert type(translate_error(errors.AutoReconnect("gone"))) is StoreUnclear
    assert type(translate_error(errors.NetworkTimeout("silent"))) is StoreUnclear
    stepped_down = errors.NotPrimaryError("stepping down", {"code": 11602, "ok": 0})
    assert type(translate_error(stepped_down)) is StoreUnclear
    assert type(translate_error(errors.NotPrimaryError("a secondary", {"code": 10107, "ok": 0}))) is StoreUnavailable
    assert type(translate_error(errors.DocumentTooLarge("17 MB"))) is StoreError
    assert translate_error(fault := ZeroDivisionError()) is fault


def test_a_server_that_is_not_there_is_told_without_the_drivers_own_state() -> None:
    """pymongo's text goes on with its timeouts and a description of each server, which has the reason once more."""
    said = (
        "127.0.0.1:1: [Errno 111] Connection refused (configured timeouts: socketTimeoutMS: 5000.0ms, "
        "connectTimeoutMS: 5000.0ms), Timeout: 5.0s, Topology Description: <TopologyDescription id: 6afd16, "
        "servers: [<ServerDescription ('127.0.0.1', 1) server_type: Unknown, rtt: None, error=AutoReconnect("
        "'127.0.0.1:1: [Errno 111] Connection refused')>]>"
    )
    told = str(translate_error(errors.ServerSelectionTimeoutError(said)))
    assert told == (
        "no connection to MongoDB (127.0.0.1:1: [Errno 111] Connection refused): nothing was done; is it up?"
    )
    assert "No replica set members found yet" in str(
        translate_error(errors.ServerSelectionTimeoutError("No replica set members found yet, Timeout: 5.0s, Topology"))
    )


def test_a_document_that_exists_is_an_error_unless_it_was_expected() -> None:
    exists, full = {"index": 1, "code": 11000, "errmsg": "E11000"}, {"index": 2, "code": 14031, "errmsg": "full"}
    assert find_reply_error({"ok": 1, "writeErrors": [exists]}, existing_allowed=True) is None
    assert type(find_reply_error({"ok": 1, "writeErrors": [exists]})) is WriteConflict
    assert type(find_reply_error({"ok": 1, "writeErrors": [exists, full]}, existing_allowed=True)) is StoreError


def test_a_majority_that_was_not_heard_of_is_unclear() -> None:
    """I10: the write is on the primary, and a failover may still undo it."""
    reply = {"ok": 1, "value": {}, "writeConcernError": {"code": 64, "errmsg": "waiting for replication timed out"}}
    assert type(find_reply_error(reply)) is StoreUnclear
    assert find_reply_error({"ok": 1}) is None
    assert type(find_reply_error({"ok": 1, "writeErrors": [{"code": 11000, "errmsg": "E11000"}]})) is WriteConflict


# The doctor ---------------------------------------------------------------------------------------

HELLO = {"setName": "rs0", "isWritablePrimary": True, "hosts": ["a:1", "b:1", "c:1"]}
RIGHT: dict[str, Any] = {
    "version": "6.0.5", "hello": HELLO, "config": {"config": {}}, "defaults": {"defaultWriteConcern": {"w": 1}},
    "options": {"parsed": {"storage": {}}}, "indexes": {"_id_", "by_state"}, "wanted": {"by_state"},
}  # fmt: skip
JOURNAL = "writeConcernMajorityJournalDefault"


def test_what_is_right_is_called_so() -> None:
    for settings_found in (RIGHT, {**RIGHT, "config": None, "defaults": None, "options": None}):
        assert [one for one in doctor.check_settings(settings_found) if not one.fine] == []


@pytest.mark.parametrize(
    ("change", "setting", "limit"),
    [
        ({"version": "4.4.29"}, "version", "best-effort"),
        ({"hello": {"isWritablePrimary": True}}, "replica set", "best-effort"),
        ({"hello": {**HELLO, "isWritablePrimary": False}}, "role", "best-effort"),
        ({"hello": {**HELLO, "hosts": ["a:1", "b:1"], "arbiters": ["c:1"]}}, "members", "exactly-once-capable"),
        ({"config": {"config": {JOURNAL: False}}}, JOURNAL, "at-most-once-until-failover"),
        ({"options": {"parsed": {"storage": {"engine": "inMemory"}}}}, "storage", "best-effort"),
        ({"options": {"parsed": {"storage": {"journal": {"enabled": False}}}}}, "journal", "best-effort"),
        ({"indexes": None}, "collections", "exactly-once-capable"),
        ({"indexes": {"_id_"}}, "collections", "exactly-once-capable"),
    ],
)
def test_one_wrong_setting_is_named_and_can_be_mended(change: dict[str, Any], setting: str, limit: str) -> None:
    [wrong] = [one for one in doctor.check_settings({**RIGHT, **change}) if not one.fine]
    assert (wrong.setting, wrong.limit) == (setting, limit)
    assert wrong.fix
    assert wrong.why


# On a server --------------------------------------------------------------------------------------


@pytest.fixture
def url(mongodb_url: str) -> str:
    return with_option(patient("mongodb", mongodb_url), "collection", unique())


@pytest.fixture
def do(url: str) -> Iterator[Do]:
    do = Do.sync(open_store(url))
    do.migrate()
    yield do
    do.close()


@pytest.fixture
def keys(url: str) -> Iterator[Any]:
    """The collection itself."""
    at = parse_url(url)
    client: MongoClient[Any] = MongoClient(at.url)
    yield client[at.database][at.names.keys]
    client.close()


class Heard(CommandListener):
    """The commands a client sends."""

    def __init__(self) -> None:
        self.commands: list[Any] = []

    def started(self, event: CommandStartedEvent) -> None:
        self.commands.append(event.command)

    def succeeded(self, event: Any) -> None:
        """Not asked for."""

    def failed(self, event: Any) -> None:
        """Not asked for."""


@pytest.fixture
def heard(url: str) -> Iterator[tuple[MongoStore, Heard]]:
    """A store on the user's own client with weak settings, and the commands that it sends."""
    at, listener = parse_url(url), Heard()
    client: MongoClient[Any] = MongoClient(at.url, w=1, journal=False, retryWrites=True, event_listeners=[listener])
    store = MongoStore(client, at.database, collection=at.collection)
    yield store, listener
    store.close()
    assert client.admin.command("ping")["ok"] == 1, "it is the user's to close"
    client.close()


pytestmark = pytest.mark.store("mongodb")


def test_every_write_asks_for_a_majority_and_its_journals(heard: tuple[MongoStore, Heard]) -> None:
    """I10: whatever the settings of the client are. The driver repeats no write by itself."""
    store, listener = heard
    reply = store.execute(claim("k", now=None))
    assert store.execute(renew(reply, now=None)) is True
    assert store.execute(complete(reply, b"x", now=None)) is True
    store.execute(lookup("k", now=None))
    store.execute(reap(now=9e9))
    wrote = [one for one in listener.commands if {"findAndModify", "update", "delete", "insert"} & set(one)]
    assert len(wrote) == 5
    for command in wrote:
        assert command["writeConcern"] == {"w": "majority", "j": True, "wtimeout": settings.WRITE_CONCERN_TIMEOUT_MS}
        assert "txnNumber" not in command
    found = record_of(store.execute(claim("k2", now=None)))
    assert found.attempt == 1


def test_a_replay_writes_nothing(do: Do, keys: Any, url: str) -> None:
    """Rule 1: a refused claim writes nothing to the replicated log."""
    at = parse_url(url)
    held = do(claim("k", now=None))
    assert do(complete(held, b"x", now=None)) is True
    log = keys.database.client.local["oplog.rs"]
    before = log.count_documents({"ns": f"{at.database}.{at.names.keys}"})
    for _ in range(3):
        assert do(claim("k", now=None)).granted is False
    do.many([claim("k", now=None), claim("other", now=None)])
    assert log.count_documents({"ns": f"{at.database}.{at.names.keys}"}) == before + 1, "only the new key"


@pytest.mark.parametrize("text", ["$scope", "$$ROOT", "$$NOW", "{'$ne': 1}", "a.b", "$literal", ""])
def test_nothing_from_outside_is_an_expression(do: Do, text: str) -> None:
    """S17: a text that looks like a field or an operator is a text."""
    op = claim(text or "k", scope=text or "s", target=text, namespace=text, input=text.encode(), now=None)
    held = do(op)
    record = record_of(held)
    assert (record.key, record.scope, record.target, record.namespace) == (op.key, op.scope, text, text)
    assert do(release(held, text, now=None)) is True
    assert do.record(op, now=None).note == text


def test_the_clock_is_the_servers(do: Do, keys: Any) -> None:
    def server() -> int:
        moment: datetime = keys.database.command("hello")["localTime"]
        return round(moment.timestamp() * 1000) * 1000

    # Naive datetimes of a plain client are UTC; only differences are compared.
    before = server()
    record = record_of(reply := do(claim("k", lease=30, now=None)))
    after = server()
    assert after - before >= 0
    assert record.lease_until - record.created == 30 * SECOND_MICROS
    assert reply.now == record.created == record.started
    assert do(lookup("absent", now=None)).now >= reply.now


def test_a_record_that_is_damaged_is_told(do: Do, keys: Any) -> None:
    held = do(claim("k", now=None))
    for damage in ({"state": "odd"}, {"token": "text"}, {"answer": {"status": 200}}, {"on_lapse": 7}):
        fresh = keys.find_one({"_id": record_of(held).id})
        keys.update_one({"_id": record_of(held).id}, {"$set": damage})
        with pytest.raises(CorruptRecord):
            do(Lookup(record_of(held).id))
        page = do(List())
        assert (page.records, page.unreadable) == ((), (record_of(held).id,))
        keys.replace_one({"_id": record_of(held).id}, fresh)
    assert do.record("k", now=None).state is State.CLAIMED


def test_what_does_not_fit_is_refused_and_nothing_is_done(do: Do) -> None:
    held = do(claim("k", now=None))
    with pytest.raises(StoreError, match="16 MB"):
        do(complete(held, b"x" * (17 << 20), now=None))
    with pytest.raises(StoreError, match="cannot be stored"):
        do(release(held, "half a pair: \ud800", now=None))
    assert do.record("k", now=None).state is State.CLAIMED
    assert do(complete(held, b"x" * (15 << 20), now=None)) is True
    assert len(do.record("k", now=None).answer.body) == 15 << 20  # type: ignore[union-attr]  # it has one


def test_a_list_of_large_records_comes_in_pages(do: Do) -> None:
    """A reply ends at 16 MB, whatever the limit is."""
    for number in range(5):
        assert do(complete(do(claim(f"k{number}", now=None)), b"x" * (6 << 20), now=None))
    from retrysafe.testing.builders import listing

    pages = do.pages(listing(limit=100))
    assert len(pages) > 1
    assert sorted(record.key for page in pages for record in page) == [f"k{number}" for number in range(5)]


def test_a_page_ends_after_as_many_records_as_it_may_examine(do: Do) -> None:
    """A list by a filter that no index has read on through the whole collection, for one page of the console."""
    do.many([claim(f"k{number}", scope="s", now=0) for number in range(20)])
    wanted = List(scope="nobody", examine=6, limit=5)
    pages = [do(wanted)]
    while pages[-1].cursor:
        pages.append(do(replace(wanted, cursor=pages[-1].cursor)))
    assert [len(page.records) for page in pages] == [0, 0, 0, 0], "20 records, 6 at a time"
    uncertain = do(List(state=State.UNCERTAIN, examine=6))
    assert (uncertain.records, uncertain.cursor) == ((), ""), "open records have an index: nothing is passed over"


def test_what_was_withdrawn_is_swept_like_anything_else(do: Do, keys: Any) -> None:
    """A claim sees it as expired. The server keeps it, so that late copies find it."""
    held = do(claim("k", retention=7200, now=None))
    assert do(withdraw(held, now=None)) is True
    found = do(lookup("k", now=None))
    assert found.record is not None
    assert found.record.expired(found.now)
    swept = keys.find_one({"_id": found.record.id})["sweep"].replace(tzinfo=UTC)
    assert swept.timestamp() * 1_000_000 >= found.record.completed + HOUR_MICROS


def test_migrating_again_and_at_once_changes_nothing(url: str, keys: Any) -> None:
    store = open_store(url)
    made = store.migrate()
    assert [name.rpartition("_")[2] for name in made] == ["keys", "meta", "outbox"]
    assert store.migrate() == []
    keys.drop_index("sweep")
    assert [name.rpartition("_")[2] for name in store.migrate()] == ["keys"]
    assert "sweep" in keys.index_information()
    store.close()
    printed = find_backend(url).schema(url)
    assert "expireAfterSeconds" in printed
    assert parse_url(url).names.outbox in printed


def test_it_works_without_being_migrated(mongodb_url: str) -> None:
    store = open_store(with_option(patient("mongodb", mongodb_url), "collection", unique()))
    reply = store.execute(claim("k", now=None))
    assert reply.granted
    assert store.execute(complete(reply, b"x", now=None)) is True
    store.close()


# Batches ------------------------------------------------------------------------------------------


def test_what_goes_together() -> None:
    held = claim("a")
    ops: list[Any] = [held, lookup("x"), claim("b"), claim("c"), lookup("y")]
    assert batches.group_batches(ops) == [[0, 2, 3], [1], [4]]
    assert batches.group_batches(ops[:2]) == [[0], [1]]
    many = [claim(f"k{number}") for number in range(batches.MAX_BATCH_STATEMENTS + 2)]
    assert [len(lane) for lane in batches.group_batches(many)] == [batches.MAX_BATCH_STATEMENTS, 2]
    large = [replace(claim(f"k{number}"), input=b"x" * (5 << 20)) for number in range(4)]
    assert batches.group_batches(large) == [[0], [1], [2], [3]], "two of them are too much for one command"


def test_a_batch_with_one_held_key_goes_on_alone(url: str, do: Do, keys: Any) -> None:
    """An open transaction holds one of three keys: the others are granted, and that one is Busy."""
    ops = [claim(f"k{number}", lease=0, on_lapse="rerun", now=None) for number in range(3)]
    assert do(ops[1]).granted
    client = keys.database.client
    impatient = Do.sync(open_store(with_option(url, "patience", "0.2")))
    with client.start_session() as session, session.start_transaction():
        keys.update_one({"_id": ops[1].id}, {"$set": {"note": "held"}}, session=session)
        again = [claim(f"k{number}", lease=60, on_lapse="rerun", now=None) for number in range(3)]
        replies = impatient.many(again)
        session.abort_transaction()
    impatient.close()
    assert replies[1] == ClaimReply(False, None, replies[1].now)
    assert [reply.granted for reply in do.many(again)] == [True, True, True]


def sent(listener: Heard) -> list[str]:
    """The names of the commands since the last call."""
    names = [next(iter(command)) for command in listener.commands]
    listener.commands.clear()
    return names


def test_a_batch_of_claims_begins_with_what_the_last_one_met(heard: tuple[MongoStore, Heard]) -> None:
    """New keys are inserted, with a clock that was read after they were asked for (I33). Replays are no errors."""
    store, listener = heard
    births = [claim(f"k{number}", lease=30, now=None) for number in range(4)]
    granted = store.execute_many(births)
    assert sent(listener) == ["hello", "insert"]
    assert [reply.granted for reply in granted] == [True] * 4
    assert [store.execute(lookup(op.key, now=None)).record for op in births] == [reply.record for reply in granted]
    assert {reply.now for reply in granted} == {record_of(granted[0]).created}
    listener.commands.clear()
    again = [claim(f"k{number}", lease=30, now=None) for number in range(3)] + [claim("new", now=None)]
    assert [reply.granted for reply in store.execute_many(again)] == [False, False, False, True]
    assert sent(listener) == ["hello", "insert", "find"]
    assert [reply.granted for reply in store.execute_many(again)] == [False, False, False, True], (
        "its own is recognised"
    )
    assert sent(listener) == ["update", "find"], "most of them were replays"
    store.execute_many([claim(f"n{number}", now=None) for number in range(3)])
    assert sent(listener) == ["update", "find"], "one of them is read for its time"
    store.execute_many([claim(f"m{number}", now=None) for number in range(3)])
    assert sent(listener) == ["hello", "insert"]


def test_a_batch_of_claims_that_is_sent_twice_is_granted_once(do: Do) -> None:
    """Its reply was lost: the same claims come again, some of them beside others."""
    births = [claim(f"k{number}", now=None) for number in range(4)]
    first = do.many(births)
    again = do.many([*births[:2], claim("k2", now=None), claim("k4", now=None)])
    assert [reply.granted for reply in again] == [True, True, False, True]
    assert [reply.record for reply in again[:2]] == [reply.record for reply in first[:2]]


def test_a_completion_of_another_attempt_changes_nothing(do: Do, keys: Any) -> None:
    """Its fence is part of the update, alone and in a batch."""
    late = do(claim("k", lease=0, on_lapse="rerun", now=None))
    other = do(claim("other", now=None))
    taken = do(claim("k", lease=60, on_lapse="rerun", now=None))
    before = keys.find_one({"key": "k"})
    assert do(complete(late, b"late", now=None)) is False
    assert do.many([complete(late, b"late", now=None), complete(other, b"x", now=None)]) == [False, True]
    assert keys.find_one({"key": "k"}) == before
    assert do(complete(taken, b"done", now=None)) is True
    settled = keys.find_one({"key": "k"})
    assert do(complete(taken, b"again", now=None)) is False
    assert do.many([complete(taken, b"done", now=None), complete(other, b"x", now=None)]) == [True, True]
    assert keys.find_one({"key": "k"}) == settled, "an answer is written once"


# The sweeper --------------------------------------------------------------------------------------


@pytest.mark.xdist_group("mongodb of its own")
def test_the_sweeper_takes_only_what_is_settled_and_expired(mongodb_url: str) -> None:
    """I12, I13: the TTL index, on a server whose TTL monitor runs. Unfinished work has no date for it."""
    server = MongoServer(ttlMonitorEnabled="true", ttlMonitorSleepSecs="1")
    server.start()
    try:
        do = Do.sync(open_store(patient("mongodb", server.url)))
        do.migrate()
        for name in ("done", "given back", "open", "uncertain", "unfinished", "lasting"):
            retention = float("inf") if name == "lasting" else 1
            held = do(claim(name, lease=1, retention=retention, now=0))
            if name in ("done", "lasting"):
                assert do(complete(held, b"x", now=1))
            elif name != "open":
                settle(do, name, held)
        until(lambda: do(lookup("done", now=None)).record is None, 60, "the sweeper")
        until(lambda: do(lookup("given back", now=None)).record is None, 60, "the sweeper")
        for name in ("open", "uncertain", "unfinished", "lasting"):
            assert do(lookup(name, now=None)).record is not None, name
        again = do(claim("given back", now=None))
        assert (again.granted, record_of(again).attempt) == (True, 1)
        do.close()
    finally:
        server.stop()


def settle(do: Do, name: str, held: Any) -> None:
    from retrysafe.testing.builders import advance, suspect

    if name == "uncertain":
        assert do(suspect(held, now=1))
        return
    if name == "unfinished":
        assert do(advance(held, "half way", b"", now=1))
    assert do(release(held, now=1))


@pytest.mark.xdist_group("mongodb of its own")
def test_a_server_on_its_own_is_told_by_the_doctor(mongodb_url: str) -> None:
    from retrysafe.stores.diagnosis import diagnose

    server = MongoServer(replica_set=False)
    server.start()
    try:
        found = {one.setting: one for one in diagnose(server.url).findings}
        assert found["replica set"].limit == "best-effort"
        assert "--replSet" in found["replica set"].fix
    finally:
        server.stop()


def test_the_doctor_before_and_after_the_collections_are_made(url: str) -> None:
    from retrysafe.stores.diagnosis import diagnose

    before = diagnose(url)
    assert {one.setting for one in before.findings if not one.fine} == {"collections"}
    store = open_store(url)
    store.migrate()
    store.close()
    after = diagnose(url)
    assert after.store.startswith("MongoDB ")
    assert [one for one in after.findings if not one.fine] == []
    assert after.label == "exactly-once-capable"
