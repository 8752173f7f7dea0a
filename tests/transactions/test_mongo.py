"""The transaction strength on MongoDB, beside what test_behaviours.py tells for every database: crashes at every
command, commits whose reply was lost, conflicts, other databases, and what is left behind.
"""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from pymongo import MongoClient
from pymongo.client_session import ClientSession
from pymongo.errors import AutoReconnect, OperationFailure

from retrysafe import Answer, RetrySafe
from retrysafe.core.keys import Key
from retrysafe.core.ops import ForgetMarker, Lookup
from retrysafe.core.states import State
from retrysafe.errors import NotSameDatabase, StoreUnclear, TransactionSplit, UsageError
from retrysafe.stores.mongo.receipts import MONGO
from retrysafe.stores.sql.names import build_names
from retrysafe.transactions import flow, run
from retrysafe.transactions.failures import ErrorClass, classify_error, find_error_code, translate_error
from tests.forks import FORKS
from tests.opening import unique, with_option
from tests.servers import MongoServer
from tests.transactions import mongo_crashing
from tests.transactions.crashing import ANSWER, KEY
from tests.transactions.rigs import (
    MONGODB,
    RELEASE,
    SCOPE,
    Caller,
    World,
    effects_of,
    emptied_collections,
    mongo_client,
    mongo_write,
    task,
)
from tests.transactions.test_behaviours import stored
from tests.waiting import until

pytestmark = pytest.mark.store("mongodb")


@pytest.fixture
def user(mongodb: World) -> Iterator[Caller]:
    with MONGODB["client"](mongodb) as caller:
        yield caller


def id_of(world: World, key: str) -> bytes:
    return Key(key, SCOPE).id(world.safe.namespace)


# Crashes ------------------------------------------------------------------------------------------


def killed(world: World, point: int) -> None:
    """Dead at that point. Its transaction would stay open on the server for a minute: it is ended by its name."""
    appname = unique("dead")
    victim = FORKS.Process(target=mongo_crashing.pay, args=(world.url, appname, point))
    victim.start()
    victim.join(60)
    assert victim.exitcode == -signal.SIGKILL
    victim.close()
    with mongo_client(world) as admin:
        until(lambda: not still_open(admin, appname), 60, "the end of the dead one's transaction")


def still_open(admin: MongoClient[Any], appname: str) -> bool:
    """Whether the session has a transaction. If so, end it."""
    stages: list[dict[str, Any]] = [
        {"$currentOp": {"idleSessions": True, "allUsers": True}},
        {"$match": {"appName": appname}},
    ]
    left = [each for each in admin.admin.aggregate(stages) if "transaction" in each]
    for each in left:
        admin.admin.command({"killSessions": [{"id": each["lsid"]["id"]}]})
    return bool(left)


def counts(world: World) -> tuple[int, ...]:
    with mongo_client(world) as client:
        database = client.get_default_database()
        return tuple(database[name].count_documents({}) for name in mongo_crashing.COLLECTIONS)


def emptied(world: World) -> None:
    emptied_collections(world, *mongo_crashing.COLLECTIONS, "tx_keys")


@pytest.mark.parametrize("stride", [4, pytest.param(1, marks=pytest.mark.campaign)])
@pytest.mark.timeout(600)
def test_killed_at_every_point(mongodb: World, stride: int) -> None:
    """SIGKILL around every command: nothing happened, or all of it, and a retry ends well (I14)."""
    emptied(mongodb)
    points = mongo_crashing.pay(mongodb.url, "healthy", 0)
    assert counts(mongodb) == (1, 1)
    ends: dict[str, int] = {"nothing": 0, "all": 0}
    chosen = sorted({*range(1, points + 1, stride), points - 2, points - 1, points})
    for point in chosen:
        emptied(mongodb)
        killed(mongodb, point)
        done = mongodb.safe.execute(Lookup(KEY.id("default"))).record is not None
        assert counts(mongodb) == ((1, 1) if done else (0, 0)), f"point {point} of {points} left a half"
        ends["all" if done else "nothing"] += 1
        mongo_crashing.pay(mongodb.url, "healthy", 0)
        record = mongodb.safe.execute(Lookup(KEY.id("default"))).record
        assert record is not None
        assert (record.state, record.answer) == (State.COMPLETED, ANSWER)
        assert counts(mongodb) == (1, 1)
    # After the commit there are two points: leaving the block, and the end of the program.
    assert ends == {"nothing": len(chosen) - 2, "all": 2}
    assert points >= 14


