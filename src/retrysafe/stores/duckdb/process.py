"""What the process knows of its DuckDB files: which are open, who may write, and which keys are locked. DuckDB lets one
process use a file, so this state can be kept in memory.

A fork must not damage the file. DuckDB's own lock does not prevent that. A child process does not inherit the lock, but
it inherits everything else: the open file, and the memory that says that the file is open. If the child used it, both
processes would write. If the child only ended, it would write the parent's log into the file and delete the log; what
the parent commits from then on goes into a file without a name, and is lost with the process. (DuckDB 2.0 does this:
tests/stores/test_duckdb_process.py.) So a child is refused, and the child never destroys what it inherited.
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
"""All open connections, so that a child can keep them for ever."""
_write_locks: dict[str, threading.RLock] = {}


def get_write_lock(path: str) -> threading.RLock:
    """The lock for writes to a file, among the threads of this process."""
    return _write_locks.setdefault(path, threading.RLock())


def record_open(path: str, connection: Any) -> None:
    _open_counts[path] += 1
    _connections[id(connection)] = connection


def record_close(path: str, connection: Any) -> None:
    _open_counts[path] -= 1
    _connections.pop(id(connection), None)


def is_inherited(path: str) -> bool:
    """Whether the file was open in the parent when this process was forked."""
    return path in _inherited


def _after_fork() -> None:
    """Runs in the child. A database is not closed while a connection to it exists. One extra reference per connection
    keeps the connection alive, also when the interpreter ends."""
    _inherited.update(path for path, count in _open_counts.items() if count > 0)
    for connection in _connections.values():
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(connection))
    _open_counts.clear()
    _connections.clear()
    _write_locks.clear()  # a thread that does not exist in the child may hold one


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)


# Locks of keys, for transactions on the user's own connections --------------------------------------
#
# DuckDB has no advisory locks. These locks are not needed for correctness: of two commits of one key DuckDB refuses the
# second. They avoid a run that would be rolled back.

LockName = tuple[str, int]
"""The file, and the number of the key."""

_lock_owners: dict[LockName, object] = {}
_lock_owners_guard = threading.Lock()


def try_lock(name: LockName, owner: object) -> bool:
    """Take the lock if it is free. True if `owner` has it now; an owner may take its lock again."""
    with _lock_owners_guard:
        return _lock_owners.setdefault(name, owner) is owner


def release_locks(owner: object) -> None:
    """Release all locks of `owner`."""
    with _lock_owners_guard:
        for name in [name for name, holder in _lock_owners.items() if holder is owner]:
            del _lock_owners[name]
