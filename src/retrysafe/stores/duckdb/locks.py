"""The locks of keys, for transactions on the user's own connections.

DuckDB has no advisory locks, and needs none: one process has the file, so its threads can ask each other. Not holding
one harms nobody (the second of two commits is refused): it spares a run that would be rolled back.
"""

from __future__ import annotations

import threading

LockName = tuple[str, int]
"""The file and the number of the key."""

_held: dict[LockName, object] = {}
_guard = threading.Lock()


def try_lock(name: LockName, owner: object) -> bool:
    """Whether `owner` holds it now. Taking it again is no harm."""
    with _guard:
        return _held.setdefault(name, owner) is owner


def release_locks(owner: object) -> None:
    """All that it holds."""
    with _guard:
        for name in [name for name, holder in _held.items() if holder is owner]:
            del _held[name]
