"""A row that somebody else has locked, on a real PostgreSQL: its owner's writes give up in time and are tried again,
and nobody else's lease suffers (I28, I33)."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import psycopg
import pytest
from psycopg import sql

from retrysafe import RetrySafe, current_lease
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable
from retrysafe.policy import Policy
from retrysafe.testing.builders import advance, claim, complete, record_of, release, renew, suspect
from tests.opening import COLOURS, open_migrated, patient, unique, with_option
from tests.waiting import until

pytestmark = pytest.mark.store("postgres")

PATIENCE = 120.0
IDLE = "120s"


@pytest.fixture
def table() -> str:
    return unique("held_")


@pytest.fixture
def url(postgres_url: str, table: str) -> str:
    return with_option(patient("postgres", postgres_url), "table", table)


@pytest.fixture
def other(postgres_url: str) -> Iterator[psycopg.Connection[tuple[object, ...]]]:
    """Somebody else's connection. The server ends its transaction when it is idle for too long: who would wait for it
    without a limit fails then instead of hanging."""
    with psycopg.connect(postgres_url, options=f"-c idle_in_transaction_session_timeout={IDLE}") as connection:
        yield connection
        connection.rollback()


def lock(connection: psycopg.Connection[tuple[object, ...]], table: str, record_id: bytes) -> None:
    query = sql.SQL("SELECT 1 FROM {} WHERE id = %s FOR UPDATE").format(sql.Identifier(f"{table}_keys"))
    assert connection.execute(query, [record_id]).fetchone() is not None


@pytest.mark.parametrize("colour", COLOURS)
def test_no_write_of_an_owner_waits_without_a_limit(
    url: str, table: str, other: psycopg.Connection[tuple[object, ...]], colour: str
) -> None:
    do = open_migrated(url, colour)
    held = record_of(do(claim("k", lease=600, now=None)))
    lock(other, table, held.id)
    for op in (renew(held, now=None), advance(held, now=None), suspect(held, now=None), release(held, now=None)):
        with pytest.raises(StoreUnavailable):
            do(op)
    with pytest.raises(StoreUnavailable):
        do(complete(held, now=None))
    other.rollback()
    assert do(complete(held, now=None)) is True
    do.close()


def test_a_held_row_costs_nobody_else_its_lease(
    url: str, table: str, other: psycopg.Connection[tuple[object, ...]]
) -> None:
    """The heartbeat of the whole process stood behind one row; and the held call's own completion outlasts it."""
    safe = RetrySafe(url)
    safe.migrate()
    locked = threading.Event()
    ids: dict[int, bytes] = {}

    @safe.once("slow:{n}", policy=Policy(lease=2.0, failures="release"))
    def slow(n: int) -> str:
        lease = current_lease()
        assert lease is not None
        ids[n] = lease.id
        if n == 0:
            assert locked.wait(PATIENCE)
            return "held"
        before = record(safe, lease.id).lease_until
        until(lambda: record(safe, lease.id).lease_until > before + 2_500_000, PATIENCE, "beats beside the held row")
        # Not at once: a process that stood still has a lease again only after its next beat.
        until(lambda: lease.fits(0.0), PATIENCE, "a lease that is kept")
        return "free"

    answers: dict[int, str] = {}
    first = threading.Thread(target=lambda: answers.update({0: slow(0)}))
    first.start()
    until(lambda: 0 in ids, PATIENCE, "the first call")
    lock(other, table, ids[0])
    assert slow(1) == "free"
    locked.set()
    until(lambda: waits_for_a_lock(safe, url), PATIENCE, "a write of the first call that waits")
    other.rollback()
    first.join(PATIENCE)
    assert answers == {0: "held"}
    assert record(safe, ids[0]).state is State.COMPLETED
    safe.close()


def record(safe: RetrySafe, record_id: bytes) -> Record:
    found = safe.execute(Lookup(record_id)).record
    assert found is not None
    return found


def waits_for_a_lock(safe: RetrySafe, url: str) -> bool:
    plain = url.partition("?")[0]
    with psycopg.connect(plain, autocommit=True) as admin:
        query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()"
        (count,) = admin.execute(query).fetchone() or (0,)
        return bool(count)
