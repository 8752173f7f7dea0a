"""`retrysafe audit`: who changed what by hand, when and why."""

from __future__ import annotations

import argparse
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import make_progress_reporter, print_json, print_note, print_table, shorten
from retrysafe.cli.parsing import add_json
from retrysafe.cli.session import open_session
from retrysafe.core.times import format_time
from retrysafe.engine.audit import AuditRow
from retrysafe.errors import UsageError
from retrysafe.operators.audit_rows import AuditSearch
from retrysafe.operators.record_search import EXAMINED_PAGE_RECORDS

COLUMNS = ("at", "by", "action", "records", "outcome", "because")
WIDTHS = (20, 12, 18, 12, 8)


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "audit",
        help="who changed what by hand, and why",
        description="Lists the audit rows of an application, in the order of time. A row names records by ids and "
        "holds no key, scope or body. Rows are kept for 400 days.",
        takes_url=True,
        examples=("retrysafe audit sqlite:///app.db", "retrysafe audit --record 5f3a9c01 --json"),
    )
    parser.add_argument("--namespace", help="the application (default: the setting, else 'default')")
    parser.add_argument("--record", metavar="ID", help="only actions on this record or job: its id or first digits")
    parser.add_argument("--limit", type=int, default=50, help="print the newest, at most this many (50)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    with open_session(args) as session:
        namespace, wanted = session.namespace, (args.record or "").lower()
        newest: list[AuditRow] = []
        if not session.capabilities.lists_by_id:
            print_note(f"no index of {session.capabilities.name} has audit rows: every record is read")
        for row in AuditSearch(session, limit=None, report=make_progress_reporter(), examine=EXAMINED_PAGE_RECORDS):
            if wanted and not any(each.startswith(wanted) for each in row.records):
                continue
            newest = [*newest, row][-args.limit :]
    if args.json:
        for row in newest:
            print_json(summarize_row(row))
    else:
        shown = print_table(COLUMNS, map(format_row, newest), WIDTHS)
        print_note(f"{shown} shown" if shown else f"none in namespace {namespace!r}; --namespace NAME shows another's")
    return exits.DONE


def summarize_row(row: AuditRow) -> dict[str, Any]:
    return {**row._asdict(), "at": format_time(row.at), "records": list(row.records)}


def format_row(row: AuditRow) -> tuple[str, ...]:
    return (
        format_time(row.at), shorten(row.actor, 12), row.action, describe_records(row), row.outcome,
        shorten(row.because, 80),
    )  # fmt: skip


def describe_records(row: AuditRow) -> str:
    """Which records: one by its id, several by their number. A command on more than a row can name says in its result
    how many it changed."""
    if len(row.records) == 1:
        return row.records[0][:12]
    counted = (row.result.get(name) for name in ("erased", "reaped", "changed"))
    number = next((each for each in counted if isinstance(each, int)), len(row.records))
    return f"{number} record{'' if number == 1 else 's'}"
