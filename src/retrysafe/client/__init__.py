"""HTTP clients that retry safely: one idempotency key per logical operation, kept over retries and restarts.

`retrysafe.client.httpx`, `.requests` and `.stripe` are the adapters. Each needs only its own library.
"""

from __future__ import annotations

from typing import Any

from retrysafe.client.budget import Budget
from retrysafe.client.errors import KeyTooOld, RetriesError, UnrepeatableBody
from retrysafe.client.flow import AttemptLog
from retrysafe.client.journal import Entry, Journal
from retrysafe.client.operation import ClientOperation, operation
from retrysafe.client.settings import Clock, Retries
from retrysafe.core.deprecation import renamed_names
from retrysafe.core.problem_names import problem_name

__all__ = [
    "AttemptLog",
    "Budget",
    "ClientOperation",
    "Clock",
    "Entry",
    "Journal",
    "KeyTooOld",
    "Retries",
    "RetriesError",
    "UnrepeatableBody",
    "operation",
    "problem_name",
    "trail",
]


def trail(response: Any) -> AttemptLog | None:
    """The attempt log of a response of httpx or requests: its key, how often it was sent, and why."""
    extensions = getattr(response, "extensions", None)
    log = extensions.get("retrysafe") if isinstance(extensions, dict) else getattr(response, "retrysafe", None)
    return log if isinstance(log, AttemptLog) else None


__getattr__ = renamed_names(
    "retrysafe.client", {"Ambient": "Clock", "Operation": "ClientOperation", "Trail": "AttemptLog"}
)
