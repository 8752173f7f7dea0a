"""A commit that is still on its way when its client has already given up: PostgreSQL carries it out all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from retrysafe import Answer
from retrysafe.transactions.on_psycopg import PsycopgTx
from tests.operations.world import Ordering, make_world

LATE = 0.5
"""Seconds a commit takes at the server: a trigger that fires at the end of the transaction sleeps so long."""


class GivesUp:
    """Sends the commit and closes the connection without waiting for the reply, as often as it should."""

    def __init__(self, url: str, times: int) -> None:
        self.url = url
        self.times = times

    @contextmanager
    def begin(self) -> Iterator[PsycopgTx]:
        with psycopg.connect(self.url, autocommit=True) as db:
            db.execute("BEGIN")
            try:
                yield PsycopgTx(db)
            except BaseException:
                db.execute("ROLLBACK")
                raise
            if not self.times:
                db.execute("COMMIT")
                return
            self.times -= 1
            db.pgconn.send_query(b"COMMIT")
            assert db.pgconn.flush() == 0
            db.pgconn.finish()
            raise psycopg.OperationalError("the connection broke at the commit")


@pytest.mark.store("postgres")
@pytest.mark.parametrize("times", [1, 2])
def test_a_step_is_not_run_again_while_its_commit_is_on_its_way(
    request: pytest.FixtureRequest, tmp_path: Path, times: int
) -> None:
    """The record is renewed before it is read: that waits for the row the late commit holds."""
    w = make_world(request, tmp_path, "postgres", "sync")
    slow = f"{w.orders}_slow"
    w.sql(
        f"CREATE FUNCTION {slow}() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$ BEGIN PERFORM pg_sleep({LATE}); RETURN NULL; END $$"
    )
    w.sql(
        f"CREATE CONSTRAINT TRIGGER late AFTER INSERT ON {w.orders} DEFERRABLE INITIALLY DEFERRED "
        f"FOR EACH ROW EXECUTE FUNCTION {slow}()"
    )
    w.safe.tx = GivesUp(w.database, times)
    ordering = Ordering(w)
    first: Any = ordering()
    assert first == Answer(201, {"order": 1, "charge": "ch_0"})
    assert ordering() == first
    assert (w.items(), ordering.calls, len(w.jobs())) == (["a"], ["insert_order", "charge", "finish"], 1)
    w.close()
