"""The other half: clients that make a key per logical operation, keep it over retries and restarts, and know
when to stop.

`retrysafe.client.httpx`, `.requests` and `.stripe` are the adapters; each needs only its own library.
"""

from __future__ import annotations

from typing import Any

from retrysafe.client.budget import Budget
from retrysafe.client.errors import KeyTooOld, RetriesError, UnrepeatableBody
from retrysafe.client.flow import AttemptLog
from retrysafe.client.journal import Entry, Journal
from retrysafe.client.operation import Operation, operation
from retrysafe.client.settings import Clock, Retries
from retrysafe.core.deprecation import renamed_names

__all__ = [
    "AttemptLog",
    "Budget",
    "Clock",
    "Entry",
    "Journal",
    "KeyTooOld",
    "Operation",
    "Retries",
    "RetriesError",
    "UnrepeatableBody",
    "operation",
    "trail",
]


def trail(response: Any) -> AttemptLog | None:
    """What happened to the call behind a response of httpx or requests: its key, how often it was sent, and why."""
    found = getattr(response, "extensions", None)
    told = found.get("retrysafe") if isinstance(found, dict) else getattr(response, "retrysafe", None)
    return told if isinstance(told, AttemptLog) else None


__getattr__ = renamed_names("retrysafe.client", {"Ambient": "Clock", "Trail": "AttemptLog"})
