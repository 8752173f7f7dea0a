"""`retrysafe reap`: delete expired records now, as the worker's reaper does."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import ProgressLine, age_seconds, format_age, format_count, print_json, print_note
from retrysafe.cli.parsing import add_json, add_reason
from retrysafe.cli.session import Audit, AuditNotWritten, Session, make_entry, open_session
from retrysafe.cli.signals import gate
from retrysafe.core.backlog import Backlog
from retrysafe.core.ops import Reap
from retrysafe.engine.audit import AuditEntry
from retrysafe.errors import UsageError

BATCH_ROWS = 100
PAUSE_SECONDS = 0.01


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "reap",
        help="delete expired records now",
        description="Deletes the expired records of one application in small batches, as the worker's reaper "
        "does. Unfinished work never expires. Without --yes it only says how many there are.",
        takes_url=True,
        examples=("retrysafe reap", "retrysafe reap --because 'the disk is full' --yes"),
    )
    parser.add_argument("--namespace", help="the application (default: the setting, else 'default')")
    parser.add_argument("--limit", type=int, default=1_000_000, help="delete at most this many (1000000)")
    parser.add_argument("--yes", action="store_true", help="do it; without this it only counts")
    add_reason(parser)
    add_json(parser, "print one JSON object")
    parser.set_defaults(run=run)


def delete_expired(session: Session, limit: int, report: Callable[[int], None]) -> int:
    """Delete in batches with pauses, so that claims are not slowed down. Returns how many went. `report` is called with
    the number so far."""
    reaped, progress = 0, ProgressLine("deleted")
    while reaped < limit:
        wanted = min(BATCH_ROWS, limit - reaped)
        gate.check()
        gone = session.execute(Reap(wanted, namespace=session.namespace))
        reaped += gone
        report(reaped)
        progress.advance(reaped)
        if gone < wanted:
            break
        time.sleep(PAUSE_SECONDS)
    progress.end()
    return reaped


def note_progress(audit: Audit, reaped: int) -> None:
    audit.result = {"reaped": reaped}
    if reaped % 10_000 < BATCH_ROWS:
        audit.keep_alive()


def write_late_row(session: Session, entry: AuditEntry, reaped: int) -> None:
    """Write the audit row after the deletion. Raises AuditNotWritten if the store is still too full for it."""
    try:
        with session.act(entry) as audit:
            audit.result = {"reaped": reaped}
    except AuditNotWritten as error:
        known = f"{format_count(reaped, 'record')} deleted, and the store still takes no audit row of it"
        raise AuditNotWritten(str(error), f"{known}; make room by other means, too") from error


def run(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    with open_session(args) as session:
        if not args.yes:
            found = session.execute(Backlog(session.namespace))
            more = "or more " if found.truncated else ""
            if args.json:
                lag = age_seconds(found.oldest_reapable, found.now)
                print_json({"reapable": found.reapable, "truncated": found.truncated, "lag_seconds": lag, "reaped": 0})
            else:
                age = format_age(found.now - found.oldest_reapable) if found.oldest_reapable else "-"
                print(f"{found.reapable} {more}to reap, the oldest expired {age} ago; add --yes to delete them")
            return exits.DONE
        entry = make_entry(args, "reap", limit=args.limit)
        try:
            with gate.hold(), session.act(entry) as audit:
                reaped = delete_expired(session, args.limit, lambda so_far: note_progress(audit, so_far))
        except AuditNotWritten as error:
            # A full store refuses new records, and deleting is what makes room.
            print_note(f"no audit row yet: {error}")
            reaped = delete_expired(session, args.limit, lambda so_far: None)
            write_late_row(session, entry, reaped)
    if args.json:
        print_json({"reapable": 0, "truncated": False, "lag_seconds": None, "reaped": reaped})
    else:
        print(f"{reaped} deleted")
    return exits.DONE
