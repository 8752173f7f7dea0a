"""The sync colour of PostgreSQL: a pool, a connection per operation, a commit per statement."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import psycopg
from psycopg.rows import tuple_row
from psycopg_pool import ConnectionPool

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.base import follow
from retrysafe.stores.postgres import batches, deadline, pipeline, waking
from retrysafe.stores.postgres.batches import UNSETTLED, Group, Rows, together
from retrysafe.stores.postgres.dialect import CAPABILITIES, DIALECT, Location
from retrysafe.stores.postgres.errors import Again, Connecting, demoted, held_elsewhere, meaning, unstorable
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT, names
from retrysafe.stores.sql.plans import Held, Plans, by_id
from retrysafe.stores.waking import Listener

R = TypeVar("R")
Pool = ConnectionPool[psycopg.Connection[Any]]

TRIES = 10
"""Serialization failures in a row before giving up; each means that somebody else got on."""


class PostgresStore:
    """Made from a URL, or from your own `psycopg_pool.ConnectionPool` (which stays yours to close)."""

    capabilities = CAPABILITIES
    mixes = True
    """Operations of several kinds go together as well as those of one."""
    flights = 2
    """A batch that waits for somebody's lock is not waited for by the others."""

    def __init__(
        self, pool: Pool, *, table: str = DEFAULT, schema: str = "", owned: bool = False, url: str = "URL"
    ) -> None:
        self._pool = pool
        self.names = names(table, schema)
        self._plans = Plans(DIALECT, self.names)
        self._owned = owned
        self._url = url
        self._prepared = pipeline.Prepared()
        self._connecting = Connecting()
        self._watch = deadline.Watch()
        self._listener = Listener(lambda heard, wanted: waking.listen(_conninfo(pool), self.names, heard, wanted))

    @classmethod
    def from_url(cls, at: Location) -> PostgresStore:
        pool: Pool = ConnectionPool(
            at.conninfo,
            min_size=1,
            max_size=at.pool,
            timeout=at.pool_timeout,
            kwargs={"autocommit": True},
            name="retrysafe",
            open=True,
        )
        store = cls(pool, owned=True, url=at.url)
        store.names, store._plans = at.names, Plans(DIALECT, at.names)
        return store

    def execute(self, op: Op[R]) -> R:
        return self._retrying(lambda connection: follow(self._plans.of(op), self._sender(connection)))

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """A statement per kind, all sent together, where that will do; else one by one. One commit either way."""
        if not ops:
            return []
        if not together(ops):
            return self._retrying(lambda connection: self._one_by_one(connection, ops))
        try:
            sent = batches.groups(self._plans.texts, ops)
        except (UnicodeError, struct.error) as error:
            raise unstorable(error) from error
        answers = self._retrying(lambda connection: self._converse(connection, sent))
        replies = batches.replies(ops, sent, answers)
        for place, reply in enumerate(replies):
            if reply is UNSETTLED:
                replies[place] = self.execute(ops[place])
        return replies

    def _converse(self, connection: psycopg.Connection[Any], sent: Sequence[Group]) -> list[Rows]:
        parts = [batches.ahead(self._plans.texts), *(group.part for group in sent)]
        conversation = pipeline.converse(connection.pgconn, parts, self._prepared.of(connection))
        try:
            _, *answers = pipeline.run(connection, conversation)
        except psycopg.Error as error:
            raise Again if self._prepared.doubt(error) else meaning(error, self._url, batch=True) from error
        return [pipeline.table(answer, connection) for answer in answers]

    def _one_by_one(self, connection: psycopg.Connection[Any], ops: Sequence[Op[Any]]) -> list[Any]:
        """In the order of ids, so that two batches cannot deadlock."""
        replies: list[Any] = [None] * len(ops)
        with connection.transaction():
            for place, op in by_id(ops):
                replies[place] = follow(self._plans.of(op), self._sender(connection, batch=True))
        return replies

    def migrate(self) -> list[str]:
        def locked(connection: psycopg.Connection[Any]) -> list[str]:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"retrysafe:{self.names.meta}"])
                return follow(migrations.upgrade(DIALECT, self.names), self._sender(connection))

        return self._retrying(locked)

    def announce(self, record_id: bytes) -> None:
        told = (waking.channel(self.names), record_id.hex())
        self._retrying(lambda connection: connection.execute(waking.NOTIFY, told, prepare=False))

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._listener.wait(record_id, seconds)

    def close(self) -> None:
        self._listener.close()
        if self._owned:
            self._pool.close()

    def _retrying(self, work: Callable[[psycopg.Connection[Any]], R]) -> R:
        for _ in range(TRIES):
            try:
                with self._connection() as connection:
                    return work(connection)
            except Again:
                continue
            except Held as error:
                raise held_elsewhere() from error
            except StoreUnclear:
                # After a restart every idle connection is dead: throw them all away now, not one per caller.
                if self._owned:
                    self._pool.drain()
                raise
            except StoreUnavailable as error:
                # The same where it takes no writes any more: the next connection may lead to the one that does.
                if self._owned and demoted(error):
                    self._pool.drain()
                raise
        raise StoreUnavailable(f"PostgreSQL answered {TRIES} serialization failures in a row; try again")

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection that commits each statement by itself, whatever its owner's pool does with it otherwise."""
        try:
            with self._pool.connection() as connection:
                before = connection.autocommit
                if not before:
                    connection.autocommit = True
                try:
                    with self._watch.over(connection, deadline.SECONDS):
                        if not self._prepared.met(connection):
                            self._meet(connection)
                        yield connection
                finally:
                    if not before and not connection.closed:
                        connection.autocommit = False
        except Exception as error:
            found = meaning(self._connecting.told(error, self._pool.get_stats), self._url)
            if found is error:
                raise  # already one of ours: it must not become its own cause
            raise found from error

    def _sender(self, connection: psycopg.Connection[Any], batch: bool = False) -> Callable[[Statement], Any]:
        def send(statement: Statement) -> Any:
            keep = self._prepared.keep(connection, statement)
            try:
                cursor = connection.execute(statement.sql, statement.values or None, prepare=keep, binary=True)
                return cursor.fetchall() if cursor.rownumber is not None else []
            except psycopg.Error as error:
                raise Again if self._prepared.doubt(error) else meaning(error, self._url, batch) from error

        return send

    def _meet(self, connection: psycopg.Connection[Any]) -> None:
        with connection.cursor(row_factory=tuple_row) as cursor:
            found = cursor.execute(pipeline.WHO, prepare=False).fetchone()
        assert found is not None, "a SELECT without FROM has one row"
        self._prepared.meet(connection, found[0])


def _conninfo(pool: Pool) -> str:
    """Where the pool connects to, for a connection beside it."""
    given = pool.conninfo
    return given if isinstance(given, str) else given()
