"""A place to run operations in: a store, a user's database beside it, and a provider; sync or async.

Bodies and steps are written once, as generators that yield what would be awaited; `World.in_mode` makes a `def` or an
`async def` of them.
"""

from __future__ import annotations

import functools
import inspect
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg_pool import ConnectionPool

from retrysafe import Answer, RetrySafe
from retrysafe.core.jobs import ListJobs, StagedJob
from retrysafe.core.ops import List
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import duration_to_micros
from retrysafe.operations import Operation, stage
from retrysafe.operations.journal import OperationJournal
from retrysafe.testing.driver import LoopThread
from tests.opening import patient, unique, with_option


@dataclass
class OrderIn:
    item: str
    cents: int


@dataclass
class Order:
    id: int
    cents: int


@dataclass
class Charge:
    id: str


class World:
    """`safe`, its user's database, and what happened so far."""

    def __init__(self, store: str, mode: str, url: str, database: str, prefix: str, **options: Any) -> None:
        self.store = store
        self.mode = mode
        self.url = url
        self.database = database
        self.keys = f"{prefix}_keys"
        self.orders = f"{prefix}_orders"
        self.outbox = f"{prefix}_outbox"
        self.loop = LoopThread() if mode == "async" else None
        self.sent: list[str] = []
        self._pool: ConnectionPool[Any] | None = None
        self._own: Any = None
        self.sql(f"CREATE TABLE {self.orders} ({self.serial}, item text, cents int)")
        self.safe = RetrySafe(url, tx=options.pop("tx", None) or self.transactions(), **options)
        self.safe.migrate()

    @property
    def serial(self) -> str:
        return "id integer primary key" if self.store == "sqlite" else "id serial primary key"

    def transactions(self) -> Any:
        if self.store == "sqlite":
            return Path(self.database)
        if self.mode == "async":
            return lambda: psycopg.AsyncConnection.connect(self.database)
        self._pool = ConnectionPool(self.database, min_size=1, max_size=4, open=True)
        return self._pool

    def close(self) -> None:
        if self.loop is not None:
            self.loop.run(self.safe.aclose())
            self.loop.close()
        else:
            self.safe.close()
        if self._pool is not None:
            self._pool.close()
        if self._own is not None:
            self._own.close()

    # Sync or async ----------------------------------------------------------------------------

    def in_mode(self, function: Callable[..., Any]) -> Callable[..., Any]:
        if self.mode == "sync":

            @functools.wraps(function)
            def called(*args: Any, **kwargs: Any) -> Any:
                made = function(*args, **kwargs)
                return drive(made) if inspect.isgenerator(made) else made

            return called

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            made = function(*args, **kwargs)
            return await adrive(made) if inspect.isgenerator(made) else made

        return awaited

    def run(self, made: Any) -> Any:
        return self.loop.run(settle(made)) if self.loop is not None and inspect.isawaitable(made) else made

    def local(self, operation: Operation, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: operation.local(**options)(self.in_mode(function))

    def foreign(self, operation: Operation, **options: Any) -> Callable[[Callable[..., Any]], Any]:
        return lambda function: operation.foreign(**options)(self.in_mode(function))

    def body(self, operation: Operation) -> Callable[[Callable[..., Any]], Operation]:
        return lambda function: operation.body(self.in_mode(function))

    # What there is --------------------------------------------------------------------------

    def sql(self, text: str, *values: Any) -> list[Any]:
        """On a connection of the test's own, each statement committed at once."""
        if self._own is None and self.store == "sqlite":
            self._own = sqlite3.connect(self.database, timeout=30, isolation_level=None, check_same_thread=False)
        elif self._own is None:
            self._own = psycopg.connect(self.database, autocommit=True)
        cursor = self._own.execute(self.q(text), values)
        return cursor.fetchall() if cursor.description else []

    def q(self, text: str) -> str:
        return text if self.store == "sqlite" else text.replace("?", "%s")

    def insert(self, tx: Any, item: str, cents: int = 0) -> Iterator[Any]:
        """For local steps: `order_id = yield from w.insert(tx, …)`."""
        text = self.q(f"INSERT INTO {self.orders} (item, cents) VALUES (?, ?) RETURNING id")
        cursor = yield lambda: tx.execute(text, (item, cents))
        row = yield cursor.fetchone
        return row[0]

    def items(self) -> list[str]:
        return [item for (item,) in self.sql(f"SELECT item FROM {self.orders} ORDER BY id")]

    def lapse(self) -> None:
        """Time passes: all leases lapse, and all jobs are due."""
        self.sql(f"UPDATE {self.keys} SET lease_until = 1 WHERE state = 'claimed'")
        self.sql(f"UPDATE {self.outbox} SET due = 1 WHERE dead = 0")

    def age(self, seconds: float) -> None:
        """Time passes by the store's clock: all stored times move back by so much."""
        record, past = self.record(), duration_to_micros(seconds)
        journal = OperationJournal.decode(record.progress)
        entries = tuple(
            each.replace(at=each.at - past, undo_at=each.undo_at - past if each.undo_at else 0)
            for each in journal.entries
        )
        failed_at = max(journal.failed_at - past, 1) if journal.failed_at else 0
        older = replace(
            journal, entries=entries, at=journal.at - past if journal.at else 0, failed_at=failed_at
        ).encode()
        self.sql(
            f"UPDATE {self.keys} SET created = created - ?, started = started - ?, lease_until = lease_until - ?, "
            "progress = ?",
            *(past, past, past, older if record.progress else b""),
        )

    def records(self) -> list[Record]:
        return list(self.safe.execute(List(limit=1000)).records)

    def record(self) -> Record:
        (record,) = self.records()
        return record

    def state(self) -> State:
        return self.record().state

    def journal(self) -> OperationJournal:
        return OperationJournal.decode(self.record().progress)

    def states(self) -> dict[str, str]:
        return {entry.step: entry.state for entry in self.journal().entries}

    def jobs(self) -> tuple[StagedJob, ...]:
        return self.safe.execute(ListJobs())


def drive(story: Any) -> Any:
    try:
        step = next(story)
        while True:
            try:
                reply = step()
            except BaseException as error:
                step = story.throw(error)
            else:
                step = story.send(reply)
    except StopIteration as done:
        return done.value


async def settle(made: Any) -> Any:
    return await made if inspect.isawaitable(made) else made


async def adrive(story: Any) -> Any:
    try:
        step = next(story)
        while True:
            try:
                reply = await settle(step())
            except BaseException as error:
                step = story.throw(error)
            else:
                step = story.send(reply)
    except StopIteration as done:
        return done.value


def make_world(request: pytest.FixtureRequest, tmp_path: Path, store: str, mode: str, **options: Any) -> World:
    if store == "sqlite":
        path = str(tmp_path / f"{unique()}.db")
        return World(store, mode, f"sqlite:///{path}", path, "retrysafe", **options)
    prefix = unique()
    database: str = request.getfixturevalue("postgres_url")
    return World(store, mode, with_option(patient(store, database), "table", prefix), database, prefix, **options)


class Ordering:
    """The order operation of the how-to (docs/howto/operations.md), with a provider that fails on demand."""

    def __init__(self, w: World, **options: Any) -> None:
        self.w = w
        self.fail: dict[str, list[BaseException]] = {"insert_order": [], "charge": [], "finish": []}
        self.applied: dict[str, Charge] = {}
        self.calls: list[str] = []
        op = self.op = w.safe.operation("create_order", **options)
        charging = {"timeout": 20}

        @w.local(op)
        def insert_order(tx: Any, o: OrderIn) -> Order:
            self.meet("insert_order")
            return Order((yield from w.insert(tx, o.item, o.cents)), o.cents)

        @w.foreign(op, **charging)
        def charge(order: Order, *, key: str) -> Charge:
            made = self.applied.setdefault(key, Charge(f"ch_{len(self.applied)}"))
            w.sent.append(key)
            self.meet("charge")
            return made

        @w.local(op)
        def finish(tx: Any, order: Order, paid: Charge) -> Answer:
            self.meet("finish")
            yield lambda: None
            stage(tx, "email_receipt", {"order": order.id})
            return Answer(201, {"order": order.id, "charge": paid.id})

        @w.body(op)
        def place(o: OrderIn) -> Answer:
            order = yield lambda: insert_order(o)
            paid = yield lambda: charge(order)
            return (yield lambda: finish(order, paid))

    def meet(self, step: str) -> None:
        self.calls.append(step)
        if self.fail[step]:
            raise self.fail[step].pop(0)

    def __call__(self, key: str = "k", item: str = "a", cents: int = 5) -> Any:
        return self.w.run(self.op(OrderIn(item, cents), key=key))
