"""Several statements in PostgreSQL's pipeline mode: sent together, committed together, one round trip.

The server treats everything before the one Sync message at the end as one transaction, so all of the statements happen
or none. This module uses libpq through psycopg's `pgconn`. It skips what psycopg does for a statement in general (a
cursor, the types of all values), which costs more than sending the three or four statements of a batch. `run_pipeline`
is a generator as psycopg's own are: it yields what it waits for, so sync and async code can both drive it.
"""

from __future__ import annotations

import hashlib
import re
import weakref
from collections.abc import Generator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ExecStatus, Format, PipelineStatus
from psycopg.pq.abc import PGconn, PGresult
from psycopg.waiting import Ready, Wait

from retrysafe.stores.sql.dialect import Statement

_PARAMETER = re.compile(r"%\(([a-z_]+)\)s")

UNKNOWN_STATEMENT, KNOWN_STATEMENT = "26000", "42P05"
"""Errors of a server whose prepared statements are not those of this connection: a pooler that does not track them is
in between."""

PipelineGen = Generator[Wait, Ready | int | None, list[PGresult]]


class NumberedStatement(NamedTuple):
    """A statement in the form of the protocol: numbered parameters, and the name of its prepared statement."""

    name: bytes
    sql: bytes
    parameters: tuple[str, ...]


class BoundStatement(NamedTuple):
    """One statement of a pipeline with its values, which are packed in binary."""

    text: NumberedStatement
    values: Sequence[bytes | None]


@lru_cache(maxsize=256)
def number_parameters(sql: str) -> NumberedStatement:
    """Number the parameters of a statement with named ones. A name that occurs twice is one parameter."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    text = _PARAMETER.sub(number, sql).replace("%%", "%").encode()
    return NumberedStatement(b"retrysafe_" + hashlib.sha256(text).hexdigest()[:16].encode(), text, tuple(names))


class PreparedNames:
    """The prepared statements of one connection, and how often it has sent each other statement. The first few times a
    statement is sent without preparing, as psycopg does: a short-lived connection would not gain from it."""

    __slots__ = ("_threshold", "_uses", "names")

    def __init__(self, threshold: int) -> None:
        self.names: set[bytes] = set()
        self._uses: dict[bytes, int] = {}
        self._threshold = threshold

    def should_prepare(self, name: bytes) -> bool:
        """Count one use, and return True if the statement is to be prepared now."""
        before = self._uses.get(name, 0)
        self._uses[name] = before + 1
        return before >= self._threshold


BACKEND_PID_QUERY = "SELECT pg_backend_pid()"
"""Sent once on each connection: a pooler reports a process id that is not the session's."""


class PreparedStatements:
    """The prepared statements of each connection, and which connections may prepare.

    Behind a pooler in transaction mode, a connection uses another server session for each transaction. psycopg names
    prepared statements by a counter, so there a name may mean another client's statement, and the server would execute
    that one. So the store asks for the backend's process id first, and prepares nothing behind a pooler, also if the
    pooler tracks prepared statements.
    """

    def __init__(self) -> None:
        self.usable = True
        """False after a server did not know a prepared statement."""
        self._of: weakref.WeakKeyDictionary[Any, PreparedNames] = weakref.WeakKeyDictionary()
        self._direct: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def is_checked(self, connection: Any) -> bool:
        return connection in self._direct

    def record_backend(self, connection: Any, session: int) -> None:
        """`session` is the process id of the session that answers on this connection."""
        self._direct[connection] = session == connection.info.backend_pid

    def names_for(self, connection: Any) -> PreparedNames | None:
        """None if nothing may be prepared: the owner set `prepare_threshold=None`, or there is a pooler."""
        threshold = connection.prepare_threshold
        if not self._is_allowed(connection) or threshold is None:
            return None
        found = self._of.get(connection)
        if found is None:
            found = self._of[connection] = PreparedNames(threshold)
        return found

    def prepare_flag(self, connection: Any, statement: Statement) -> bool | None:
        """The value of psycopg's `prepare`: None follows the connection's threshold, False never prepares."""
        return None if statement.prepared and self._is_allowed(connection) else False

    def _is_allowed(self, connection: Any) -> bool:
        return self.usable and self._direct.get(connection, False)

    def disable_on(self, error: psycopg.Error) -> bool:
        """If this error is about prepared statements, stop preparing and return True."""
        if error.sqlstate not in (UNKNOWN_STATEMENT, KNOWN_STATEMENT):
            return False
        self.usable = False
        return True


