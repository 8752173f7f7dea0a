"""A database that one history has used is given to a later one: as new, and not while somebody can still look at it."""

from __future__ import annotations

import gc

import pytest

from retrysafe.testing.simulation import Plan, World
from retrysafe.testing.simulation import database as module
from retrysafe.testing.simulation.database import NAMES, empty_database, open_database
from retrysafe.testing.simulation.local_shop import TOGETHER

CALM = Plan(purchases=1)


@pytest.fixture(autouse=True)
def no_spare(monkeypatch: pytest.MonkeyPatch) -> None:
    gc.collect()  # what other tests left
    monkeypatch.setattr(module, "_spare", [])


def dump(connection: object) -> list[str]:
    return list(connection.iterdump())  # type: ignore[attr-defined]


def test_a_used_database_is_as_a_new_one() -> None:
    new, used = open_database(), open_database()
    used.execute("INSERT INTO effects VALUES ('p1', 'a row', 1.0)")
    used.execute(
        f"INSERT INTO {NAMES.outbox} (id, topic, payload, order_key, created, attempts, due, token, dead, error)"
        " VALUES ('a', 't', x'', '', 0, 0, 0, x'', 0, '')"
    )
    used.execute(f"UPDATE {NAMES.meta} SET value = 'other'")
    used.execute("BEGIN")
    used.execute("INSERT INTO effects VALUES ('p2', 'not committed', 1.0)")
    assert empty_database(used)
    assert dump(used) == dump(new)


def test_a_database_with_other_tables_is_not_used_again() -> None:
    used = open_database()
    used.execute("CREATE TABLE mine (a)")
    module._spare.append(used)
    assert open_database() is not used


def test_what_a_history_left_stays_while_somebody_looks() -> None:
    first = World(3, TOGETHER, plan=CALM).run()
    connection, rows = first.actors["database"].connection, dump(first.actors["database"].connection)
    gc.collect()
    second = World(4, TOGETHER, plan=CALM).run()
    assert second.actors["database"].connection is not connection
    assert dump(connection) == rows
    del first, second
    gc.collect()
    assert connection in module._spare
