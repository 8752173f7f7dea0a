"""The other half: clients that make a key per logical operation, keep it over retries and restarts, and know
when to stop.

`retrysafe.client.httpx`, `.requests` and `.stripe` are the adapters; each needs only its own library.
"""

from __future__ import annotations

from typing import Any

from retrysafe.client.budget import Budget
from retrysafe.client.errors import KeyTooOld, RetriesError, UnrepeatableBody
from retrysafe.client.flow import Trail
from retrysafe.client.journal import Entry, Journal
from retrysafe.client.operation import Operation, operation
from retrysafe.client.settings import Ambient, Retries

__all__ = [
    "Ambient",
    "Budget",
    "Entry",
    "Journal",
    "KeyTooOld",
    "Operation",
    "Retries",
    "RetriesError",
    "Trail",
    "UnrepeatableBody",
    "operation",
    "trail",
]


def trail(response: Any) -> Trail | None:
    """What happened to the call behind a response of httpx or requests: its key, how often it was sent, and why."""
    found = getattr(response, "extensions", None)
    told = found.get("retrysafe") if isinstance(found, dict) else getattr(response, "retrysafe", None)
    return told if isinstance(told, Trail) else None
