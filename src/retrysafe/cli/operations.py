"""`retrysafe operations module:safe`: list and draw operations, list their runs, show, resume and undo a run."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Any

from retrysafe.cli import record_search
from retrysafe.cli.import_object import load_safe
from retrysafe.cli.keys import NO_RECORD_ID, describe_state
from retrysafe.cli.record_search import (
    ID_DIGITS,
    MAX_EXAMINED_RECORDS,
    RecordQuery,
    RecordSearch,
    cursor_before,
    make_progress_reporter,
)
from retrysafe.core.keys import Key
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import STATES, State
from retrysafe.core.times import format_time
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import OperationChanged, UsageError
from retrysafe.operations.diagram import draw_diagram
from retrysafe.operations.journal import OperationJournal, build_ledger, describe_next_step
from retrysafe.operations.operation import Operation


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "operations",
        help="list and draw operations, list their runs, show, resume and undo a run",
        description="Without an option it lists the declared operations. --show, --resume and --undo take the id of a "
        "run, or its key.",
    )
    parser.add_argument("safe", metavar="MODULE:SAFE", help="your RetrySafe, with its operations")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--diagram", action="store_true", help="draw every operation as a Mermaid flowchart")
    what.add_argument("--list", action="store_true", help="list runs, unfinished ones first")
    what.add_argument("--show", metavar="ID", help="show one run and its ledger")
    what.add_argument("--resume", metavar="ID", help="resume one run now, from its recovery point")
    what.add_argument("--undo", metavar="ID", help="undo one run: every step that began, in reverse order")
    parser.add_argument(
        "--because",
        default="",
        metavar="TEXT",
        help="with --undo: the reason; with --resume of a run whose outcome is unknown: how you know that it did not "
        "happen",
    )
    parser.add_argument("--id", action="store_true", help="--show, --resume and --undo take an id, not a key")
    parser.add_argument("--name", help="only the operation of this name")
    parser.add_argument("--state", choices=sorted(STATES), help="only runs in this state")
    parser.add_argument("--limit", type=int, default=50, help="print at most this many runs (50)")
    parser.add_argument(
        "--examine",
        type=int,
        metavar="N",
        help=f"search at most this many records of each state ({MAX_EXAMINED_RECORDS})",
    )
    parser.add_argument(
        "--after", default="", metavar="CURSOR", help="with --list and --state: continue a list that ended at its limit"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object per line")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    safe = load_safe(args.safe)
    try:
        if args.diagram:
            return print_diagrams(find_operations(safe, args.name))
        if args.list:
            return list_runs(safe, args)
        if args.show:
            return print_run(find_run(safe, args.show, by_id=args.id), read_time(safe), as_json=args.json)
        if args.resume:
            record = find_run(safe, args.resume, by_id=args.id, to_act=True)
            return finish_run(safe, record, lambda operation: operation.resume_id(record.id, args.because))
        if args.undo:
            if not args.because.strip():
                raise UsageError("--undo needs --because TEXT: give the reason; it is stored in the ledger")
            record = find_run(safe, args.undo, by_id=args.id, to_act=True)
            return finish_run(safe, record, lambda operation: operation.undo_id(record.id, args.because))
        return print_operations(find_operations(safe, args.name))
    finally:
        safe.close()


def find_operations(safe: RetrySafe, name: str | None) -> list[Operation]:
    found = [each for each in safe.operations.values() if name in (None, each.name)]
    if name is not None and not found:
        known = ", ".join(sorted(safe.operations)) or "none"
        raise UsageError(f"--name {name!r}: no such operation; there are {known}")
    return found


def print_operations(operations: list[Operation]) -> int:
    for operation in operations:
        print(operation.target)
        for step in operation.steps.values():
            more = [word for word, there in (("undo", step.undo), ("find", step.find)) if there is not None]
            more += ["never repeated"] if not step.repeatable else []
            print(f"  {step.kind:8} {step.name}{'  (' + ', '.join(more) + ')' if more else ''}")
    return 0


def print_diagrams(operations: list[Operation]) -> int:
    print("\n\n".join(draw_diagram(operation) for operation in operations))
    return 0


# Runs -------------------------------------------------------------------------------------------


def list_runs(safe: RetrySafe, args: argparse.Namespace) -> int:
    for name, value in (("--limit", args.limit), ("--examine", args.examine)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: give 1 or more")
    state = STATES.get(args.state or "")
    if args.after and state is None:
        raise UsageError(f"--after {args.after}: a cursor belongs to one state; give --state too")
    runs = RunSearch(safe, args.examine)
    records = runs.iter_state(state, args.after) if state is not None else runs.iter_unfinished_first()
    named = (record for record in records if args.name is None or record.target.partition("@")[0] == args.name)
    # Read no more than is shown: the store may hold millions.
    found = sorted(islice(named, args.limit), key=lambda record: (record.state is State.COMPLETED, -record.created))
    now = read_time(safe)
    for record in found:
        print(json.dumps(summarize_run(record, now)) if args.json else format_line(record, now))
    if not args.json:
        more = "; there may be more, see --limit, --state and --name" if len(found) == args.limit else ""
        print(f"{len(found)} shown{more}", file=sys.stderr)
    for name, search in runs.unfinished:
        # "lapsed" is no state, so --state cannot continue it.
        how = (
            "search more with --examine N"
            if name == "lapsed"
            else f"continue with --state {name} --after {search.cursor}"
        )
        print(f"searched {search.examined:,} {name} records; there are more: {how}", file=sys.stderr)
    return 0


class RunSearch:
    """Finds the runs of operations among all records of an application. The target of a run holds the version of its
    operation after an "@"; the targets of guards and functions have none. At most `limit` records of each state are
    searched."""

    def __init__(self, safe: RetrySafe, limit: int | None = None) -> None:
        self._safe = safe
        self._limit = record_search.MAX_EXAMINED_RECORDS if limit is None else limit
        self.unfinished: list[tuple[str, RecordSearch]] = []
        """The states whose search ended at its limit, each with its search."""

    def iter_unfinished_first(self) -> Iterator[Record]:
        """Runs that a person may have to look at come first, and are found by an index. Completed runs come last."""
        for state in (State.UNCERTAIN, State.CLAIMED):
            yield from self.iter_runs(state)
        yield from self.iter_runs(State.RELEASED, resting=True)
        yield from self.iter_runs(State.COMPLETED)

    def iter_state(self, state: State, cursor: str = "") -> Iterator[Record]:
        """The runs in a state. Uncertain runs include lapsed ones that will become uncertain (as in `keys list`)."""
        yield from self.iter_runs(state, cursor=cursor)
        if state is State.UNCERTAIN and not cursor:
            lapsed = self.iter_runs(State.CLAIMED, lapsed=True)
            yield from (record for record in lapsed if record.on_lapse == "uncertain")

    def iter_runs(
        self, state: State | None, *, cursor: str = "", resting: bool = False, lapsed: bool = False
    ) -> Iterator[Record]:
        query = List(self._safe.namespace, state, cursor=cursor, resting=resting, lapsed=lapsed)
        search = RecordSearch(self._safe.execute, query, self._limit, make_progress_reporter())
        yield from (record for record in search if "@" in record.target)
        if search.cursor:
            name = state.value if state is not None else ""
            self.unfinished.append(("lapsed" if lapsed else name, search))


def read_time(safe: RetrySafe) -> int:
    """The store's time. Its clock decides which leases have lapsed."""
    return int(safe.execute(Lookup(NO_RECORD_ID)).now)


