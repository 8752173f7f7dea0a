"""`retrysafe tail`: what happens to open keys, as it happens.

A store keeps no list of events. This command looks at the open keys again and again and prints the differences: a key
that was claimed and finished between two looks is not seen. `safe.events` in the application sees every event."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from retrysafe.cli import exits
from retrysafe.cli.output import print_json, print_line, print_note, shorten
from retrysafe.cli.parsing import add_json
from retrysafe.cli.session import Session, open_session
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.core.times import format_time
from retrysafe.engine.why import state_for_people
from retrysafe.errors import UsageError

MAX_WATCHED = 2_000
PAGE_ROWS = 500


class Change(NamedTuple):
    event: str
    record: Record


Seen = Mapping[bytes, tuple[str, int, str]]
"""By id: the state as people see it, the attempt and the recovery point."""


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "tail",
        help="what happens to open keys, as it happens",
        description="Looks at the open keys every few seconds and prints what changed: claimed, advanced, uncertain, "
        "taken over, completed, released. A key that is claimed and finished between two looks is not seen; the "
        f"application's events see all. At most {MAX_WATCHED} open keys are watched.",
        takes_url=True,
        examples=("retrysafe tail --every 1", "retrysafe tail --json | jq 'select(.event == \"uncertain\")'"),
    )
    parser.add_argument("--namespace", help="only this application (all)")
    parser.add_argument("--every", type=float, default=1.0, metavar="S", help="seconds between two looks (1)")
    parser.add_argument("--times", type=int, metavar="N", help="stop after this many looks")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if not args.every > 0:
        raise UsageError(f"--every {args.every}: give a number of seconds above zero")
    with open_session(args) as session:
        now, records = look(session, args.namespace)
        seen = note(records, now)
        print_note(f"watching {len(seen)} open keys of {session.where}; Ctrl-C stops")
        looks = 1
        while args.times is None or looks < args.times:
            time.sleep(args.every)
            now, records = look(session, args.namespace)
            for change in compare(seen, records, now, lambda each: session.execute(Lookup(each)).record):
                print_change(args, change, now)
            seen = note(records, now)
            looks += 1
    return exits.DONE


def look(session: Session, namespace: str | None) -> tuple[int, dict[bytes, Record]]:
    """The store's time, and the open records."""
    found: dict[bytes, Record] = {}
    for state in (State.UNCERTAIN, State.CLAIMED):
        cursor = ""
        while len(found) < MAX_WATCHED:
            page = session.execute(List(namespace, state, cursor=cursor, limit=PAGE_ROWS))
            found |= {record.id: record for record in page.records}
            cursor = page.cursor
            if not cursor:
                break
    return session.read_time(), found


def note(records: Mapping[bytes, Record], now: int) -> Seen:
    return {each.id: (state_for_people(each, now), each.attempt, each.point) for each in records.values()}


def compare(seen: Seen, records: Mapping[bytes, Record], now: int, read: Any) -> list[Change]:
    """What happened between two looks. `read` reads a record that is not open any more."""
    changes = []
    for record in records.values():
        before, state = seen.get(record.id), state_for_people(record, now)
        if before is None or before[0] != state:
            changes.append(Change(state, record))
        elif before[1] != record.attempt:
            changes.append(Change("taken over", record))
        elif before[2] != record.point:
            changes.append(Change("advanced", record))
    for record_id in seen.keys() - records.keys():
        record = read(record_id)
        if record is not None:
            changes.append(Change(state_for_people(record, now), record))
    return changes


def print_change(args: argparse.Namespace, change: Change, now: int) -> None:
    record = change.record
    if args.json:
        print_json(
            {
                "at": format_time(now),
                "event": change.event,
                "id": record.id.hex(),
                "kind": record.kind,
                "target": record.target,
                "attempt": record.attempt,
                "point": record.point or None,
                "note": record.note,
            }
        )
    else:
        at = f" at {record.point}" if record.point else ""
        why = f"  {shorten(record.note, 80)}" if record.note else ""
        print_line(
            f"{format_time(now)}  {change.event:10}  {record.id.hex()[:12]}  {record.target}  "
            f"#{record.attempt}{at}{why}"
        )
    sys.stdout.flush()
