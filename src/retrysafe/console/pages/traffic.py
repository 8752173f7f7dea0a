"""Requests, for developers: what an API was asked as it comes, with its key, what became of it, and which fields of the
request changed since it ran under this key."""

from __future__ import annotations

from typing import NamedTuple

from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.request_log import FILE_NAME, FieldChange, LogFile, SeenRequest, compare_fields
from retrysafe.console.visit import Visit

SHOWN_REQUESTS = 100


class ShownRequest(NamedTuple):
    seen: SeenRequest
    sends: int
    """How often this caller had sent this key until then; 0 without a key."""
    changes: list[FieldChange]
    """What is different from the request that ran under this key."""
    remark: str
    """Instead of changes, if there are none."""


def annotate(requests: list[SeenRequest]) -> list[ShownRequest]:
    """Each request with how it differs from the one that ran under its key. Oldest first."""
    runs: dict[tuple[str, str], SeenRequest] = {}
    sends: dict[tuple[str, str], int] = {}
    found = []
    for seen in requests:
        whose = (seen.caller, seen.key)
        sends[whose] = sends.get(whose, 0) + 1 if seen.key else 0
        run = None if seen.ran or not seen.key else runs.get(whose)
        changes = compare_fields(run.list_parts(), seen.list_parts()) if run is not None and not seen.replayed else []
        found.append(ShownRequest(seen, sends[whose], changes, find_remark(seen, run)))
        if seen.ran:
            runs[whose] = seen
    return found


def find_remark(seen: SeenRequest, run: SeenRequest | None) -> str:
    """What to say where no change is shown."""
    if not seen.refused or seen.problem_type != "mismatch":
        return "nothing" if run is not None else "–"
    return "no field that is kept here" if run is not None else "the request that ran is not in the file"


def show_requests(visit: Visit) -> ConsoleResponse:
    path = visit.console.request_log
    shown = annotate(LogFile(path).read())[: -SHOWN_REQUESTS - 1 : -1] if path is not None else []
    return visit.render("requests.html", title="Requests", shown=shown, path=path, file_name=FILE_NAME)
