"""retrysafe makes every write safe to retry: the public names. Start with `RetrySafe`; docs/ explains the rest."""

from __future__ import annotations

from retrysafe.core.keys import Key, derive
from retrysafe.core.records import Answer
from retrysafe.engine.heartbeat import Lease, current_lease
from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.sealing import KeyRing
from retrysafe.errors import RetrySafeError
from retrysafe.policy import Policy
from retrysafe.stores.registry import open_async_store, open_store

__all__ = [
    "Answer",
    "Key",
    "KeyRing",
    "Lease",
    "Policy",
    "RetrySafe",
    "RetrySafeError",
    "current_lease",
    "derive",
    "open_async_store",
    "open_store",
]

__version__ = "0.1.0"
