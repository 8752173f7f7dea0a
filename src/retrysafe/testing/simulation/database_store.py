"""A store in the user's own database: a recovery point, a receipt or a staged job commits with the user's writes.

The operations are the SQL plans that every SQL store uses. They take the same write lock as the user's transactions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from random import Random
from typing import Any, TypeVar

from retrysafe.core.ops import Op
from retrysafe.core.records import Record
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import LockNotAvailable, follow
from retrysafe.stores.sql import rows
from retrysafe.stores.sql.dialect import Statement
from retrysafe.stores.sql.names import TableNames
from retrysafe.stores.sql.plans import SqlPlans
from retrysafe.stores.sqlite.file import CAPABILITIES
from retrysafe.testing.simulation.database import NAMES, SimulatedDatabase
from retrysafe.testing.simulation.network import Network
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.testing.simulation.store import RemoteStore, StoreServer
from retrysafe.transactions.base import SQLITE, fill_now

R = TypeVar("R")

assert rows.COLUMNS[0] == "id"
ALL_RECORDS = f"SELECT {', '.join(rows.COLUMNS)} FROM {NAMES.keys} ORDER BY id"
ONE_RECORD = f"SELECT {', '.join(rows.COLUMNS)} FROM {NAMES.keys} WHERE id = ?"


class SqlRecords:
    """The records as a sync store: what `watch.py` looks at. Whoever calls it holds the write lock."""

    capabilities = replace(CAPABILITIES, clock="store")

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database = database
        self._records: Mapping[bytes, Record] = RecordTable(database)

    def execute(self, op: Op[R]) -> R:
        return follow(load_plans().plan_without_read(op), self._send)

    def execute_many(self, ops: Sequence[Op[Any]]) -> list[Any]:
        return [self.execute(op) for op in ops]

    def migrate(self) -> list[str]:
        return []

    def close(self) -> None:
        """Nothing is open."""

    def _send(self, statement: Statement) -> list[Any]:
        return self._database.connection.execute(statement.sql, fill_now(statement.values)).fetchall()


class RecordTable(Mapping[bytes, Record]):
    """The table of records, read as a mapping by id."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database, self._connection = database, database.connection
        self._all: tuple[int, list[Record]] = (-1, [])
        """All records, and at which state of the database they were read (`SimulatedDatabase.read_state`)."""
        self._found: dict[bytes, Record | None] = {}
        """The records that were looked for since the last change."""
        self._found_at = -1
        self._read: dict[bytes, tuple[tuple[Any, ...], Record]] = {}
        """The last row of each record, and the record that was read from it: most rows are looked at many times."""

    def __getitem__(self, record_id: bytes) -> Record:
        found: Record | None = self.get(record_id)
        if found is None:
            raise KeyError(record_id)
        return found

    def get(self, record_id: bytes, default: Any = None) -> Any:
        state = self._database.read_state()
        if state != self._found_at:
            self._found.clear()
            self._found_at = state
        elif record_id in self._found:
            known = self._found[record_id]
            return default if known is None else known
        row = self._connection.execute(ONE_RECORD, (record_id,)).fetchone()
        found = self._found[record_id] = None if row is None else self._read_record(row)
        return default if found is None else found

    def _read_record(self, row: tuple[Any, ...]) -> Record:
        known = self._read.get(row[0])
        if known is not None and known[0] == row:
            return known[1]
        record = rows.read_record(row)
        self._read[row[0]] = row, record
        return record

    def __iter__(self) -> Iterator[bytes]:
        return iter([record.id for record in self.values()])

    def values(self) -> list[Record]:  # type: ignore[override]  # one statement, instead of one for each key
        state = self._database.read_state()
        if self._all[0] != state:
            self._all = state, [self._read_record(row) for row in self._connection.execute(ALL_RECORDS)]
        return self._all[1]

    def __len__(self) -> int:
        found: int = self._connection.execute(f"SELECT count(*) FROM {NAMES.keys}").fetchone()[0]
        return found


@lru_cache(maxsize=1)
def load_plans() -> SqlPlans:
    return SqlPlans(SQLITE, NAMES)


class DatabaseStoreServer(StoreServer):
    """The store's end of the network, in the database."""

    def __init__(self, database: SimulatedDatabase) -> None:
        self._database = database
        super().__init__(database.host, SqlRecords(database), SqlRecords.capabilities)

    @property
    def is_down(self) -> bool:
        return self._database.is_down

    @is_down.setter
    def is_down(self, down: bool) -> None:
        if down:
            self._database.go_down()
        else:
            self._database.is_down = False

    def apply(self, ops: Sequence[Op[Any]]) -> Any:
        return self._apply_later(ops) if self._database.is_open else self._apply_now(ops)

    def _apply_now(self, ops: Sequence[Op[Any]]) -> list[Any]:
        """In one commit of their own, while nobody holds the lock."""
        connection = self._database.connection
        connection.execute("BEGIN IMMEDIATE")
        try:
            done = self.carry_out(ops)
            connection.execute("COMMIT")
        except BaseException:
            self._database.undo_changes()
            raise
        return done

    def choose_lock(self, chance: Random) -> bytes | None:
        """Strangers lock nothing here: the user's own transactions do."""
        return None

    def fail_over(self, seconds: float) -> int:
        """It has no replica."""
        return 0

    def open_client(self, network: Network) -> RemoteStore:
        return DatabaseStore(network, self)

    async def _apply_later(self, ops: Sequence[Op[Any]]) -> list[Any]:
        try:
            await self._database.wait_for_lock()
        except LockNotAvailable as error:
            raise StoreUnavailable(f"the simulated store is locked: {error}") from None
        return self._apply_now(ops)


def open_database_with_store(stage: SimulationStage) -> SimulatedDatabase:
    """For `Scenario.actors` of a scenario with `store="database"`."""
    database = SimulatedDatabase(stage)
    database.store_server = DatabaseStoreServer(database)
    return database


class DatabaseStore(RemoteStore):
    """The store of one application host (`retrysafe.stores.base.HasTables`)."""

    capabilities = SqlRecords.capabilities
    names: TableNames = NAMES
