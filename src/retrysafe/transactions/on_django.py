"""Adapter for Django: `transaction.atomic(durable=True)` on one of its databases, PostgreSQL, MySQL or SQLite.

Django itself decides whether the block is the outermost one. So Django's TestCase, which wraps every test in a
transaction, works too: there the block is a savepoint, and nothing is durable, as in any such test.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import Any

from django.db import connections, transaction  # type: ignore[import-untyped]  # Django ships no types

from retrysafe.errors import NestedTransaction
from retrysafe.stores.base import follow
from retrysafe.stores.sql.dialect import Dialect, Statement
from retrysafe.transactions.base import (
    MYSQL,
    PSYCOPG,
    SQLITE_FORMAT,
    AfterCommitError,
    Rows,
    dialect_for_vendor,
    fill_now,
)
from retrysafe.transactions.hand_endings import watch_connection
from retrysafe.transactions.locks import LOCK_PARAMETER, build_release_sql, plan_steps, read_rows, take_write_lock

DIALECTS: dict[str, Dialect] = {"postgres": PSYCOPG, "sqlite": SQLITE_FORMAT, "mysql": MYSQL}


class DjangoTx:
    """`handle` is Django's connection. The ORM on the same alias is in the same transaction."""

    def __init__(self, alias: str) -> None:
        self.handle: Any = connections[alias]
        self.dialect_name = dialect_for_vendor(self.handle.vendor)
        self.dialect: Dialect = DIALECTS[self.dialect_name]
        self._lock: int | None = None
        self.endings = watch_connection(self.handle.connection)

    @property
    def committed(self) -> bool | None:
        return self.endings.committed

    def send(self, statement: Statement) -> Rows:
        if self.dialect_name == "mysql":
            self._lock = statement.values.get(LOCK_PARAMETER, self._lock)
            return follow(plan_steps(statement), lambda step: self._execute_step(step, statement.values))
        values = fill_now(statement.values) if self.dialect_name == "sqlite" else statement.values
        with self.handle.cursor() as cursor:
            cursor.execute(statement.sql, values or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description is not None else []

    def send_direct(self, statement: Statement) -> Rows:
        """Send on the driver's own connection: after an error Django refuses every query of an atomic block."""
        with self.handle.connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.values or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description is not None else []

    def _execute_step(self, step: str, values: Mapping[str, Any]) -> Rows:
        with self.handle.cursor() as cursor:
            cursor.execute(step, values or None)
            return read_rows(cursor.fetchall() if cursor.description else None, cursor.rowcount)

    def unlock(self) -> None:
        """Release the advisory lock. If the connection was lost, the server has released it."""
        if self._lock is not None and self.handle.connection is not None:
            with suppress(Exception), self.handle.cursor() as cursor:
                cursor.execute(build_release_sql(self._lock))

    def flush(self) -> None:
        """The ORM has no pending objects."""

    def lock(self) -> None:
        outermost = not self.handle.savepoint_ids
        if self.dialect_name == "sqlite" and outermost:
            follow(take_write_lock(begun=True), self.send)


@contextmanager
def begin_on_alias(given: str) -> Iterator[DjangoTx]:
    """`django:default`."""
    name = given.removeprefix("django:")
    refuse_manual(name)
    block = transaction.atomic(using=name, durable=True)
    try:
        block.__enter__()
    except RuntimeError as error:
        raise NestedTransaction(f"Django's database {name!r}", "call it outside of transaction.atomic()") from error
    raised: BaseException | None = None
    tx = None
    committed: list[bool] = []
    # This hook is the first. If a hook of the user's raises, this one has run, so the commit took place.
    transaction.on_commit(lambda: committed.append(True), using=name)
    try:
        tx = DjangoTx(name)
        tx.lock()
        yield tx
    except BaseException as error:
        raised = error
        raise
    finally:
        try:
            block.__exit__(type(raised) if raised else None, raised, raised.__traceback__ if raised else None)
        except Exception as error:
            if raised is None and committed:
                raise AfterCommitError(error) from error
            raise
        finally:
            if tx is not None:
                tx.endings.close()
                tx.unlock()


@contextmanager
def begin_on_wrapper(given: Any) -> Iterator[DjangoTx]:
    """`django.db.connections["default"]`."""
    with begin_on_alias(given.alias) as tx:
        yield tx


def refuse_manual(name: str) -> None:
    found = connections[name]
    if not found.in_atomic_block and not found.get_autocommit():
        raise NestedTransaction(
            f"Django's database {name!r} has autocommit turned off and",
            "set AUTOCOMMIT back to True, so that atomic() can commit",
        )