# Aborted by hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize("then", ["nothing", "committed", "written outside"])
def test_a_conflict_after_an_abort_by_hand(user: Caller, mongodb: World, then: str) -> None:
    """Our transaction is gone with its lock. The session's own number tells that it was used for something after it."""
    ran: list[ClientSession] = []

    def body(session: ClientSession) -> Answer:
        ran.append(session)
        session.abort_transaction()
        if then == "committed":
            session.start_transaction()
        if then != "nothing":
            mongo_write(session, f"kept {len(ran)}")
        if then == "committed":
            session.commit_transaction()
        if len(ran) > 1:
            raise LookupError("it ran again")
        raise OperationFailure("WriteConflict", 112, {"errorLabels": ["TransientTransactionError"], "code": 112})

    with pytest.raises(LookupError if then == "nothing" else TransactionSplit):
        run(mongodb.safe, task(mongodb.safe, "k", 1, RELEASE), user.given, body)
    assert mongodb.effects() == ([] if then == "nothing" else ["kept 1"])
    assert len(ran) == (2 if then == "nothing" else 1)


# Commits whose reply is lost ----------------------------------------------------------------------


def lost(label: str) -> AutoReconnect:
    return AutoReconnect("the connection broke", {"errorLabels": [label]})


@pytest.mark.parametrize("carried_out", [True, False])
def test_a_commit_of_unknown_result_is_looked_up(
    user: Caller, mongodb: World, monkeypatch: pytest.MonkeyPatch, carried_out: bool
) -> None:
    """I11: UnknownTransactionCommitResult. The record's token tells; the body runs again only if nothing was done."""
    commit = ClientSession.commit_transaction
    runs: list[int] = []

    def broken(session: ClientSession) -> None:
        if len(runs) > 1:
            return commit(session)
        if carried_out:
            commit(session)
        else:
            session.abort_transaction()
        raise lost("UnknownTransactionCommitResult")

    monkeypatch.setattr(ClientSession, "commit_transaction", broken)
    ended = user.run("k", ["a", lambda: runs.append(1)])
    assert not ended.replayed
    assert len(runs) == (1 if carried_out else 2)
    assert mongodb.effects() == ["a"]
    assert stored(mongodb, "k") == ended.record


