"""`retrysafe operations module:safe`: what is declared, what is under way, and going on with one of them."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from retrysafe.cli.load import load_safe
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import STATES, State
from retrysafe.core.times import iso
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import OperationChanged, UsageError
from retrysafe.operations.diagram import diagram
from retrysafe.operations.journal import Journal, ledger, next_of
from retrysafe.operations.operation import Operation

PAGE = 200


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "operations",
        help="draw operations, list their runs, show a ledger, go on with one",
        description="Without an option: what is declared. --show and --resume take the id of a run, or its key.",
    )
    parser.add_argument("safe", metavar="MODULE:SAFE", help="your RetrySafe, with its operations")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--diagram", action="store_true", help="every operation as a Mermaid flowchart")
    what.add_argument("--list", action="store_true", help="runs, those that are not finished first")
    what.add_argument("--show", metavar="ID", help="one run and its ledger")
    what.add_argument("--resume", metavar="ID", help="go on with one run from its recovery point, now")
    what.add_argument("--undo", metavar="ID", help="undo one run: every step that began, in reverse")
    parser.add_argument(
        "--because",
        default="",
        metavar="TEXT",
        help="with --undo, and with --resume of a run whose outcome is unknown: what showed that it did not happen",
    )
    parser.add_argument("--name", help="only the operation of this name")
    parser.add_argument("--state", choices=sorted(STATES), help="only runs in this state")
    parser.add_argument("--limit", type=int, default=50, help="how many runs at most (50)")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    safe = load_safe(given.safe)
    try:
        if given.diagram:
            return draw(declared(safe, given.name))
        if given.list:
            return list_runs(safe, given)
        if given.show:
            return show(find(safe, given.show), as_json=given.json)
        if given.resume:
            record = find(safe, given.resume)
            return ended(safe, record, lambda operation: operation.resume_id(record.id, given.because))
        if given.undo:
            record = find(safe, given.undo)
            return ended(safe, record, lambda operation: operation.undo_id(record.id, given.because))
        return describe(declared(safe, given.name))
    finally:
        safe.close()


def declared(safe: RetrySafe, name: str | None) -> list[Operation]:
    found = [each for each in safe.operations.values() if name in (None, each.name)]
    if name is not None and not found:
        known = ", ".join(sorted(safe.operations)) or "none"
        raise UsageError(f"--name {name!r}: no such operation; there are {known}")
    return found


def describe(operations: list[Operation]) -> int:
    for operation in operations:
        print(operation.target)
        for step in operation.steps.values():
            more = [word for word, there in (("undo", step.undo), ("find", step.find)) if there is not None]
            more += ["never repeated"] if not step.repeatable else []
            print(f"  {step.kind:8} {step.name}{'  (' + ', '.join(more) + ')' if more else ''}")
    return 0


def draw(operations: list[Operation]) -> int:
    print("\n\n".join(diagram(operation) for operation in operations))
    return 0


# Runs -------------------------------------------------------------------------------------------


def list_runs(safe: RetrySafe, given: argparse.Namespace) -> int:
    if given.limit < 1:
        raise UsageError(f"--limit {given.limit}: ask for at least one")
    state = STATES.get(given.state or "")
    stream = runs(safe, state) if state is not None else unfinished_first(safe)
    wanted = (record for record in stream if given.name is None or record.target.partition("@")[0] == given.name)
    # No more is read than is shown: there may be millions behind it.
    found = sorted(islice(wanted, given.limit), key=lambda record: (record.state is State.COMPLETED, -record.created))
    for record in found:
        print(json.dumps(summary(record)) if given.json else line(record))
    if not given.json:
        more = "; there may be more, see --limit, --state and --name" if len(found) == given.limit else ""
        print(f"{len(found)} shown{more}", file=sys.stderr)
    return 0


def unfinished_first(safe: RetrySafe) -> Iterator[Record]:
    """What somebody may have to look at comes first, and is found by index; then what is done."""
    for state in (State.UNCERTAIN, State.CLAIMED):
        yield from runs(safe, state)
    yield from runs(safe, State.RELEASED, resting=True)
    yield from runs(safe, State.COMPLETED)


def runs(safe: RetrySafe, state: State | None, *, resting: bool = False) -> Iterator[Record]:
    """Operations have their version in their target; guards and functions have not."""
    cursor = ""
    while True:
        page = safe.execute(List(safe.namespace, state, cursor=cursor, limit=PAGE, resting=resting))
        yield from (record for record in page.records if "@" in record.target)
        cursor = page.cursor
        if not cursor:
            return


def find(safe: RetrySafe, wanted: str) -> Record:
    """By id, by the first eight or more digits of it, or by key."""
    if len(wanted) == 64 and all(digit in "0123456789abcdef" for digit in wanted):
        record = safe.execute(Lookup(bytes.fromhex(wanted))).record
        if record is not None and record.namespace == safe.namespace:
            return record
    found = [
        each
        for each in runs(safe, None)
        if each.key == wanted or (len(wanted) >= 8 and each.id.hex().startswith(wanted))
    ]
    if len(found) != 1:
        which = "; ".join(f"{each.id.hex()[:16]} ({each.target}, {each.scope})" for each in found[:10])
        raise UsageError(f"{wanted!r} names {len(found)} runs{': ' + which if which else ''}; give the id of one")
    return found[0]


def summary(record: Record) -> dict[str, Any]:
    return {
        "id": record.id.hex(),
        "operation": record.target,
        "key": record.key,
        "scope": record.scope,
        "state": record.state.value,
        "point": record.point,
        "attempt": record.attempt,
        "created": iso(record.created),
        "note": record.note,
    }


def line(record: Record) -> str:
    note = f"  {record.note}" if record.note else ""
    at = f"at {record.point}" if record.point else "at the start"
    what = f"{record.id.hex()[:16]}  {record.state.value:9}  {record.target}  {record.key}"
    return f"{what}  {at}  attempt {record.attempt}{note}"


def show(record: Record, *, as_json: bool) -> int:
    journal = Journal.decode(record.progress)
    if as_json:
        told = {"cause": journal.cause, "next": what_next(record, journal), "ledger": ledger(journal)}
        print(json.dumps({**summary(record), **told}))
        return 0
    for name, value in summary(record).items():
        print(f"{name:10} {value}")
    if journal.cause:
        print(f"{'cause':10} {journal.cause}")
    for number, entry in enumerate(ledger(journal), 1):
        error = f"  {entry['error']}" if entry["error"] else ""
        print(f"  {number:2}. {entry['step']:24} {entry['state']:8} {entry['result'][:80]}{error}")
    if what_next(record, journal):
        print(f"{'next':10} {what_next(record, journal)}")
    return 0


def what_next(record: Record, journal: Journal) -> str:
    return "" if record.state is State.COMPLETED else next_of(journal, record.point)


def ended(safe: RetrySafe, record: Record, go: Callable[[Operation], Any]) -> int:
    operation = safe.operations.get(record.target)
    if operation is None:
        raise OperationChanged(record.target, "this code does not know it")
    made = go(operation)
    if inspect.isawaitable(made):
        made = wait_for(made)
    how = "it was finished before" if made.replayed else "finished"
    print(f"{how}: {made.answer.status} {made.answer.body.decode('utf-8', 'replace')[:2000]}")
    return 0
