"""Records that benchmarks write straight into Dynoxide's file are what the server itself would have written."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from typing import Any

import pytest
from benchmarks.crowded import record
from benchmarks.dynoxide import Rows, fill, to_rows

from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.stores.dynamodb.items import to_item
from retrysafe.stores.registry import open_store
from tests.servers.dynamodb import DynoxideServer, client_of

TABLE = "retrysafe"


@pytest.fixture(scope="module")
def server() -> Iterator[DynoxideServer]:
    """A server of its own: filling stops it for a moment."""
    server = DynoxideServer()
    server.start()
    store = open_store(server.url)
    store.migrate()
    store.close()
    yield server
    server.stop()


def read_rows(server: DynoxideServer, made: Record) -> Rows:
    """What the server wrote of a record, with its texts parsed."""
    name = f"B:{made.id.hex()}"
    with sqlite3.connect(f"file:{server.folder}/db.sqlite?mode=ro", uri=True) as db:
        item = db.execute(f'SELECT * FROM "{TABLE}" WHERE pk = ?', [name]).fetchone()
        index = db.execute(f'SELECT * FROM "{TABLE}::gsi::by_state" WHERE table_pk = ?', [name]).fetchone()
    db.close()
    return parse(Rows(item, index))


def parse(rows: Rows) -> Any:
    (name, sort, item, *rest), (*keys, projected) = rows
    return name, sort, json.loads(item), rest, keys, json.loads(projected)


@pytest.mark.parametrize("number", [0, 1, 20])
def test_a_row_is_what_the_server_writes(server: DynoxideServer, number: int) -> None:
    made = record(number)
    client = client_of(server.url)
    client.put_item(TableName=TABLE, Item=to_item(made, 1))
    client.close()
    assert parse(to_rows(made)) == read_rows(server, made)


def test_filled_records_are_read_listed_and_found_by_state(server: DynoxideServer) -> None:
    made = [record(number) for number in range(50)]
    fill(server, TABLE, made)
    store = open_store(server.url)
    assert [store.execute(Lookup(each.id)).record for each in made] == made
    listed = {each.id for each in store.execute(List(limit=100)).records}
    assert {each.id for each in made} <= listed
    released = {each.id for each in store.execute(List(state=State.RELEASED, limit=100)).records}
    assert {each.id for each in made if each.state is State.RELEASED} <= released
    store.close()
