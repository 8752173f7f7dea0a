"""The user's own database at the other end of the simulated network: transactions that commit as a whole, or not.

It is SQLite in memory, on a host of its own, with one writer at a time; whoever begins meanwhile waits for the lock. A
connection is a TCP connection: nothing in it is doubled, and what was sent is not taken back. So a COMMIT may arrive
long after its sender has given up, or its reply may be lost. The server ends a transaction that nobody goes on with.
"""

from __future__ import annotations

import asyncio
import sqlite3
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from retrysafe.stores.base import LockNotAvailable, follow
from retrysafe.stores.sql import migrations
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import build_names
from retrysafe.testing.simulation.loop import SimulatedLoop
from retrysafe.testing.simulation.network import ConnectionRefused, Unanswered
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.transactions.base import SQLITE, DialectName, Rows, fill_now

if TYPE_CHECKING:
    from retrysafe.testing.simulation.fleet import Fleet
    from retrysafe.testing.simulation.store import StoreServer

STATEMENT_SECONDS = 5.0
"""How long a client waits for the reply to one statement."""
LOCK_SECONDS = 2.0
IDLE_SECONDS = 30.0
"""The server rolls back a transaction whose client has been silent for this long."""

NAMES = build_names()
FORMS: tuple[tuple[Literal["previous", "current"], ...], ...] = (
    ("previous", "previous"),
    ("current", "current"),
    ("previous", "current"),
)
EFFECTS = "CREATE TABLE effects (about TEXT NOT NULL, what TEXT NOT NULL, at REAL NOT NULL)"
"""What the simulated application writes: no row is refused, so that a second one can be counted."""


COUNT_JOBS = f"SELECT count(*) FROM {NAMES.outbox} WHERE NOT dead"


class ConnectionGone(ConnectionError):
    """The connection to the database is lost: whether the last statement was carried out is not known."""


class SerializationConflict(Exception):
    """The database rolled the transaction back because of another one."""

    sqlstate = "40001"


class DatabaseSession:
    """One connection. `is_lost`: its client has given it up, and sends nothing on it any more."""

    __slots__ = ("is_lost",)

    def __init__(self) -> None:
        self.is_lost = False


class LockWaiter:
    """One wait for the write lock. As `asyncio.timeout`, in fewer calls: most histories wait a hundred times."""

    __slots__ = ("_is_over", "_loop", "future")

    def __init__(self, loop: SimulatedLoop) -> None:
        self.future: asyncio.Future[None] = asyncio.Future(loop=loop)
        self._loop, self._is_over = loop, False

    async def wait(self, seconds: float) -> bool:
        """Whether the lock was given back before the time was over."""
        loop = self._loop
        timer = loop.call_later(seconds, self._give_up) if seconds > 0 else loop.call_soon(self._give_up)
        try:
            await self.future
        finally:
            timer.cancel()
        return not self._is_over

    def _give_up(self) -> None:
        self._is_over = True
        if not self.future.done():
            self.future.set_result(None)


class Effect(NamedTuple):
    """One row that the application wrote and committed."""

    about: str
    what: str
    at: float


