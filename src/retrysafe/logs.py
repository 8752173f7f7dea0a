"""Events as structured log lines, by the standard library: `RetrySafe(url, on_event=log_event)`.

A line names the record by its id, which is a hash of the namespace, the scope and the key (S28).
"""

from __future__ import annotations

import logging

from retrysafe.engine.events import RecordEvent

WARNINGS = frozenset(("suspected", "uncertain", "mismatched", "lease_lost", "renew_failed", "store_failed", "job_dead"))
"""Events that wait for a person or point at a fault."""

_log = logging.getLogger("retrysafe.events")


def log_event(event: RecordEvent) -> None:
    """Log one event, with its parts as attributes of the log record."""
    level = logging.WARNING if event.name in WARNINGS else logging.INFO
    if _log.isEnabledFor(level):
        extra = {"retrysafe_event": event.name, "retrysafe_target": event.target, "retrysafe_id": event.id}
        _log.log(level, "%s %s %s", event.name, event.target, event.id, extra=extra)