def test_while_the_lost_one_may_still_commit_nobody_guesses(
    user: Caller, mongodb: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody holds the key's lock: as far as can be known, the transaction whose commit was lost."""
    monkeypatch.setattr(flow, "RECOVERY_DELAYS_SECONDS", (0.0, 0.0))
    with mongo_client(mongodb) as client, client.start_session() as holder:

        def broken(session: ClientSession) -> None:
            session.abort_transaction()
            holder.start_transaction()
            client.get_default_database()["tx_meta"].insert_one({"_id": id_of(mongodb, "k")}, session=holder)
            raise lost("UnknownTransactionCommitResult")

        monkeypatch.setattr(ClientSession, "commit_transaction", broken)
        with pytest.raises(StoreUnclear, match="call again with the same key"):
            user.run("k", ["a"])
        monkeypatch.undo()
        holder.abort_transaction()
    assert not user.run("k", ["b"]).replayed
    assert mongodb.effects() == ["b"]


# Conflicts ----------------------------------------------------------------------------------------


def test_a_conflict_in_the_users_own_writes_runs_the_body_again(user: Caller, mongodb: World) -> None:
    """TransientTransactionError: MongoDB undid all of it because of another writer."""
    with mongo_client(mongodb) as client:
        counter = effects_of(client)
        rival = client.start_session()
        rival.start_transaction()
        counter.insert_one({"_id": "a"}, session=rival)
        runs: list[int] = []

        def give_way() -> None:
            runs.append(1)
            if len(runs) == 2:
                rival.abort_transaction()

        ended = user.run("k", [give_way, "a"])
        rival.end_session()
    assert (len(runs), ended.replayed) == (2, False)
    assert mongodb.effects() == ["a"]


def test_what_was_there_before_is_the_users_own_error(user: Caller, mongodb: World) -> None:
    """E11000 of a document of the user's is no conflict of ours: it is raised unchanged."""
    user.run("k", ["a"])
    with pytest.raises(OperationFailure, match="E11000"):
        user.run("l", ["b", "a"])
    assert mongodb.effects() == ["a"]
    assert stored(mongodb, "l") is None


def test_nothing_is_left_behind(user: Caller, mongodb: World) -> None:
    """Locks are written and deleted in the same transaction."""
    user.run("k", ["a"])
    user.run("k", ["b"])
    with pytest.raises(OperationFailure):
        user.run("l", ["a"])
    with mongo_client(mongodb) as client:
        meta = client.get_default_database()["tx_meta"]
        assert [each["_id"] for each in meta.find() if isinstance(each["_id"], bytes)] == []


def test_a_lock_that_a_split_left_behind_keeps_nobody_out(user: Caller, mongodb: World) -> None:
    with pytest.raises(TransactionSplit):
        user.run("k", ["a", "COMMIT"])
    with mongo_client(mongodb) as client:
        client.get_default_database()["tx_keys"].delete_many({})  # as a person might, having looked
    assert not user.run("k", ["b"]).replayed
    assert mongodb.effects() == ["a", "b"]


def test_the_store_itself_deletes_a_lock_that_was_left_behind(mongodb: World) -> None:
    """As it does where the user's one connection was lost (mark_split_in_store)."""
    left = id_of(mongodb, "k")
    with mongo_client(mongodb) as client:
        meta = client.get_default_database()["tx_meta"]
        meta.insert_one({"_id": left, "token": b"t"})
        mongodb.safe.execute(ForgetMarker(left))
        assert meta.find_one({"_id": left}) is None


def test_an_abort_in_the_middle_is_a_split_too(user: Caller, mongodb: World) -> None:
    """What comes after it would have been committed without a receipt, or a receipt without it."""

    def work() -> None:
        with mongodb.safe.transaction(user.given, key="k", scope=SCOPE) as tx:
            mongo_write(tx.handle, "a")
            tx.handle.abort_transaction()
            tx.handle.start_transaction()
            tx.answer = ANSWER

    with pytest.raises(TransactionSplit):
        work()
    assert mongodb.effects() == []


# Other places -------------------------------------------------------------------------------------


@pytest.mark.xdist_group("mongodb of its own")
def test_another_server_is_told(mongodb: World) -> None:
    server = MongoServer()
    server.start()
    try:
        elsewhere = RetrySafe(with_option(with_option(server.url, "collection", "tx"), "patience", "30"))
        elsewhere.migrate()
        elsewhere.close()
        with MongoClient[Any](server.url) as client:
            caller = Caller(mongodb, client, mongo_write, lambda session, sql: None)
            with pytest.raises(NotSameDatabase):
                caller.run("k", ["a"])
            assert effects_of(client).count_documents({}) == 0
    finally:
        server.stop()


def test_a_store_on_another_kind_of_database_is_told(user: Caller, mongodb: World, sqlite: World) -> None:
    with pytest.raises(UsageError, match="the store is on MongoDB and the transaction on SQL"):
        Caller(mongodb, sqlite3.connect(":memory:"), mongo_write, mongo_write).run("k", [])
    with pytest.raises(UsageError, match="the store is on SQL and the transaction on MongoDB"):
        Caller(sqlite, user.given, mongo_write, mongo_write).run("k", [])
    with pytest.raises(UsageError, match="foreign step"):
        MONGO.load(build_names())


def test_errors_are_read_by_their_labels() -> None:
    transient = OperationFailure("conflict", 112, {"errorLabels": ["TransientTransactionError"]})
    assert classify_error(transient) is ErrorClass.RETRYABLE
    assert classify_error(lost("UnknownTransactionCommitResult")) is ErrorClass.CONNECTION_LOST
    assert classify_error(AutoReconnect("gone")) is ErrorClass.CONNECTION_LOST
    assert classify_error(OperationFailure("no", 13)) is ErrorClass.REFUSED
    assert find_error_code(OperationFailure("no", 13)) == "MongoDB 13"
    assert "MongoDB 13" in str(translate_error(OperationFailure("no", 13)))
