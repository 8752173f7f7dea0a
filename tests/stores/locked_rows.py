"""A store on whose server somebody else locks rows. Its writes wait until they are let go: which of two operations
comes first is then no matter of time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace

import pytest

from retrysafe.core.records import Record
from retrysafe.stores.mysql import aio as mysql_aio
from retrysafe.stores.mysql import apool as mysql_apool
from retrysafe.stores.mysql import pool as mysql_pool
from retrysafe.stores.postgres import aio as postgres_aio
from retrysafe.stores.postgres import deadline
from retrysafe.stores.postgres import sync as postgres_sync
from retrysafe.stores.postgres.dialect import DIALECT
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, record_of
from tests.faults.row_holders import HOLDERS, RowHolder
from tests.opening import patient, unique, with_option

WAIT_SECONDS = 120
LONG = replace(DIALECT, limit=f"patience AS (SELECT set_config('lock_timeout', '{WAIT_SECONDS}000', true))")
POOL = 4


class LockedRows:
    """The address of an empty store, its records, and who locks them."""

    def __init__(self, server: str, server_url: str) -> None:
        self.table = unique("locked_")
        self.url = with_option(with_option(patient(server, server_url), "table", self.table), "pool", str(POOL))
        self._open = lambda: HOLDERS[server](server_url)
        self.admin = self._open()
        with closing(open_store(self.url)) as store:
            store.migrate()

    def claim_all(self, count: int) -> list[Record]:
        with closing(open_store(self.url)) as store:
            return [record_of(store.execute(claim(f"k{n}", lease=600, now=None))) for n in range(count)]

    @contextmanager
    def locked(self, *records: Record) -> Iterator[RowHolder]:
        """The rows of these records are locked by another transaction."""
        with closing(self._open()) as other:
            other.lock(self.table, [each.id for each in records])
            yield other
            other.let_go()

    def count_waiting(self) -> int:
        """How many statements wait for rows now."""
        return self.admin.count_waiting(self.table)


def let_writes_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "STATEMENT_TIMEOUT_SECONDS", float(WAIT_SECONDS))
    for postgres in (postgres_aio, postgres_sync):
        monkeypatch.setattr(postgres, "DIALECT", LONG)
    for module in (mysql_pool, mysql_apool):
        settings = (*module.SETTINGS, f"SET SESSION innodb_lock_wait_timeout = {WAIT_SECONDS}")
        monkeypatch.setattr(module, "SETTINGS", settings)
    for module in (mysql_pool, mysql_aio):
        monkeypatch.setattr(module, "READ_TIMEOUT_SECONDS", WAIT_SECONDS)


@contextmanager
def build_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, server: str) -> Iterator[LockedRows]:
    let_writes_wait(monkeypatch)
    rows = LockedRows(server, request.getfixturevalue(f"{server}_url"))
    with closing(rows.admin):
        yield rows