def run_pipeline(pgconn: PGconn, parts: Sequence[BoundStatement], known: PreparedNames | None) -> PipelineGen:
    """Send all statements and read all results. Raises the error of the first that failed; then none happened.

    It yields what it waits for. A driver that has read the input itself sends Ready.NONE."""
    pgconn.enter_pipeline_mode()
    prepares = [_send(pgconn, part, known) for part in parts]
    pgconn.pipeline_sync()
    while pgconn.flush():
        ready = yield Wait.RW
        if ready and ready & Ready.R:
            pgconn.consume_input()
    # For each statement, also for one that prepares, a result and the empty result that ends it; then that of the Sync.
    results: list[PGresult | None] = []
    for _ in range(2 * (len(parts) + sum(prepares)) + 1):
        while pgconn.is_busy():
            if (yield Wait.R):
                pgconn.consume_input()
        results.append(pgconn.get_result())
    pgconn.exit_pipeline_mode()
    answers = _pick_answers(parts, prepares, results[:-1:2], known)
    synced = results[-1]
    if synced is None or synced.status != ExecStatus.PIPELINE_SYNC:
        raise psycopg.OperationalError("PostgreSQL did not say that a batch was committed")
    return answers


def _pick_answers(
    parts: Sequence[BoundStatement],
    prepares: Sequence[bool],
    results: Sequence[PGresult | None],
    known: PreparedNames | None,
) -> list[PGresult]:
    answers: list[PGresult] = []
    left = iter(results)
    failed: PGresult | None = None
    for part, prepare in zip(parts, prepares, strict=True):
        if prepare:
            failed = failed or _failed_result(next(left))
            if failed is None and known is not None:
                # Also if a later statement fails: a prepared statement outlives the transaction.
                known.names.add(part.text.name)
        answer = next(left)
        failed = failed or _failed_result(answer)
        if answer is not None:
            answers.append(answer)
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)
    return answers


def _send(pgconn: PGconn, part: BoundStatement, known: PreparedNames | None) -> bool:
    """Put the statement into libpq's buffer. True if it is prepared first, which has a result of its own."""
    text, values = part
    formats = _BINARY_FORMATS[: len(values)]
    new = known is not None and text.name not in known.names
    if known is None or (new and not known.should_prepare(text.name)):
        pgconn.send_query_params(text.sql, values, None, formats, Format.BINARY)
        return False
    if new:
        pgconn.send_prepare(text.name, text.sql)
    pgconn.send_query_prepared(text.name, values, formats, Format.BINARY)
    return new


def _failed_result(answer: PGresult | None) -> PGresult | None:
    if answer is None:
        raise psycopg.OperationalError("PostgreSQL left a statement of a batch without an answer")
    return None if answer.status in _GOOD_STATUSES else answer


_GOOD_STATUSES = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_BINARY_FORMATS = [Format.BINARY] * 32


class StatementRows:
    """The rows that a statement of a batch returned. They are converted only if somebody reads them."""

    __slots__ = ("_connection", "_result", "count")

    def __init__(self, result: PGresult, connection: Any) -> None:
        self._result = result
        self._connection = connection
        self.count = result.ntuples

    def read_all(self) -> list[tuple[Any, ...]]:
        """The rows, converted as a cursor converts them."""
        loader = Transformer(self._connection)
        loader.set_pgresult(self._result)
        return loader.load_rows(0, self.count, tuple)

    def read_bigint(self, row: int, column: int) -> int:
        value = self._result.get_value(row, column)
        assert value is not None, "no column that is read so can be NULL"
        return int.from_bytes(value, "big", signed=True)


def close_if_broken(connection: Any) -> None:
    """Close a connection whose pipeline did not end (an interrupt, a lost connection): it cannot be used any more."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        connection.pgconn.finish()
