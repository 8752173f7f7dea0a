"""The cost of taking jobs of a long order depends on the jobs taken, not on those that wait."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe.core.jobs import TakeJobs
from retrysafe.stores.postgres.dialect import DIALECT
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.names import build_names, split_options
from retrysafe.stores.sql.plans import SqlPlans
from tests.opening import store_url

WAITING, TAKEN = 20_000, 50

FILL = """
INSERT INTO {outbox} (id, topic, payload, order_key, created, attempts, due, token, dead, error, namespace)
SELECT md5(n::text), 'receipt', '', 'one', 0, 0, 0, '', 0, '', 'default' FROM generate_series(1, {waiting}) AS n
"""


@pytest.mark.store("postgres")
def test_a_take_from_a_long_order_reads_few_pages(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    url = store_url(request, tmp_path, "postgres")
    store = open_store(url)
    store.migrate()
    store.close()
    server, options = split_options(url, frozenset({"table"}))
    tables = build_names(options["table"])
    take = TakeJobs(TAKEN, b"token", 60_000_000, namespace="default", topics=("receipt",), others=False)
    statement = next(SqlPlans(DIALECT, tables)._take(take))
    with psycopg.connect(server.partition("?")[0], autocommit=True) as db:
        db.execute(FILL.format(outbox=tables.outbox, waiting=WAITING).encode())
        db.execute(f"ANALYZE {tables.outbox}".encode())
        (told,) = db.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {statement.sql}".encode(), statement.values)
    plan: dict[str, Any] = told[0][0]["Plan"]
    assert plan["Actual Rows"] == TAKEN
    pages = plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]
    assert pages < 100 * TAKEN, "it looked at every job that waits, for each that it took"
