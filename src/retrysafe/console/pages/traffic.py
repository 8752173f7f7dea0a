"""Requests, for developers: what an API was asked as it comes, with its key, what became of it, and which fields of the
body changed since the key was sent last."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.request_log import FILE_NAME, FieldChange, LogFile, SeenRequest, compare_fields
from retrysafe.console.visit import Visit

SHOWN_REQUESTS = 100


class ShownRequest(NamedTuple):
    seen: SeenRequest
    sends: int
    """How often this key was sent to this address until then."""
    changes: list[FieldChange]
    """What changed since the key was sent first."""


def annotate(requests: list[SeenRequest]) -> list[ShownRequest]:
    """Each request with what was sent under its key before. Oldest first."""
    first: dict[tuple[str, str, str], SeenRequest] = {}
    sends: dict[tuple[str, str, str], int] = {}
    found = []
    for seen in requests:
        place = (seen.method, seen.path, seen.key)
        sends[place] = sends.get(place, 0) + 1
        before = first.setdefault(place, seen)
        changes = compare_fields(before.fields, seen.fields) if seen.key and before is not seen else []
        found.append(ShownRequest(seen, sends[place] if seen.key else 0, changes))
    return found


def show_requests(visit: Visit) -> ConsoleResponse:
    path = visit.console.request_log
    shown = annotate(LogFile(path).read())[: -SHOWN_REQUESTS - 1 : -1] if path is not None else []
    return visit.render("requests.html", title="Requests", shown=shown, path=path, file_name=FILE_NAME)
