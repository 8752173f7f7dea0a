"""A statement that is planned while the table is small must not read all of it when it has grown."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe.core.ops import Op
from retrysafe.stores.postgres import batches, pipeline
from retrysafe.stores.postgres.dialect import DIALECT, parse_url
from retrysafe.stores.postgres.lines import Line
from retrysafe.stores.postgres.pipeline import PreparedNames, StatementRows
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.plans import SqlPlans
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


def run(
    session: psycopg.Connection[Any],
    texts: dict[str, str],
    ops: list[Op[Any]],
    prepared: PreparedNames,
    claims: batches.BatchStatement = batches.WHOLE_CLAIMS,
) -> list[Any]:
    sent = batches.group_by_kind(texts, ops, claims)
    parts = [batches.settings_part(texts), *(group.part for group in sent)]
    _, *answers = Line(session, 0).drive(pipeline.run_pipeline(session.pgconn, parts, prepared))
    return batches.read_replies(ops, sent, [StatementRows(answer, session) for answer in answers])


def rows_read_by_scanning(session: psycopg.Connection[Any], url: str) -> int:
    session.execute("SELECT pg_stat_force_next_flush()")
    name = parse_url(url).names.keys.strip('"')
    row = session.execute("SELECT seq_tup_read FROM pg_stat_user_tables WHERE relname = %s", [name]).fetchone()
    assert row is not None
    return int(row[0])


@pytest.mark.parametrize("analysed", [False, True], ids=["never analysed", "analysed while small"])
@pytest.mark.parametrize("claims", [batches.WHOLE_CLAIMS, batches.SHORT_CLAIMS], ids=["claims", "short claims"])
@pytest.mark.parametrize("settle", [complete, renew, release])
def test_batches_do_not_scan_a_table_that_grew_under_their_plans(
    session: psycopg.Connection[Any], url: str, settle: Any, claims: batches.BatchStatement, analysed: bool
) -> None:
    texts = SqlPlans(DIALECT, parse_url(url).names).texts
    prepared = PreparedNames(0)

    def go(ops: list[Op[Any]]) -> list[Any]:
        return run(session, texts, ops, prepared, claims)

    if analysed:  # then the planner knows that the table is one page, and reading that is what it would do
        go([claim(f"first{each}", now=0) for each in range(4)])
        session.execute("VACUUM ANALYZE " + parse_url(url).names.keys)
    for number in range(12):  # more than it takes for a statement's plan to be kept
        new: list[Op[Any]] = [claim(f"small{number}-{each}", now=0) for each in range(4)]
        run(session, texts, new, prepared, batches.LOOKED_UP_CLAIMS)
        held = go(new)
        assert go([settle(reply, now=1) for reply in held]) == [True] * 4
    for start in range(0, ROWS, 500):
        go([claim(f"grown{start + each}", now=0) for each in range(500)])
    before = rows_read_by_scanning(session, url)
    for number in range(10):
        held = go([claim(f"large{number}-{each}", now=0) for each in range(4)])
        assert go([settle(reply, now=1) for reply in held]) == [True] * 4
        again: list[Op[Any]] = [claim(f"large{number}-{each}", now=2) for each in range(4)]
        go(again)
        run(session, texts, again, prepared, batches.LOOKED_UP_CLAIMS)
    read = rows_read_by_scanning(session, url) - before
    assert read < ROWS, f"{read} rows were read by scanning the table"
    assert rows_read_from_indexes(session, url) < 5 * ROWS


def rows_read_from_indexes(session: psycopg.Connection[Any], url: str) -> int:
    """An index that is read from end to end is a scan by another name."""
    name = parse_url(url).names.keys.strip('"')
    row = session.execute("SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE relname = %s", [name]).fetchone()
    assert row is not None
    return int(row[0])


def test_the_settings_of_a_batch_end_with_it(session: psycopg.Connection[Any], url: str) -> None:
    texts = SqlPlans(DIALECT, parse_url(url).names).texts
    run(session, texts, [claim("a", now=0), claim("b", now=0)], PreparedNames(0))
    left = session.execute("SELECT name FROM pg_settings WHERE source = 'session' AND context = 'user'").fetchall()
    assert not {name for (name,) in left} & {"lock_timeout", "enable_seqscan", "enable_nestloop", "jit"}
