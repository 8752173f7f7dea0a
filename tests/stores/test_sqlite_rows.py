"""SQLite: a row that is read as the arguments of a function is the row that a plain SELECT gives."""

from __future__ import annotations

import gc
import sqlite3
import weakref
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Claim, Complete
from retrysafe.core.records import Fence
from retrysafe.errors import StoreError
from retrysafe.stores.sqlite.connection import OwnConnection, build_row_query
from retrysafe.stores.sqlite.file import SqliteFile
from retrysafe.testing.builders import claim, complete

pytestmark = pytest.mark.store("sqlite")

QUERY = build_row_query("retrysafe_keys")


@pytest.fixture
def file(tmp_path: Path) -> Any:
    file = SqliteFile(tmp_path / "app.db")
    file.prepare()
    yield file
    file.close()


def store(file: SqliteFile, key: str, **answer: Any) -> Claim:
    op = claim(key, now=None)
    reply = file.execute(op)
    done: Complete = complete(reply, now=None, **answer)
    assert file.execute(done)
    return op


def test_it_is_the_row_of_a_plain_select(file: SqliteFile) -> None:
    ops = [store(file, "whole"), store(file, "empty"), claim("open", now=None)]
    file.execute(ops[-1])
    connection = file.connect()
    for op in ops:
        plain = connection.execute(QUERY.plain, (op.id,)).fetchone()
        kept = connection.read_row(QUERY, op.id)
        assert kept == plain
        assert [type(value) for value in kept or ()] == [type(value) for value in plain]
    connection.close()


def test_no_row_is_none_also_after_another_was_read(file: SqliteFile) -> None:
    there, connection = store(file, "there"), file.connect()
    assert connection.read_row(QUERY, there.id) is not None
    assert connection.read_row(QUERY, claim("absent").id) is None
    connection.close()


def test_a_value_that_is_no_text_is_named_in_the_drivers_words_and_no_row_is_left_behind(file: SqliteFile) -> None:
    """The row of a read that failed must not be the answer of the next one: that would be a false replay."""
    broken, absent, connection = store(file, "broken"), claim("absent"), file.connect()
    connection.execute("UPDATE retrysafe_keys SET target = cast(x'ff' AS text) WHERE id = ?", (broken.id,))
    with pytest.raises(sqlite3.OperationalError, match="Could not decode to UTF-8 column 'target'"):
        connection.read_row(QUERY, broken.id)
    assert connection.read_row(QUERY, absent.id) is None
    connection.close()
    with pytest.raises(StoreError, match="column 'target'"):
        file.execute(broken)


def test_an_interrupted_read_leaves_no_row_behind(file: SqliteFile) -> None:
    there, connection = store(file, "there"), file.connect()
    connection.set_progress_handler(lambda: 1, 1)
    with pytest.raises(sqlite3.OperationalError, match="interrupted"):
        connection.read_row(QUERY, there.id)
    connection.set_progress_handler(None, 0)
    assert connection.read_row(QUERY, claim("absent").id) is None
    connection.close()


@pytest.mark.filterwarnings("ignore:unclosed database")
def test_a_connection_that_nobody_closed_is_freed(file: SqliteFile) -> None:
    """SQLite holds the functions of a connection, so they must not hold the connection."""
    connection = sqlite3.connect(file.path, factory=OwnConnection)
    freed: list[object] = []
    watch = weakref.ref(connection, freed.append)
    del connection
    gc.collect()  # sqlite3's own cache of statements holds the connection
    assert freed == [watch]


def test_an_owner_reads_its_own_claim(file: SqliteFile) -> None:
    op = claim("owned", now=None)
    first = file.execute(op)
    assert first.record is not None
    again = file.execute(op)
    assert (again.granted, again.record) == (True, first.record)
    assert Fence(first.record.attempt, first.record.token) == Fence(1, op.token)
