"""Several statements to PostgreSQL in one go: sent together, committed together, one round trip.

Until the one Sync at the end the server takes them for one transaction, so either all of them happened or none. This
speaks to libpq through psycopg's own handle on it and leaves out what psycopg does for a statement in general (a
cursor, a look at each value, a guess at types): for the three or four statements of a batch that costs more than
sending them. `run_pipeline` is a generator as psycopg's own are: it yields what it waits for, and has no colour.
"""

from __future__ import annotations

import asyncio
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
"""What a server says whose prepared statements are not the ones this connection prepared: a pooler is in between that
does not keep account of them."""

PipelineGen = Generator[Wait, Ready | int | None, list[PGresult]]


class NumberedStatement(NamedTuple):
    """A statement as the protocol wants it: numbered parameters, and a name to prepare it under."""

    name: bytes
    sql: bytes
    parameters: tuple[str, ...]


class BoundStatement(NamedTuple):
    """One statement of a conversation, its values packed already, in binary."""

    text: NumberedStatement
    values: Sequence[bytes | None]


@lru_cache(maxsize=256)
def number_parameters(sql: str) -> NumberedStatement:
    """Out of a statement with named parameters. Each name is one parameter, however often it is written."""
    names: list[str] = []

    def number(match: re.Match[str]) -> str:
        name = match.group(1)
        if name not in names:
            names.append(name)
        return f"${names.index(name) + 1}"

    text = _PARAMETER.sub(number, sql).replace("%%", "%").encode()
    return NumberedStatement(b"retrysafe_" + hashlib.sha256(text).hexdigest()[:16].encode(), text, tuple(names))


class PreparedNames:
    """What one connection has prepared, and how often it has sent what it has not: the first few times a statement
    goes as it is, as with psycopg's own, because not every connection lives long enough for more to pay."""

    __slots__ = ("_threshold", "_uses", "names")

    def __init__(self, threshold: int) -> None:
        self.names: set[bytes] = set()
        self._uses: dict[bytes, int] = {}
        self._threshold = threshold

    def should_prepare(self, name: bytes) -> bool:
        """Whether to prepare it now."""
        before = self._uses.get(name, 0)
        self._uses[name] = before + 1
        return before >= self._threshold


BACKEND_PID_QUERY = "SELECT pg_backend_pid()"
"""Asked once on each connection: a pooler introduces itself under a number that is not the session's."""


class PreparedStatements:
    """What each connection has prepared, and where nothing may be.

    Behind a pooler in transaction mode a connection meets one session now and another one next. psycopg names its
    prepared statements by counting, so that a name may stand for somebody else's statement there, and that one would
    be run. So who answers is asked first, and behind a pooler nothing is prepared, also where it keeps account.
    """

    def __init__(self) -> None:
        self.usable = True
        """Falls once a server knows nothing of what was prepared."""
        self._of: weakref.WeakKeyDictionary[Any, PreparedNames] = weakref.WeakKeyDictionary()
        self._direct: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()

    def is_checked(self, connection: Any) -> bool:
        return connection in self._direct

    def record_backend(self, connection: Any, session: int) -> None:
        """`session`: the number of the session that answers on it now."""
        self._direct[connection] = session == connection.info.backend_pid

    def names_for(self, connection: Any) -> PreparedNames | None:
        """None where nothing may be prepared: its owner said so (`prepare_threshold=None`), or there is a pooler."""
        threshold = connection.prepare_threshold
        if not self._is_allowed(connection) or threshold is None:
            return None
        found = self._of.get(connection)
        if found is None:
            found = self._of[connection] = PreparedNames(threshold)
        return found

    def prepare_flag(self, connection: Any, statement: Statement) -> bool | None:
        """As psycopg's `prepare`: None leaves it to the connection's threshold, False never."""
        return None if statement.prepared and self._is_allowed(connection) else False

    def _is_allowed(self, connection: Any) -> bool:
        return self.usable and self._direct.get(connection, False)

    def disable_on(self, error: psycopg.Error) -> bool:
        """Whether this error is about prepared statements; then there will be none from here on."""
        if error.sqlstate not in (UNKNOWN_STATEMENT, KNOWN_STATEMENT):
            return False
        self.usable = False
        return True


