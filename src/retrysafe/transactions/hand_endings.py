"""Watch a driver's connection while the user's body runs: has a transaction that came after ours been committed?

A body that rolls back by hand, writes, and commits what it wrote leaves nothing in the database by which that could be
found out: our own transaction was rolled back with everything in it. If it then meets a deadlock or loses its
connection, the connection cannot tell either. Only whoever saw its commands can: after each command the server says
whether a transaction is open, and the driver keeps that.

    ended once     our transaction was ended by hand. The database tells whether that was a commit
    ended again    so was one that came after it, or a statement was committed by itself: what is kept is unknown

The watch costs no round trip. A driver that cannot be watched (DuckDB, psycopg2, mysqlclient) is left alone.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from typing import Any

PQTRANS_IDLE, PQTRANS_UNKNOWN = 0, 4
"""The transaction status of libpq: no transaction is open, and the connection was lost."""
MYSQL_ENDINGS = (b"ROLLBACK", b"COMMIT")
NO_ENDINGS = (b"ROLLBACK TO", b"ROLLBACK WORK TO")


class HandEndings:
    """Counts the ends of transactions that the user's code caused on one connection."""

    def __init__(self, ended: int = 0) -> None:
        self.ended = ended
        self.paused = False
        """True while a statement of ours runs."""
        self._restore: Callable[[], None] | None = None

    @property
    def committed(self) -> bool | None:
        """True if a later transaction than ours may have been committed; None if that is not known."""
        return True if self.ended > 1 else None

    def on_idle(self) -> None:
        """A command has ended, and no transaction is open."""
        if not self.paused:
            self.ended += 1

    def on_lost(self) -> None:
        """The connection was lost during a command. After the end of ours, its effect is unknown."""
        if not self.paused and self.ended:
            self.ended += 1

    @contextmanager
    def pause(self) -> Iterator[None]:
        """Do not count what is sent inside the block: it is ours."""
        self.paused = True
        try:
            yield
        finally:
            self.paused = False

    def close(self) -> None:
        """Stop watching."""
        restore, self._restore = self._restore, None
        if restore is not None:
            restore()

    def replace_method(self, connection: Any, name: str, method: Callable[..., Any]) -> None:
        """Replace a method of one connection until `close`. Does nothing for an object that does not allow it."""
        before = self._restore
        try:
            setattr(connection, name, method)
        except AttributeError:
            return

        def restore() -> None:
            if connection.__dict__.get(name) is method:
                delattr(connection, name)
            if before is not None:
                before()

        self._restore = restore


def watch_connection(connection: Any, ended: int = 0) -> HandEndings:
    """Watch a connection of a driver that is known here. Any other one is not watched."""
    endings = HandEndings(ended)
    watch = WATCHES.get(type(connection).__module__.partition(".")[0])
    if watch is not None:
        watch(connection, endings)
    return endings


def _watch_psycopg(connection: Any, endings: HandEndings) -> None:
    wait = getattr(connection, "wait", None)
    if wait is None:
        return
    is_async = "Async" in type(connection).__name__

    class Observed:
        """One command: whether it was sent, whether it failed, and what the server said before and after it."""

        def __init__(self) -> None:
            self.sent: list[bool] = []
            self._before = connection.pgconn.transaction_status

        def __enter__(self) -> list[bool]:
            return self.sent

        def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
            status = connection.pgconn.transaction_status
            failed_alone = error is not None and self._before == PQTRANS_IDLE  # a statement of its own: nothing is kept
            if self.sent and status == PQTRANS_IDLE and not failed_alone:
                endings.on_idle()
            elif self.sent and status == PQTRANS_UNKNOWN:
                endings.on_lost()

    def wait_and_observe(command: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        with Observed() as sent:
            return wait(record_sending(command, sent), *args, **options)

    async def await_and_observe(command: Generator[Any, Any, Any], *args: Any, **options: Any) -> Any:
        with Observed() as sent:
            return await wait(record_sending(command, sent), *args, **options)

    endings.replace_method(connection, "wait", await_and_observe if is_async else wait_and_observe)


def record_sending(command: Generator[Any, Any, Any], sent: list[bool]) -> Generator[Any, Any, Any]:
    """The command, which waits for its socket if it has sent something. A rollback of nothing sends nothing."""
    reply = None
    try:
        wanted = next(command)
        sent.append(True)
        while True:
            try:
                reply = yield wanted
            except BaseException as error:
                wanted = command.throw(error)
            else:
                wanted = command.send(reply)
    except StopIteration as done:
        return done.value


def _watch_asyncpg(connection: Any, endings: HandEndings) -> None:
    if not hasattr(connection, "add_query_logger"):
        return

    def observe(command: Any) -> None:
        if connection.is_closed():
            endings.on_lost()
        elif not connection.is_in_transaction() and not (endings.ended and command.exception is not None):
            endings.on_idle()

    connection.add_query_logger(observe)
    endings._restore = lambda: None if connection.is_closed() else connection.remove_query_logger(observe)


def _watch_mysql(connection: Any, endings: HandEndings) -> None:
    """PyMySQL and asyncmy. By the text of a command, because asyncmy does not keep every status of the server. After
    the end of ours every command counts that does not fail: the session decides whether it is committed by itself."""
    send = getattr(connection, "_execute_command", None)
    if send is None:
        return
    last = MysqlCommand(endings)
    is_async = inspect.iscoroutinefunction(send) or type(connection).__module__.startswith("asyncmy")

    def send_and_keep(command: Any, sql: Any) -> Any:
        last.text = sql.encode() if isinstance(sql, str) else bytes(sql)
        return send(command, sql)

    endings.replace_method(connection, "_execute_command", send_and_keep)
    for name in ("_read_query_result", "_read_ok_packet"):
        endings.replace_method(connection, name, last.observe(getattr(connection, name), is_async))


class MysqlCommand:
    """The last command of a connection to MySQL, until its reply has been read."""

    def __init__(self, endings: HandEndings) -> None:
        self._endings = endings
        self.text = b""

    def observe(self, read: Callable[..., Any], is_async: bool) -> Callable[..., Any]:
        """The method that reads a reply, observed."""

        def read_and_observe(*args: Any, **options: Any) -> Any:
            with self:
                return read(*args, **options)

        async def aread_and_observe(*args: Any, **options: Any) -> Any:
            with self:
                return await read(*args, **options)

        return aread_and_observe if is_async else read_and_observe

    def __enter__(self) -> None:
        """The reply is about to be read."""

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: Any) -> None:
        text = self.text[:40].lstrip().upper()
        if error is not None:
            if not is_mysql_refusal(error):
                self._endings.on_lost()
        elif self._endings.ended or (text.startswith(MYSQL_ENDINGS) and not text.startswith(NO_ENDINGS)):
            self._endings.on_idle()


def is_mysql_refusal(error: BaseException) -> bool:
    """Whether the server refused the command. Numbers from 2000 to 2999 are the client's own: the reply was lost."""
    number = error.args[0] if error.args else None
    return isinstance(number, int) and number >= 1000 and not 2000 <= number < 3000


WATCHES: dict[str, Callable[[Any, HandEndings], None]] = {
    "psycopg": _watch_psycopg,
    "asyncpg": _watch_asyncpg,
    "pymysql": _watch_mysql,
    "asyncmy": _watch_mysql,
}
