"""A list that examines a bounded number of records reads that many, whatever is finished beside them."""

from __future__ import annotations

from pathlib import Path
from uuid import uuid4

import psycopg
import pytest

from retrysafe.core.ops import List
from retrysafe.core.states import State
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.names import build_names, split_options
from retrysafe.testing.builders import claim, complete
from tests.opening import store_url
from tests.waiting import until

FINISHED, EXAMINED = 200_000, 1_000
ROUNDS = 12
"""More than five: from the sixth on, psycopg prepares a statement, and after five more PostgreSQL may keep one plan for
all its values."""

READ = "SELECT coalesce(sum(idx_tup_read), 0) FROM pg_stat_user_indexes WHERE relname = %s"
CONNECTED = "SELECT count(*) FROM pg_stat_activity WHERE application_name = %s"


@pytest.mark.store("postgres")
def test_a_list_of_released_records_reads_as_many_as_it_may(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Released records have a time at which they expire. So have all that are finished, and PostgreSQL read the whole
    index of those times besides, once it had one plan for all values."""
    name = f"lists-{uuid4().hex}"
    url = f"{store_url(request, tmp_path, 'postgres')}&application_name={name}"
    server, options = split_options(url, frozenset({"table"}))
    table = build_names(options["table"]).keys
    with psycopg.connect(server.partition("?")[0], autocommit=True) as db:
        store = open_store(url)
        store.migrate()
        store.execute(complete(store.execute(claim("done", now=None)), now=None))
        found = db.execute(f"SELECT * FROM {table} LIMIT 0".encode())
        others = ", ".join(each.name for each in found.description or () if each.name != "id")
        db.execute(
            f"INSERT INTO {table} (id, {others}) SELECT sha256(convert_to(n::text, 'UTF8')), {others} "
            f"FROM {table}, generate_series(1, {FINISHED}) AS n".encode()
        )
        db.execute(f"VACUUM ANALYZE {table}".encode())
        wanted = List("default", State.RELEASED, kind="webhook", limit=50, examine=EXAMINED)
        for _ in range(ROUNDS):
            assert store.execute(wanted).records == ()
        assert db.execute(CONNECTED, [name]).fetchall() != [(0,)]
        store.close()  # a connection that ends says what it has read
        until(lambda: db.execute(CONNECTED, [name]).fetchall() == [(0,)], 60, "the end of its connections")
        ((read,),) = db.execute(READ, [table.strip('"')]).fetchall()
    assert read < ROUNDS * 3 * EXAMINED