def find_run(safe: RetrySafe, wanted: str, *, by_id: bool = False, to_act: bool = False) -> Record:
    """Find one run by its id, by the first eight or more digits of its id, or by its key. The key of a direct call is
    looked up; the key of a request needs a search. With `to_act=True` both are done: a call and a request may have
    the same key, and the command must not act on the wrong run."""
    if by_id and not RecordQuery(wanted).digits:
        raise UsageError(f"--id {wanted!r}: an id is 8 to 64 digits, 0 to 9 and a to f; --list shows them")
    found = {each.id: each for each in _look_up(safe, wanted, by_id)}
    if not found or (to_act and not by_id):
        runs = RunSearch(safe)
        query = RecordQuery(wanted)
        named = (each for each in runs.iter_runs(None) if query.matches_id(each) or (each.key == wanted and not by_id))
        found |= {each.id: each for each in named}
        if runs.unfinished:
            raise UsageError(
                f"the search for {wanted!r} ended after {runs.unfinished[0][1].examined:,} records, and there are "
                "more: give its id, as --list shows it, and --id"
            )
    if len(found) != 1:
        which = "; ".join(f"{each.id.hex()[:16]} ({each.target}, {each.scope})" for each in list(found.values())[:10])
        raise UsageError(
            f"{wanted!r} names {len(found)} runs{': ' + which if which else ''}; give the id of one, and --id"
        )
    return next(iter(found.values()))


