"""One process: what keeps a fork from ruining the file.

DuckDB's own lock does not hold here. It is not inherited by a child, but everything else is: the open file, and the
memory that says it is open. A child that used it would write beside its parent; a child that merely ends would write
the parent's log into the file and delete it, and what the parent commits from then on goes into a file that has no
name any more, and is lost with the process. (So it is with DuckDB 2.0: tests/stores/test_duckdb_process.py.)

So a child is refused, and what it inherited is never destroyed in it.
"""

from __future__ import annotations

import ctypes
import os
import threading
from collections import Counter
from typing import Any

_open_counts: Counter[str] = Counter()
"""How often each file is open in this process."""
_inherited: set[str] = set()
"""The files that were open when this process was forked."""
_connections: dict[int, Any] = {}
"""One of each, so that a child can keep it for ever."""
_write_locks: dict[str, threading.RLock] = {}


def get_write_lock(path: str) -> threading.RLock:
    """Whose turn it is to write to a file, among the threads of this process."""
    return _write_locks.setdefault(path, threading.RLock())


def record_open(path: str, connection: Any) -> None:
    _open_counts[path] += 1
    _connections[id(connection)] = connection


def record_close(path: str, connection: Any) -> None:
    _open_counts[path] -= 1
    _connections.pop(id(connection), None)


def is_inherited(path: str) -> bool:
    return path in _inherited


def _after_fork() -> None:
    """In the child. As long as a connection is not destroyed, the database behind it is not closed either; one more
    reference than anybody will ever give back sees to that, also when the interpreter ends."""
    _inherited.update(path for path, count in _open_counts.items() if count > 0)
    for connection in _connections.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open_counts.clear()
    _connections.clear()
    _write_locks.clear()  # one may be held by a thread that is not here


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
