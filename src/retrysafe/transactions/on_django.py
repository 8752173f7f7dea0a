"""Django: `transaction.atomic(durable=True)` on one of its databases, PostgreSQL, MySQL or SQLite.

Django itself decides whether the block is the outermost one, so its TestCase, which wraps every test in a transaction
of its own, works too: there the block is a savepoint, and nothing is durable, as in any such test.
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
from retrysafe.transactions.mysql_lock import LOCK_PARAMETER, build_release_sql, plan_steps, read_rows
from retrysafe.transactions.write_lock import take_write_lock

DIALECTS: dict[str, Dialect] = {"postgres": PSYCOPG, "sqlite": SQLITE_FORMAT, "mysql": MYSQL}


class DjangoTx:
    """`handle` is Django's connection; the ORM on the same alias is in the same transaction."""

    def __init__(self, alias: str) -> None:
        self.handle: Any = connections[alias]
        self.dialect_name = dialect_for_vendor(self.handle.vendor)
        self.dialect: Dialect = DIALECTS[self.dialect_name]
        self._lock: int | None = None

    def send(self, statement: Statement) -> Rows:
        if self.dialect_name == "mysql":
            self._lock = statement.values.get(LOCK_PARAMETER, self._lock)
            return follow(plan_steps(statement), lambda step: self._execute_step(step, statement.values))
        values = fill_now(statement.values) if self.dialect_name == "sqlite" else statement.values
        with self.handle.cursor() as cursor:
            cursor.execute(statement.sql, values or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description is not None else []

    def send_plainly(self, statement: Statement) -> Rows:
        """By the driver's own connection: after an error Django refuses every query of an atomic block."""
        with self.handle.connection.cursor() as cursor:
            cursor.execute(statement.sql, statement.values or None)
            return [tuple(row) for row in cursor.fetchall()] if cursor.description is not None else []

    def _execute_step(self, step: str, values: Mapping[str, Any]) -> Rows:
        with self.handle.cursor() as cursor:
            cursor.execute(step, values or None)
            return read_rows(cursor.fetchall() if cursor.description else None, cursor.rowcount)

    def unlock(self) -> None:
        """A connection that broke has nothing to give back: the server did it."""
        if self._lock is not None and self.handle.connection is not None:
            with suppress(Exception), self.handle.cursor() as cursor:
                cursor.execute(build_release_sql(self._lock))

    def flush(self) -> None:
        """The ORM holds nothing back."""

    def lock(self) -> None:
        outermost = not self.handle.savepoint_ids
        if self.dialect_name == "sqlite" and outermost:
            follow(take_write_lock(begun=True), self.send)


@contextmanager
def alias(given: str) -> Iterator[DjangoTx]:
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
    # The first hook of all: when one of the user's own raises, this one has run, so the commit took place.
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
                tx.unlock()


@contextmanager
def wrapper(given: Any) -> Iterator[DjangoTx]:
    """`django.db.connections["default"]`."""
    with alias(given.alias) as tx:
        yield tx


def refuse_manual(name: str) -> None:
    found = connections[name]
    if not found.in_atomic_block and not found.get_autocommit():
        raise NestedTransaction(
            f"Django's database {name!r} has autocommit turned off and",
            "set AUTOCOMMIT back to True, so that atomic() can commit",
        )