def _look_up(safe: RetrySafe, wanted: str, by_id: bool) -> Iterator[Record]:
    query = RecordQuery(wanted)
    digits = query.digits
    names = [] if by_id else sorted({operation.name for operation in safe.operations.values()})
    ids = [Key(wanted, name, "operation").id(safe.namespace) for name in names]
    for each in ids + ([bytes.fromhex(digits)] if len(digits) == ID_DIGITS else []):
        record = safe.execute(Lookup(each)).record
        if record is not None and record.namespace == safe.namespace:
            yield record
    if digits and safe.store.capabilities.lists_by_id:
        search = RecordSearch(safe.execute, List(cursor=cursor_before(digits)), record_search.MAX_EXAMINED_RECORDS)
        for record in takewhile(query.matches_id, search):
            if record.namespace == safe.namespace and "@" in record.target and len(digits) < ID_DIGITS:
                yield record


def summarize_run(record: Record, now: int) -> dict[str, Any]:
    return {
        "id": record.id.hex(),
        "operation": record.target,
        "key": record.key,
        "scope": record.scope,
        "state": record.state.value,
        "lapsed": record.lapsed(now),
        "point": record.point,
        "attempt": record.attempt,
        "created": format_time(record.created),
        "note": record.note,
    }


def format_line(record: Record, now: int) -> str:
    state = "lapsed" if record.lapsed(now) else record.state.value
    note = f"  {record.note}" if record.note else ""
    at = f"at {record.point}" if record.point else "at the start"
    what = f"{record.id.hex()[:16]}  {state:9}  {record.target}  {record.key}"
    return f"{what}  {at}  attempt {record.attempt}{note}"


def print_run(record: Record, now: int, *, as_json: bool) -> int:
    journal = OperationJournal.decode(record.progress)
    if as_json:
        details = {"cause": journal.cause, "next": describe_next(record, journal), "ledger": build_ledger(journal)}
        print(json.dumps({**summarize_run(record, now), **details}))
        return 0
    shown = summarize_run(record, now) | {"state": describe_state(record, now)}
    del shown["lapsed"]
    for name, value in shown.items():
        print(f"{name:10} {value}")
    if journal.cause:
        print(f"{'cause':10} {journal.cause}")
    for number, entry in enumerate(build_ledger(journal), 1):
        error = f"  {entry['error']}" if entry["error"] else ""
        print(f"  {number:2}. {entry['step']:24} {entry['state']:8} {entry['result'][:80]}{error}")
    if describe_next(record, journal):
        print(f"{'next':10} {describe_next(record, journal)}")
    return 0


def describe_next(record: Record, journal: OperationJournal) -> str:
    return "" if record.state is State.COMPLETED else describe_next_step(journal, record.point)


def finish_run(safe: RetrySafe, record: Record, call: Callable[[Operation], Any]) -> int:
    """Resume or undo a run with `call`, wait for it, and print its answer."""
    operation = safe.operations.get(record.target)
    if operation is None:
        raise OperationChanged(record.target, "this code does not declare it")
    result = call(operation)
    if inspect.isawaitable(result):
        result = wait_for(result)
    how = "it was finished before" if result.replayed else "finished"
    print(f"{how}: {result.answer.status} {result.answer.body.decode('utf-8', 'replace')[:2000]}")
    return 0
