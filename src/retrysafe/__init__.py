"""retrysafe makes every write safe to retry: the public names. Start with `RetrySafe`; docs/ explains the rest."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from retrysafe import errors
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
    from retrysafe.web.asgi import IdempotencyMiddleware
    from retrysafe.worker import Worker

__all__ = [
    "Answer",
    "IdempotencyMiddleware",
    "Key",
    "KeyRing",
    "Lease",
    "Policy",
    "RetrySafe",
    "RetrySafeError",
    "Stop",
    "Undo",
    "Worker",
    "current_lease",
    "derive",
    "open_async_store",
    "open_store",
    "stage",
]

__version__ = "0.1.0"


_LAZY = {
    "Stop": "retrysafe.operations",
    "Undo": "retrysafe.operations",
    "stage": "retrysafe.operations",
    "Worker": "retrysafe.worker",
    "IdempotencyMiddleware": "retrysafe.web.asgi",
}


def __getattr__(name: str) -> Any:
    """Import a name at its first use, so that importing retrysafe stays cheap. Every error class is such a name."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    found = getattr(errors, name, None) if name[:1].isupper() else None
    if isinstance(found, type) and issubclass(found, RetrySafeError):
        return found
    raise AttributeError(f"module 'retrysafe' has no attribute {name!r}")
