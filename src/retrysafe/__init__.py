"""retrysafe makes every write safe to retry: the public names. Start with `RetrySafe`; docs/ explains the rest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrysafe.core.keys import Key, derive
from retrysafe.core.records import Answer
from retrysafe.engine.heartbeat import Lease, current_lease
from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.sealing import KeyRing
from retrysafe.errors import RetrySafeError
from retrysafe.policy import Policy
from retrysafe.stores.registry import open_async_store, open_store

if TYPE_CHECKING:
    from retrysafe.operations import Stop, Undo, stage

__all__ = [
    "Answer",
    "Key",
    "KeyRing",
    "Lease",
    "Policy",
    "RetrySafe",
    "RetrySafeError",
    "Stop",
    "Undo",
    "current_lease",
    "derive",
    "open_async_store",
    "open_store",
    "stage",
]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """What only operations need is imported when it is asked for: importing retrysafe stays cheap."""
    if name in ("Stop", "Undo", "stage"):
        from retrysafe import operations

        return getattr(operations, name)
    raise AttributeError(f"module 'retrysafe' has no attribute {name!r}")
