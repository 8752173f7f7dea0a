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
from retrysafe.stores.notify import Listener
from retrysafe.stores.postgres import batches, deadline, notify, pipeline
from retrysafe.stores.postgres.batches import SEND_UNBATCHED, Group, Rows, can_batch
from retrysafe.stores.postgres.dialect import CAPABILITIES, DIALECT, PostgresLocation
from retrysafe.stores.postgres.errors import (
    ConnectFailures,
    RetryNow,
    demoted,
    lock_timeout_error,
    translate_error,
    unstorable_value_error,
)
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import DEFAULT_PREFIX, build_names
from retrysafe.stores.sql.plans import LockNotAvailable, SqlPlans, sort_by_id

R = TypeVar("R")
Pool = ConnectionPool[psycopg.Connection[Any]]

MAX_SERIALIZATION_TRIES = 10
"""Serialization failures in a row before giving up; each means that somebody else got on."""


class PostgresStore:
    """Made from a URL, or from your own `psycopg_pool.ConnectionPool` (which stays yours to close)."""

    capabilities = CAPABILITIES
    mixed_batches = True
    """Operations of several kinds go together as well as those of one."""
    max_in_flight = 2
    """A batch that waits for somebody's lock is not waited for by the others."""

    def __init__(
        self, pool: Pool, *, table: str = DEFAULT_PREFIX, schema: str = "", owned: bool = False, url: str = "URL"
    ) -> None:
        self._pool = pool
        self.names = build_names(table, schema)
        self._plans = SqlPlans(DIALECT, self.names)
        self._owned = owned
        self._url = url
        self._prepared = pipeline.PreparedStatements()
        self._connecting = ConnectFailures()
        self._watch = deadline.DeadlineWatch()
        self._listener = Listener(lambda heard, wanted: notify.listen(_conninfo(pool), self.names, heard, wanted))

    @classmethod
    def from_url(cls, at: PostgresLocation) -> PostgresStore:
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
        store.names, store._plans = at.names, SqlPlans(DIALECT, at.names)
        return store

    def execute(self, op: Op[R]) -> R:
        return self._with_retries(
            lambda connection: follow(self._plans.plan_operation(op), self._build_sender(connection))
        )

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """A statement per kind, all sent together, where that will do; else one by one. One commit either way."""
        if not ops:
            return []
        if not can_batch(ops):
            return self._with_retries(lambda connection: self._execute_one_by_one(connection, ops))
        try:
            sent = batches.group_by_kind(self._plans.texts, ops)
        except (UnicodeError, struct.error) as error:
            raise unstorable_value_error(error) from error
        answers = self._with_retries(lambda connection: self._run_pipeline(connection, sent))
        replies = batches.read_replies(ops, sent, answers)
        for place, reply in enumerate(replies):
            if reply is SEND_UNBATCHED:
                replies[place] = self.execute(ops[place])
        return replies

    def _run_pipeline(self, connection: psycopg.Connection[Any], sent: Sequence[Group]) -> list[Rows]:
        parts = [batches.settings_part(self._plans.texts), *(group.part for group in sent)]
        conversation = pipeline.run_pipeline(connection.pgconn, parts, self._prepared.names_for(connection))
        try:
            _, *answers = pipeline.drive_pipeline(connection, conversation)
        except psycopg.Error as error:
            raise (
                RetryNow if self._prepared.disable_on(error) else translate_error(error, self._url, batch=True)
            ) from error
        return [pipeline.read_rows(answer, connection) for answer in answers]

    def _execute_one_by_one(self, connection: psycopg.Connection[Any], ops: Sequence[Op[Any]]) -> list[Any]:
        """In the order of ids, so that two batches cannot deadlock."""
        replies: list[Any] = [None] * len(ops)
        with connection.transaction():
            for place, op in sort_by_id(ops):
                replies[place] = follow(self._plans.plan_operation(op), self._build_sender(connection, batch=True))
        return replies

    def migrate(self) -> list[str]:
        def upgrade_locked(connection: psycopg.Connection[Any]) -> list[str]:
            with connection.transaction():
                connection.execute("SELECT pg_advisory_xact_lock(hashtext(%s))", [f"retrysafe:{self.names.meta}"])
                return follow(migrations.upgrade(DIALECT, self.names), self._build_sender(connection))

        return self._with_retries(upgrade_locked)

    def announce(self, record_id: bytes) -> None:
        told = (notify.channel_name(self.names), record_id.hex())
        self._with_retries(lambda connection: connection.execute(notify.NOTIFY_QUERY, told, prepare=False))

    def wait(self, record_id: bytes, seconds: float) -> None:
        self._listener.wait(record_id, seconds)

    def close(self) -> None:
        self._listener.close()
        if self._owned:
            self._pool.close()

    def _with_retries(self, work: Callable[[psycopg.Connection[Any]], R]) -> R:
        for _ in range(MAX_SERIALIZATION_TRIES):
            try:
                with self._connection() as connection:
                    return work(connection)
            except RetryNow:
                continue
            except LockNotAvailable as error:
                raise lock_timeout_error() from error
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
        raise StoreUnavailable(
            f"PostgreSQL answered {MAX_SERIALIZATION_TRIES} serialization failures in a row; try again"
        )

    @contextmanager
    def _connection(self) -> Iterator[psycopg.Connection[Any]]:
        """A connection that commits each statement by itself, whatever its owner's pool does with it otherwise."""
        try:
            with self._pool.connection() as connection:
                before = connection.autocommit
                if not before:
                    connection.autocommit = True
                try:
                    with self._watch.enforce(connection, deadline.STATEMENT_TIMEOUT_SECONDS):
                        if not self._prepared.is_checked(connection):
                            self._check_backend(connection)
                        yield connection
                finally:
                    if not before and not connection.closed:
                        connection.autocommit = False
        except Exception as error:
            found = translate_error(self._connecting.refine_error(error, self._pool.get_stats), self._url)
            if found is error:
                raise  # already one of ours: it must not become its own cause
            raise found from error

    def _build_sender(self, connection: psycopg.Connection[Any], batch: bool = False) -> Callable[[Statement], Any]:
        def send(statement: Statement) -> Any:
            keep = self._prepared.prepare_flag(connection, statement)
            try:
                cursor = connection.execute(statement.sql, statement.values or None, prepare=keep, binary=True)
                return cursor.fetchall() if cursor.rownumber is not None else []
            except psycopg.Error as error:
                raise (
                    RetryNow if self._prepared.disable_on(error) else translate_error(error, self._url, batch)
                ) from error

        return send

    def _check_backend(self, connection: psycopg.Connection[Any]) -> None:
        with connection.cursor(row_factory=tuple_row) as cursor:
            found = cursor.execute(pipeline.BACKEND_PID_QUERY, prepare=False).fetchone()
        assert found is not None, "a SELECT without FROM has one row"
        self._prepared.record_backend(connection, found[0])


def _conninfo(pool: Pool) -> str:
    """Where the pool connects to, for a connection beside it."""
    given = pool.conninfo
    return given if isinstance(given, str) else given()
