"""SQL Server, on a real one: the contract suite in both colours, a race, and transactions on a pymssql connection.

Runs when RETRYSAFE_TEST_MSSQL_URL names an empty database; otherwise the closing report says "not run".
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pymssql
import pytest

from tests.servers import mssql

if not mssql.url():
    pytest.skip(mssql.NOT_RUN, allow_module_level=True)

from retrysafe import Answer, Policy, RetrySafe, open_store
from retrysafe.core.states import State
from retrysafe.errors import InProgress, NestedTransaction, TransactionSplit
from retrysafe.stores.diagnosis import diagnose
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, record_of
from retrysafe.testing.contract.claim import *  # noqa: F403
from retrysafe.testing.contract.expiry import *  # noqa: F403
from retrysafe.testing.contract.fence import *  # noqa: F403
from retrysafe.testing.contract.forget import *  # noqa: F403
from retrysafe.testing.contract.identity import *  # noqa: F403
from retrysafe.testing.contract.list_by_id import *  # noqa: F403
from retrysafe.testing.contract.listing import *  # noqa: F403
from retrysafe.testing.contract.many import *  # noqa: F403
from retrysafe.testing.contract.outbox import *  # noqa: F403
from retrysafe.testing.contract.settle import *  # noqa: F403
from retrysafe_mssql.dialect import parse_url
from tests.contract.conftest import TRANSPORTS
from tests.opening import open_migrated, unique, with_option

pytestmark = [pytest.mark.store("mssql"), pytest.mark.xdist_group("mssql")]

PREFIX = unique("contract_")
URL = with_option(mssql.url(), "table", PREFIX)
WAYS = [(colour, transport) for colour in ("sync", "async") for transport in TRANSPORTS]


def connect() -> Any:
    return pymssql.connect(**parse_url(mssql.url()).connect, autocommit=True)


def send(sql: str) -> list[Any]:
    with connect() as connection, connection.cursor() as cursor:
        cursor.execute(sql)
        return list(cursor.fetchall()) if cursor.description else []


@pytest.fixture(scope="module")
def opened() -> Iterator[dict[str, Do]]:
    stores = {colour: open_migrated(URL, colour) for colour in ("sync", "async")}
    send("IF OBJECT_ID('effects', 'U') IS NULL CREATE TABLE effects (value nvarchar(100) NOT NULL PRIMARY KEY)")
    yield stores
    for do in stores.values():
        do.close()
    for table in ("keys", "meta", "outbox", "receipts"):
        send(f"DROP TABLE [{PREFIX}_{table}]")
    send("DROP TABLE effects")


@pytest.fixture
def empty(opened: dict[str, Do]) -> dict[str, Do]:
    for table in (f"{PREFIX}_keys", f"{PREFIX}_outbox", "effects"):
        send(f"DELETE FROM [{table}]")
    return opened


@pytest.fixture(params=WAYS, ids="-".join)
def do(request: pytest.FixtureRequest, empty: dict[str, Do]) -> Do:
    colour, transport = request.param
    kept = empty[colour]
    return TRANSPORTS[transport](Do(kept.capabilities, kept, kept.many, kept.migrate, lambda: None))


def test_migrating_again_does_nothing(empty: dict[str, Do]) -> None:
    assert empty["sync"].migrate() == []


def test_the_doctor_can_ask(empty: dict[str, Do]) -> None:
    assert diagnose(URL).store.startswith("SQL Server ")


def test_one_winner_for_each_key(empty: dict[str, Do]) -> None:
    """I1: 16 threads reach for each key at the same moment, and once more when the leases have lapsed."""
    keys, threads = 50, 16
    store, gate = open_store(with_option(URL, "pool", str(threads))), threading.Barrier(threads)
    grants: list[tuple[int, int]] = []

    def racer() -> None:
        for now in (0, 31):
            for key in range(keys):
                gate.wait(120)
                reply = store.execute(claim(f"k{key}", lease=30, on_lapse="rerun", now=now))
                if reply.granted:
                    grants.append((key, record_of(reply).attempt))

    racers = [threading.Thread(target=racer) for _ in range(threads)]
    for each in racers:
        each.start()
    for each in racers:
        each.join()
    store.close()
    assert Counter(grants) == Counter((key, attempt) for key in range(keys) for attempt in (1, 2))


# Transactions -------------------------------------------------------------------------------------


@pytest.fixture
def safe(empty: dict[str, Do]) -> Iterator[RetrySafe]:
    with RetrySafe(URL) as made:
        yield made


def order(safe: RetrySafe, tx: Any, key: str, *steps: Any) -> bool:
    """Whether it was replayed."""
    with safe.transaction(tx, key=key, scope="s", policy=Policy(failures="release")) as opened:
        if not opened.replayed:
            for step in steps:
                if callable(step):
                    step()
                else:
                    with opened.handle.cursor() as cursor:
                        cursor.execute(step)
            opened.answer = Answer(201, {"done": key})
    return bool(opened.replayed)


def effect(value: str) -> str:
    return f"INSERT INTO effects (value) VALUES ('{value}')"


def test_work_and_receipt_commit_together(safe: RetrySafe) -> None:
    assert order(safe, connect, "k", effect("a")) is False
    assert order(safe, connect, "k", effect("b")) is True
    assert send("SELECT value FROM effects") == [("a",)]


def test_an_exception_rolls_both_back(safe: RetrySafe) -> None:
    def fail() -> None:
        raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        order(safe, connect, "k", effect("a"), fail)
    assert send("SELECT value FROM effects") == []
    assert order(safe, connect, "k", effect("a")) is False


def test_busy_while_another_holds_it(safe: RetrySafe) -> None:
    def rival() -> None:
        with pytest.raises(InProgress):
            order(safe, connect, "k", effect("b"))

    assert order(safe, connect, "k", effect("a"), rival) is False
    assert send("SELECT value FROM effects") == [("a",)]


def test_a_commit_in_the_middle_is_told(safe: RetrySafe, empty: dict[str, Do]) -> None:
    with pytest.raises(TransactionSplit):
        order(safe, connect, "k", effect("a"), "COMMIT TRANSACTION", effect("b"))
    assert send(f"SELECT state FROM [{PREFIX}_keys]") == [(State.UNCERTAIN.value,)]


def test_a_connection_without_autocommit_is_refused(safe: RetrySafe) -> None:
    with pymssql.connect(**parse_url(mssql.url()).connect) as connection, pytest.raises(NestedTransaction):
        order(safe, connection, "k", effect("a"))