class SimulatedDatabase:
    """The server. `begin()` makes it what an application gives as `tx`. `conflicts`: the share of transactions that
    end in a serialization failure, at a statement or at their COMMIT."""

    name = "database"

    def __init__(self, stage: SimulationStage) -> None:
        self.host = stage.add_host("database")
        self.connection = open_database()
        weakref.finalize(self, keep_spare, self.connection).atexit = False
        self.forms = stage.draw("forms").choice(FORMS)
        """What each process of a history is given as `forms`: all the same, or in the middle of the switch."""
        self.conflicts = stage.draw("conflicts").choice((0.0, 0.0, 0.05, 0.3))
        self.rollbacks = 0
        self._counted: tuple[int, int] = (-1, 0)
        """How many jobs there were, and at which state of the database they were counted (`read_state`)."""
        self.is_down = False
        self.after_commit: list[Callable[[], None]] = []
        """Checks that run after each commit, before anything else happens."""
        self.store_server: StoreServer | None = None
        """The store, where it is in this database."""
        self._stage, self._loop = stage, stage.loop
        self._chance = stage.draw("transactions")
        self._holder: DatabaseSession | None = None
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._touched = 0.0
        self._doomed = False

    # What the application uses -----------------------------------------------------------------------

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[SimulatedTx]:
        """One transaction on a connection of its own (`retrysafe.transactions.base.AsyncTxSource`)."""
        session = DatabaseSession()
        await self._ask(session, "BEGIN", lambda: self.open(session))
        tx = SimulatedTx(self, session)
        try:
            yield tx
        except GeneratorExit:
            raise  # the code of a killed process is collected: it sends nothing
        except BaseException:
            session.is_lost = False  # a socket that is closed sends this much
            with suppress(ConnectionGone):
                await self._ask(session, "ROLLBACK", lambda: self.roll_back(session))
            raise
        await self._ask(session, "COMMIT", lambda: self.commit(session))

    async def send(self, session: DatabaseSession, sql: str, values: Mapping[str, Any]) -> Rows:
        rows: Rows = await self._ask(session, sql.split(None, 1)[0], lambda: self.run(session, sql, values))
        return rows

    async def _ask(self, session: DatabaseSession, what: str, function: Callable[[], Any]) -> Any:
        if session.is_lost:
            raise ConnectionGone("the connection is closed")
        try:
            return await self._stage.network.call(
                self.host, function, seconds=STATEMENT_SECONDS, what=what, about="", once=True
            )
        except (Unanswered, ConnectionRefused) as error:
            session.is_lost = True
            raise ConnectionGone(str(error)) from None

    def list_effects(self, about: str) -> list[Effect]:
        """The committed rows about one purchase. To be asked when nothing is open."""
        found = self.connection.execute("SELECT about, what, at FROM effects WHERE about = ? ORDER BY rowid", (about,))
        return [Effect(*row) for row in found]

    @property
    def is_open(self) -> bool:
        return self._holder is not None

    def choose_forms(self, host: str) -> Literal["previous", "current"]:
        return self.forms[sum(host.encode()) % 2]

    def start(self, fleet: Fleet) -> None:
        """A database waits to be asked."""

    def is_settled(self) -> bool:
        return not self.is_open and not self.count_jobs()

    def count_jobs(self) -> int:
        """The jobs in the outbox that are not dead letters."""
        state = self.read_state()
        if state != self._counted[0]:
            self._counted = state, self.connection.execute(COUNT_JOBS).fetchone()[0]
        return self._counted[1]

    def read_state(self) -> int:
        """A number that is another one after each change of a row, and after each rollback."""
        return self.connection.total_changes + self.rollbacks

    # On the server, in the context of its host -------------------------------------------------------

    async def open(self, session: DatabaseSession) -> None:
        """Wait for the write lock, and begin. Raises LockNotAvailable."""
        await self.wait_for_lock()
        self._holder, self._doomed = session, self._chance.random() < self.conflicts
        self.connection.execute("BEGIN IMMEDIATE")
        self._watch_idle(session)

    async def wait_for_lock(self) -> None:
        """Until nobody has a transaction open. Raises LockNotAvailable."""
        if self.is_down:
            raise ConnectionGone("the simulated database is down")
        until = self._loop.now + LOCK_SECONDS
        while self._holder is not None:
            waiter = LockWaiter(self._loop)
            self._waiting.append(waiter.future)
            if not await waiter.wait(until - self._loop.now):
                raise LockNotAvailable("another transaction is open")

    def run(self, session: DatabaseSession, sql: str, values: Mapping[str, Any]) -> Rows:
        """Run one statement of an open transaction."""
        self._require(session)
        if self._doomed and self._chance.random() < 0.5:
            self.roll_back(session)
            raise SerializationConflict("could not serialize access")
        return [tuple(row) for row in self.connection.execute(sql, fill_now(values))]

    def commit(self, session: DatabaseSession) -> None:
        self._require(session)
        if self._doomed:
            self.roll_back(session)
            raise SerializationConflict("could not serialize access")
        self.connection.execute("COMMIT")
        for look in self.after_commit:
            look()
        self._release()

    def roll_back(self, session: DatabaseSession) -> None:
        """Does nothing if the transaction is over."""
        if self._holder is session:
            if self.connection.in_transaction:
                self.undo_changes()
            self._release()

    def undo_changes(self) -> None:
        """What the open transaction has changed is as it was."""
        self.connection.execute("ROLLBACK")
        self.rollbacks += 1

    def go_down(self) -> None:
        """The server is killed: what was committed stays, what was open is gone."""
        self.is_down = True
        if self._holder is not None:
            self.roll_back(self._holder)

    def _require(self, session: DatabaseSession) -> None:
        if self._holder is not session:
            raise ConnectionGone("the server has closed this connection")
        self._touched = self._loop.now

    def _watch_idle(self, session: DatabaseSession) -> None:
        self._touched = self._loop.now
        self._loop.call_at_true_time(self._loop.now + IDLE_SECONDS, self._end_idle, session, host=self.host)

    def _end_idle(self, session: DatabaseSession) -> None:
        if self._holder is not session:
            return
        if self._loop.now - self._touched < IDLE_SECONDS - 0.001:  # the sum of two times is not exact
            self._loop.call_at_true_time(self._touched + IDLE_SECONDS, self._end_idle, session, host=self.host)
            return
        self._stage.note(self.host.name, "rolled back", because="its client was silent")
        self.roll_back(session)

    def _release(self) -> None:
        """Everybody who waits looks again: the first one gets the lock."""
        self._holder = None
        while self._waiting:
            waiter = self._waiting.popleft()
            if not waiter.done():
                waiter.set_result(None)


