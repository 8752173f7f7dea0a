"""One payment in a transaction, by a process that kills itself at a given point. Run by test_crashes.py.

Points are before and after each statement (ours and the user's) and before and after the commit. Point 0 is never
reached: it runs to the end and says how many there were.
"""

from __future__ import annotations

import os
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import psycopg
import pymysql

from retrysafe import Answer, Policy, RetrySafe
from retrysafe.core.keys import Key
from retrysafe.core.records import Fingerprint
from retrysafe.engine.guard import Task
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.sql.dialect import Statement
from retrysafe.transactions import Tx, find_source, run

KEY = Key("pay-7", "acct-1")
TASK = Task(KEY, "default", "", Fingerprint("test1", b"same", 4), Policy(failures="release"))
ANSWER = Answer(201, {"paid": 7})


class Points:
    def __init__(self, die_at: int) -> None:
        self.passed = 0
        self._die_at = die_at

    def __call__(self) -> None:
        self.passed += 1
        if self.passed == self._die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def around(self, action: Callable[..., Any], *args: Any) -> Any:
        self()
        result = action(*args)
        self()
        return result


class PointedTx:
    """A transaction whose statements are points."""

    def __init__(self, tx: Tx, point: Points) -> None:
        self.handle, self.dialect, self.dialect_name, self.flush = tx.handle, tx.dialect, tx.dialect_name, tx.flush
        self._tx = tx
        self._point = point

    def send(self, statement: Statement) -> Any:
        return self._point.around(self._tx.send, statement)


class PointedSource:
    def __init__(self, given: Any, point: Points) -> None:
        self._source = find_source(given, "sync")
        self._point = point

    @contextmanager
    def begin(self) -> Iterator[Any]:
        self._point()
        with self._source.begin() as tx:
            yield PointedTx(tx, self._point)
            self._point()
        self._point()


def pay(url: str, die_at: int) -> int:
    safe = RetrySafe(url)
    point = Points(die_at)
    mysql = url.startswith(("mysql", "mariadb"))
    mark = "?" if url.startswith("sqlite") else "%s"

    def body(tx: Any) -> Answer:
        for table in ("orders", "charges"):
            execute = tx.cursor().execute if mysql else tx.execute
            point.around(execute, f"INSERT INTO {table} (value) VALUES ({mark})", ["7"])
        return ANSWER

    def connect() -> Any:
        if url.startswith("sqlite"):
            return sqlite3.connect(url.partition("///")[2])
        if mysql:
            return pymysql.connect(**parse_url(url).connect)
        return psycopg.connect(url.partition("?")[0])

    ended = run(safe, TASK, PointedSource(connect, point), body)
    point()
    safe.close()
    assert ended.answer == ANSWER
    return point.passed
