"""One key: its timeline, why it is in its state, what the next retry gets, and the actions that can apply."""

from __future__ import annotations

import hashlib
from typing import Any

from retrysafe.console.access import REVEAL
from retrysafe.console.messages import ConsoleResponse
from retrysafe.console.step_diagram import draw_operation
from retrysafe.console.timeline import build_timeline
from retrysafe.console.visit import Visit
from retrysafe.core.records import Record
from retrysafe.core.trace_context import read_traceparent
from retrysafe.engine.audit import AuditRow
from retrysafe.engine.why import explain, is_run
from retrysafe.operations.journal import OperationJournal, build_ledger
from retrysafe.operators.audit_rows import AuditSearch
from retrysafe.operators.follow_up import describe_action
from retrysafe.operators.key_actions import is_forgotten
from retrysafe.operators.runs import describe_next

EXAMINED_AUDIT_ROWS = 1_000
FIRST_ROW = 1
NO_DECISION = frozenset({"keys forget"})
"""What applies to a key that waits for nobody."""
SHOWN_HERE = frozenset({"operations show"})
"""Commands that only show: this page does it."""


def show_record(visit: Visit, id: str) -> ConsoleResponse:
    record = visit.find_record(id)
    return visit.render("record.html", **gather(visit, record))


def gather(visit: Visit, record: Record) -> dict[str, Any]:
    """Everything that the page of a record shows."""
    now = visit.now
    journal = read_journal(record)
    ledger = build_ledger(journal) if journal is not None else []
    rows, complete = find_audit_rows(visit, record)
    operation = visit.safe.operations.get(record.target)
    why, actions, seen = explain(record, now), find_actions(visit, record), describe_version(record, now)
    return {
        "title": "Key",
        "record": record,
        "now": now,
        "seen": seen,
        "changed": visit.request.param("seen") not in ("", seen),
        "why": why,
        "timeline": build_timeline(record, now, rows, ledger),
        "audit_complete": complete,
        "done": find_done(visit, record),
        "ledger": ledger,
        "next_step": describe_next(record, journal) if journal is not None else "",
        "diagram": draw_operation(operation, {}, ledger) if operation is not None else "",
        "actions": actions,
        "decisions": [each for each in actions if each not in NO_DECISION],
        "undecided": not NO_DECISION.issuperset(why.actions),
        "withheld": find_withheld(visit, record),
        "commands": list_commands(record, now),
        "can_reveal": has_bytes(record) and visit.may(REVEAL, record),
        "has_bytes": has_bytes(record),
        "trace_url": find_trace(visit, record),
        "revealed": None,
    }


def describe_version(record: Record, now: int) -> str:
    """Tells whether a record changed since a page was drawn, or what can be done with it: a lease lapses by itself."""
    whole = (record.state.value, record.attempt, record.advances, record.started, explain(record, now).actions)
    return hashlib.sha256(repr(whole).encode()).hexdigest()[:16]


def read_journal(record: Record) -> OperationJournal | None:
    """The journal of a run. None for other records, and where it cannot be read (sealed, or of a newer release)."""
    if not is_run(record):
        return None
    try:
        return OperationJournal.decode(record.progress)
    except (ValueError, KeyError, TypeError):
        return None


def find_audit_rows(visit: Visit, record: Record) -> tuple[list[AuditRow], bool]:
    """The rows that name this record, and whether all rows since its first claim were read."""
    since, bound = max(record.created, FIRST_ROW), EXAMINED_AUDIT_ROWS
    search = AuditSearch(visit.session, since=since, limit=bound, examine=bound)
    wanted = record.id.hex()
    rows = [row for row in search if wanted in row.records]
    return rows, search.complete


def find_done(visit: Visit, record: Record) -> AuditRow | None:
    """The audit row that an action led here with. It is looked up, not searched for, and must name this record."""
    row = visit.find_audit_row(visit.request.param("did"))
    return row if row is not None and record.id.hex() in row.records else None


def find_actions(visit: Visit, record: Record) -> list[str]:
    """What can apply to this record and may be done by this operator."""
    return [each for each in _list_applicable(visit, record) if visit.may(each, record)]


def _list_applicable(visit: Visit, record: Record) -> list[str]:
    """What can apply to this record. Runs need the code of their operation."""
    if record.namespace != visit.session.namespace:
        return []
    known = record.target in visit.safe.operations
    found = [each for each in explain(record, visit.now).actions if each not in SHOWN_HERE]
    return [each for each in found if known or not each.startswith("operations")]


def find_withheld(visit: Visit, record: Record) -> list[str]:
    """What applies to this record, and what `authorize` does not let this operator do."""
    if not visit.console.actions:
        return []
    return [each for each in _list_applicable(visit, record) if not visit.may(each, record)]


def list_commands(record: Record, now: int) -> list[str]:
    """The commands for what applies to this record, to be copied."""
    return [
        describe_action(each, record.id.hex()[:16], record.namespace, record.kind)
        for each in explain(record, now).actions
    ]


def has_bytes(record: Record) -> bool:
    return not is_forgotten(record)


def find_trace(visit: Visit, record: Record) -> str:
    parent = read_traceparent(record)
    return visit.console.trace_url.replace("{trace_id}", parent.split("-")[1]) if parent else ""
