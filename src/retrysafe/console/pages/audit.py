"""Audit: who did what by hand, why, and what came of it. Newest first, within a number of days."""

from __future__ import annotations

from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.visit import Visit
from retrysafe.core.times import DAY_MICROS
from retrysafe.errors import UsageError
from retrysafe.operators.audit_rows import AuditSearch, read_newest

EXAMINED_ROWS = 2_000
SCANNED_ROWS = 10_000
"""How many records of any kind are read for one page, where a store has no order of time for audit rows."""
SHOWN_ROWS = 200
DAYS = (1, 7, 30, 400)


def show_audit(visit: Visit) -> ConsoleResponse:
    days = read_days(visit.request.param("days", "7"))
    wanted = visit.request.param("record").lower()
    by_id = visit.session.capabilities.lists_by_id
    since = max(1, visit.now - days * DAY_MICROS)
    search = AuditSearch(
        visit.session,
        since=since,
        limit=EXAMINED_ROWS if by_id else SCANNED_ROWS,
        examine=SCANNED_ROWS,
        cursor=visit.request.param("cursor"),
    )
    found = list(search)
    if by_id and not search.complete:
        found = read_newest(visit.session, since, EXAMINED_ROWS // 2 if wanted else SHOWN_ROWS) or found
    rows = [row for row in found if not wanted or any(each.lower().startswith(wanted) for each in row.records)]
    return visit.render(
        "audit.html",
        title="Audit",
        rows=rows[: -SHOWN_ROWS - 1 : -1],
        next_url=visit.request.url("/audit", days=days, record=wanted, cursor=search.next_cursor)
        if search.next_cursor
        else "",
        bounded=not search.complete or len(rows) > SHOWN_ROWS,
        days=days,
        choices=DAYS,
        wanted=wanted,
    )


def read_days(text: str) -> int:
    if text not in map(str, DAYS):
        raise UsageError(f"days {text!r}: give one of {', '.join(map(str, DAYS))}")
    return int(text)