class SimulatedTx:
    """An open transaction, as an adapter of a driver would have it (`retrysafe.transactions.base.AsyncTx`)."""

    dialect = SQLITE
    dialect_name: DialectName = "sqlite"

    def __init__(self, database: SimulatedDatabase, session: DatabaseSession) -> None:
        self._database, self._session = database, session

    @property
    def handle(self) -> SimulatedTx:
        return self

    async def send(self, statement: Statement) -> Rows:
        return await self._database.send(self._session, statement.sql, statement.values)

    async def flush(self) -> None:
        """Nothing is pending."""

    async def write(self, about: str, what: str) -> None:
        """What the application itself writes."""
        now = self._database._loop.now
        values = {"about": about, "what": what, "at": now}
        await self._database.send(self._session, "INSERT INTO effects VALUES (:about, :what, :at)", values)

    async def has(self, about: str, what: str) -> bool:
        """Whether the application has written such a row."""
        values = {"about": about, "what": what}
        sql = "SELECT 1 FROM effects WHERE about = :about AND what = :what"
        return bool(await self._database.send(self._session, sql, values))


@lru_cache(maxsize=1)
def build_image() -> bytes:
    """The bytes of an empty database with our tables. Built once: a migration takes longer than a history."""
    connection = sqlite3.connect(":memory:", isolation_level=None)

    def send(statement: Statement) -> Rows:
        return list(connection.execute(statement.sql, statement.values))

    follow(migrations.upgrade(SQLITE, NAMES), send)
    connection.execute(EFFECTS)
    return connection.serialize()


_spare: list[sqlite3.Connection] = []
"""Connections of histories that nobody looks at any more, with the statements that they have compiled: to compile them
again takes as long as to run them."""
MAX_SPARE = 4


def keep_spare(connection: sqlite3.Connection) -> None:
    """Called when nobody can look at its rows any more. Not by `__del__`: the garbage collector closes a connection
    that it finds in the same cycle (since Python 3.13)."""
    if len(_spare) < MAX_SPARE:
        _spare.append(connection)


def open_database() -> sqlite3.Connection:
    """An empty database with our tables."""
    while _spare:
        connection = _spare.pop()
        if empty_database(connection):
            return connection
        connection.close()
    connection = sqlite3.connect(":memory:", isolation_level=None, cached_statements=256, check_same_thread=False)
    connection.deserialize(build_image())
    return connection


@lru_cache(maxsize=1)
def read_first_rows() -> tuple[int, list[tuple[str, str]]]:
    """The version of the schema, and the rows that a new database has."""
    connection = sqlite3.connect(":memory:")
    connection.deserialize(build_image())
    rows = connection.execute(f"SELECT name, value FROM {NAMES.meta}").fetchall()
    version: int = connection.execute("PRAGMA schema_version").fetchone()[0]
    return version, rows


def empty_database(connection: sqlite3.Connection) -> bool:
    """Make a used database a new one; False: somebody has changed its tables."""
    version, rows = read_first_rows()
    if connection.in_transaction:
        connection.execute("ROLLBACK")
    if connection.execute("PRAGMA schema_version").fetchone()[0] != version:
        return False
    connection.execute("BEGIN")
    for table in (NAMES.keys, NAMES.outbox, NAMES.receipts, NAMES.meta, "effects", "sqlite_sequence"):
        connection.execute(f"DELETE FROM {table}")
    connection.executemany(f"INSERT INTO {NAMES.meta} (name, value) VALUES (?, ?)", rows)
    connection.execute("COMMIT")
    return True
