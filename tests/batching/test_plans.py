"""A statement that is planned while the table is small must not read all of it when it has grown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe.core.ops import Op
from retrysafe.stores.postgres import batches
from retrysafe.stores.postgres.dialect import DIALECT, parse_url
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.plans import Plans
from retrysafe.testing.builders import claim, complete, release, renew
from tests.opening import store_url

pytestmark = pytest.mark.store("postgres")

ROWS = 4_000


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return store_url(request, tmp_path, "postgres")


@pytest.fixture
def session(url: str) -> Iterator[psycopg.Connection[Any]]:
    """One connection, as a lane would use it: statements that are used often are prepared, and their plans kept."""
    store = open_store(url)
    store.migrate()
    store.close()
    with psycopg.connect(url.partition("?")[0], autocommit=True) as connection:
        connection.execute("ALTER TABLE " + parse_url(url).names.keys + " SET (autovacuum_enabled = off)")
        yield connection


def run(session: psycopg.Connection[Any], texts: dict[str, str], ops: list[Op[Any]]) -> list[Any]:
    plan = batches.plan(texts, ops)
    sent = next(plan)
    cursor = session.execute(sent.sql, sent.values, prepare=None if sent.prepared else False, binary=True)
    try:
        plan.send(cursor.fetchall())
    except StopIteration as done:
        return list(done.value)
    raise AssertionError("a batch is one statement")


def rows_read_by_scanning(session: psycopg.Connection[Any], url: str) -> int:
    session.execute("SELECT pg_stat_force_next_flush()")
    name = parse_url(url).names.keys.strip('"')
    row = session.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = %s", [name]).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("settle", [complete, renew, release])
def test_batches_do_not_scan_a_table_that_grew_under_their_plans(
    session: psycopg.Connection[Any], url: str, settle: Any
) -> None:
    texts = Plans(DIALECT, parse_url(url).names).texts
    for number in range(12):  # more than it takes for a statement to be prepared, and for its plan to be kept
        held = run(session, texts, [claim(f"small{number}-{each}", now=0) for each in range(4)])
        assert run(session, texts, [settle(reply, now=1) for reply in held]) == [True] * 4
    for start in range(0, ROWS, 500):
        run(session, texts, [claim(f"grown{start + each}", now=0) for each in range(500)])
    before = rows_read_by_scanning(session, url)
    for number in range(10):
        held = run(session, texts, [claim(f"large{number}-{each}", now=0) for each in range(4)])
        assert run(session, texts, [settle(reply, now=1) for reply in held]) == [True] * 4
        run(session, texts, [claim(f"large{number}-{each}", now=2) for each in range(4)])
    read = rows_read_by_scanning(session, url) - before
    assert read < ROWS, f"{read} rows were read by scanning the table"
