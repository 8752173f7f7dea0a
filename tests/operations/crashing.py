"""A program that is killed at a chosen boundary, and the nursery it is forked from.

    python -m tests.operations.crashing

reads one JSON command per line and forks a child for it: `{"store", "url", "database", "keys", "outbox", "orders",
"provider", "key", "modes", "kill"}`. For each of its modes the child runs the order operation of world.py as a
client, or the worker, and in the last of them dies by SIGKILL at boundary number `kill` (0: never). A boundary is
before and after each statement of the store, of the user's transaction (begin and commit among them) and of the
provider, and each call to the provider and publication.
One line of JSON comes back: how the child ended, how many boundaries it passed, and what it answered.
"""

from __future__ import annotations

import importlib
import json
import os
import signal
import sqlite3
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any

import psycopg

from retrysafe import Answer, RetrySafe
from retrysafe.core.jobs import Job
from retrysafe.core.ops import Stats
from retrysafe.operations import Operation, stage
from retrysafe.stores.sqlite.connection import OwnConnection
from retrysafe.worker.completer import Completer
from retrysafe.worker.enqueuer import Enqueuer


class Boundaries:
    """Counts what is passed, in the main thread, once armed."""

    def __init__(self) -> None:
        self.passed = 0
        self.kill = 0
        self.armed = False

    def __call__(self) -> None:
        if not self.armed or threading.current_thread() is not threading.main_thread():
            return
        self.passed += 1
        if self.passed == self.kill:
            os.kill(os.getpid(), signal.SIGKILL)


boundary = Boundaries()


# Where the boundaries are ------------------------------------------------------------------------


class Cursor(sqlite3.Cursor):
    def execute(self, *args: Any) -> Any:
        boundary()
        done = super().execute(*args)
        boundary()
        return done


class Connection(OwnConnection):
    def execute(self, *args: Any) -> Any:
        boundary()
        done = super().execute(*args)
        boundary()
        return done

    def cursor(self, *args: Any, **kwargs: Any) -> Any:
        return super().cursor(Cursor)


def instrument() -> None:
    connect = sqlite3.connect
    sqlite3.connect = lambda *args, **kwargs: connect(*args, **{**kwargs, "factory": Connection})  # type: ignore[assignment]
    wait = psycopg.Connection.wait

    def waited(self: Any, *args: Any, **kwargs: Any) -> Any:
        boundary()
        done = wait(self, *args, **kwargs)
        boundary()
        return done

    psycopg.Connection.wait = waited  # type: ignore[method-assign,assignment]


# What is killed ----------------------------------------------------------------------------------


@dataclass
class OrderIn:
    item: str
    cents: int


@dataclass
class Order:
    id: int
    cents: int
    item: str


@dataclass
class Charge:
    id: str


class Provider:
    """The other system, in a file of its own: recognises a key it has seen, and keeps every request."""

    def __init__(self, path: str) -> None:
        self.path = path

    def charge(self, item: str, key: str) -> str:
        boundary()
        db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        db.execute("INSERT INTO requests VALUES (?, ?)", (item, key))
        db.execute("INSERT INTO charges (item, key) VALUES (?, ?) ON CONFLICT (key) DO NOTHING", (item, key))
        (number,) = db.execute("SELECT id FROM charges WHERE key = ?", (key,)).fetchone()
        db.execute("COMMIT")
        db.close()
        boundary()
        return f"ch_{number}"

    def receive(self, job: Job) -> None:
        """A consumer that recognises a job id."""
        boundary()
        db = sqlite3.connect(self.path, timeout=30, isolation_level=None)
        db.execute("INSERT INTO deliveries VALUES (?, ?)", (job.id, job.payload.decode()))
        db.close()
        boundary()


PROVIDER_SCHEMA = """
CREATE TABLE charges (id integer PRIMARY KEY, item text, key text UNIQUE);
CREATE TABLE requests (item text, key text);
CREATE TABLE deliveries (job text, payload text);
"""


def declare(safe: RetrySafe, provider: Provider, orders: str, mark: str) -> Operation:
    create_order = safe.operation("create_order", version=1)

    @create_order.local
    def insert_order(tx: Any, o: OrderIn) -> Order:
        text = f"INSERT INTO {orders} (item, cents) VALUES ({mark}, {mark}) RETURNING id"
        (number,) = tx.execute(text, (o.item, o.cents)).fetchone()
        return Order(number, o.cents, o.item)

    @create_order.foreign(timeout=20)
    def charge(o: Order, *, key: str) -> Charge:
        return Charge(provider.charge(o.item, key))

    @create_order.local
    def finish(tx: Any, o: Order, c: Charge) -> Answer:
        stage(tx, "email_receipt", {"item": o.item, "order": o.id})
        return Answer(201, {"order": o.id, "charge": c.id})

    @create_order.body
    def place(o: OrderIn) -> Answer:
        order = insert_order(o)
        return finish(order, charge(order))

    safe.publish("email_receipt")(provider.receive)
    return place


def child(command: dict[str, Any]) -> dict[str, Any]:
    url, database = command["url"], command["database"]
    sqlite = command["store"] == "sqlite"
    safe = RetrySafe(url, tx=database if sqlite else lambda: psycopg.connect(database))
    operation = declare(safe, Provider(command["provider"]), command["orders"], "?" if sqlite else "%s")
    safe.execute(Stats())  # connected, its tables made: not counted
    connection = sqlite3.connect(database, timeout=30, isolation_level=None) if sqlite else psycopg.connect(database)
    answers = []
    for number, mode in enumerate(command["modes"]):
        # Time has passed: all leases have lapsed.
        connection.execute(f"UPDATE {command['keys']} SET lease_until = 1 WHERE state = 'claimed'")
        connection.execute(f"UPDATE {command['outbox']} SET due = 1 WHERE dead = 0")
        connection.commit()
        if number == len(command["modes"]) - 1:
            boundary.kill, boundary.armed = command["kill"], True
        if mode == "client":
            answers.append(operation(OrderIn(command["key"], 5), key=command["key"]).json())
        else:
            Completer(safe, grace=0).run_once()
            Enqueuer(safe, safe.publishers).run_once()
    boundary.armed = False
    return {"passed": boundary.passed, "answers": answers, "imported": sorted(sys.modules)}


def main() -> None:
    instrument()
    for line in sys.stdin:
        command = json.loads(line)
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            try:
                told = child(command)
            except BaseException:
                told = {"error": traceback.format_exc()}
            os.write(writing, json.dumps(told).encode())
            os._exit(0)
        os.close(writing)
        with os.fdopen(reading, "rb") as pipe:
            said = pipe.read()
        _, status = os.waitpid(pid, 0)
        killed = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        told = {"killed": True} if killed else {"killed": False, **json.loads(said)}
        for name in told.pop("imported", ()):  # what one child needed the next ones find here: most of their time
            if name not in sys.modules:
                importlib.import_module(name)
        print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