def run_pipeline(pgconn: PGconn, parts: Sequence[BoundStatement], known: PreparedNames | None) -> PipelineGen:
    """Send all, read all. Raises what the server said to the first that failed; then none of them happened."""
    pgconn.enter_pipeline_mode()
    prepares = [_send(pgconn, part, known) for part in parts]
    pgconn.pipeline_sync()
    while pgconn.flush():
        ready = yield Wait.RW
        if ready and ready & Ready.R:
            pgconn.consume_input()
    answers: list[PGresult] = []
    failed: PGresult | None = None
    for part, prepare in zip(parts, prepares, strict=True):
        if prepare:
            answer = yield from _read_answer(pgconn)
            failed = failed or _failed_result(answer)
            if failed is None and known is not None:
                known.names.add(part.text.name)  # also if a later one fails: what is prepared outlives the transaction
        answer = yield from _read_answer(pgconn)
        failed = failed or _failed_result(answer)
        answers.append(answer)
    yield from _next_result(pgconn)  # the Sync: committed
    pgconn.exit_pipeline_mode()
    if failed is not None:
        raise psycopg.errors.error_from_result(failed)
    return answers


def _send(pgconn: PGconn, part: BoundStatement, known: PreparedNames | None) -> bool:
    """Into the buffer. True if the statement is prepared first, which is answered too."""
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


def _read_answer(pgconn: PGconn) -> Generator[Wait, Ready | int | None, PGresult]:
    """What the server says to one statement, up to the end of it."""
    answer = yield from _next_result(pgconn)
    if answer is None:
        raise psycopg.OperationalError("PostgreSQL left a statement of a batch without an answer")
    yield from _next_result(pgconn)
    return answer


def _next_result(pgconn: PGconn) -> Generator[Wait, Ready | int | None, PGresult | None]:
    while pgconn.is_busy():
        if (yield Wait.R):
            pgconn.consume_input()
    return pgconn.get_result()


def _failed_result(answer: PGresult) -> PGresult | None:
    return None if answer.status in _GOOD_STATUSES else answer


_GOOD_STATUSES = (ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK)
_BINARY_FORMATS = [Format.BINARY] * 32


def read_rows(answer: PGresult, connection: Any) -> list[tuple[Any, ...]]:
    """The rows of an answer, as a cursor would give them."""
    loader = Transformer(connection)
    loader.set_pgresult(answer)
    return loader.load_rows(0, answer.ntuples, tuple)


def drive_pipeline(connection: psycopg.Connection[Any], conversation: PipelineGen) -> list[PGresult]:
    """Among threads."""
    try:
        return connection.wait(conversation)
    finally:
        _close_if_broken(connection)


async def adrive_pipeline(connection: psycopg.AsyncConnection[Any], conversation: PipelineGen) -> list[PGresult]:
    """On an event loop."""
    loop, line = asyncio.get_running_loop(), connection.pgconn.socket
    try:
        wanted = next(conversation)
        while True:
            wanted = conversation.send(await _wait_ready(loop, line, wanted))
    except StopIteration as done:
        return done.value  # type: ignore[no-any-return]
    finally:
        _close_if_broken(connection)


async def _wait_ready(loop: asyncio.AbstractEventLoop, line: int, wanted: Wait) -> Ready:
    woken: asyncio.Future[Ready] = loop.create_future()
    if wanted & Wait.R:
        loop.add_reader(line, _wake, woken, Ready.R)
    if wanted & Wait.W:
        loop.add_writer(line, _wake, woken, Ready.W)
    try:
        return await woken
    finally:
        if wanted & Wait.R:
            loop.remove_reader(line)
        if wanted & Wait.W:
            loop.remove_writer(line)


def _wake(woken: asyncio.Future[Ready], ready: Ready) -> None:
    if not woken.done():
        woken.set_result(ready)


def _close_if_broken(connection: Any) -> None:
    """A conversation that broke off (an interrupt, a lost connection) leaves a line nobody can go on talking on."""
    if connection.pgconn.pipeline_status != PipelineStatus.OFF:
        connection.pgconn.finish()
