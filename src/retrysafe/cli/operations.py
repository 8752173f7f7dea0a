"""`retrysafe operations module:safe`: what is declared, what is under way, and going on with one of them."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from itertools import islice, takewhile
from typing import Any

from retrysafe.cli import finding
from retrysafe.cli.finding import ALL_DIGITS, EXAMINED, Search, Wanted, cursor_before, telling
from retrysafe.cli.import_object import load_safe
from retrysafe.cli.keys import NOBODY, describe_state
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
    parser.add_argument("--id", action="store_true", help="what --show, --resume and --undo are given is an id, no key")
    parser.add_argument("--name", help="only the operation of this name")
    parser.add_argument("--state", choices=sorted(STATES), help="only runs in this state")
    parser.add_argument("--limit", type=int, default=50, help="how many runs at most (50)")
    parser.add_argument(
        "--examine", type=int, metavar="N", help=f"look at so many records of a state at most ({EXAMINED})"
    )
    parser.add_argument("--after", default="", metavar="CURSOR", help="with --list and --state: go on where it ended")
    parser.add_argument("--json", action="store_true", help="one JSON object per line")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    safe = load_safe(given.safe)
    try:
        if given.diagram:
            return print_diagrams(find_operations(safe, given.name))
        if given.list:
            return list_runs(safe, given)
        if given.show:
            return print_run(find_run(safe, given.show, by_id=given.id), read_time(safe), as_json=given.json)
        if given.resume:
            record = find_run(safe, given.resume, by_id=given.id, to_act=True)
            return finish_run(safe, record, lambda operation: operation.resume_id(record.id, given.because))
        if given.undo:
            if not given.because.strip():
                raise UsageError("--undo needs --because TEXT: say why it is undone; it stands in its ledger")
            record = find_run(safe, given.undo, by_id=given.id, to_act=True)
            return finish_run(safe, record, lambda operation: operation.undo_id(record.id, given.because))
        return print_operations(find_operations(safe, given.name))
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


def list_runs(safe: RetrySafe, given: argparse.Namespace) -> int:
    for name, value in (("--limit", given.limit), ("--examine", given.examine)):
        if value is not None and value < 1:
            raise UsageError(f"{name} {value}: ask for at least one")
    state = STATES.get(given.state or "")
    if given.after and state is None:
        raise UsageError(f"--after {given.after}: it goes on within one state; give --state too")
    runs = Runs(safe, given.examine)
    stream = runs.in_state(state, given.after) if state is not None else runs.unfinished_first()
    wanted = (record for record in stream if given.name is None or record.target.partition("@")[0] == given.name)
    # No more is read than is shown: there may be millions behind it.
    found = sorted(islice(wanted, given.limit), key=lambda record: (record.state is State.COMPLETED, -record.created))
    now = read_time(safe)
    for record in found:
        print(json.dumps(summarize_run(record, now)) if given.json else format_line(record, now))
    if not given.json:
        more = "; there may be more, see --limit, --state and --name" if len(found) == given.limit else ""
        print(f"{len(found)} shown{more}", file=sys.stderr)
    for name, search in runs.ended:
        cursor = f"go on with --state {name} --after {search.cursor}"
        how = "look at more with --examine N" if name == "lapsed" else cursor  # no state of its own to go on in
        print(f"looked at {search.looked:,} {name} records; there are more: {how}", file=sys.stderr)
    return 0


class Runs:
    """Runs of operations among all the other records of an application. They have their version in their target; guards
    and functions have not. Of each state so many are looked at, and no more."""

    def __init__(self, safe: RetrySafe, most: int | None = None) -> None:
        self._safe = safe
        self._most = finding.EXAMINED if most is None else most
        self.ended: list[tuple[str, Search]] = []
        """The states whose search was ended by its limit, and where."""

    def unfinished_first(self) -> Iterator[Record]:
        """What somebody may have to look at comes first, and is found by index; then what is done."""
        for state in (State.UNCERTAIN, State.CLAIMED):
            yield from self.of(state)
        yield from self.of(State.RELEASED, resting=True)
        yield from self.of(State.COMPLETED)

    def in_state(self, state: State, cursor: str = "") -> Iterator[Record]:
        """As people mean it: what is uncertain includes what lapsed and will be called so (as in `keys list`)."""
        yield from self.of(state, cursor=cursor)
        if state is State.UNCERTAIN and not cursor:
            lapsed = self.of(State.CLAIMED, lapsed=True)
            yield from (record for record in lapsed if record.on_lapse == "uncertain")

    def of(
        self, state: State | None, *, cursor: str = "", resting: bool = False, lapsed: bool = False
    ) -> Iterator[Record]:
        wanted = List(self._safe.namespace, state, cursor=cursor, resting=resting, lapsed=lapsed)
        search = Search(self._safe.execute, wanted, self._most, telling())
        yield from (record for record in search if "@" in record.target)
        if search.cursor:
            name = state.value if state is not None else ""
            self.ended.append(("lapsed" if lapsed else name, search))


def read_time(safe: RetrySafe) -> int:
    """The store's time: what lapsed is said by its clock."""
    return int(safe.execute(Lookup(NOBODY)).now)


def find_run(safe: RetrySafe, wanted: str, *, by_id: bool = False, to_act: bool = False) -> Record:
    """By id, by the first eight or more digits of it, or by key: that of a call of the operation at once, that of a
    request by a search. Whoever acts on it must not take a call's run where a request has the same key."""
    if by_id and not Wanted(wanted).digits:
        raise UsageError(f"--id {wanted!r}: an id is 8 to 64 digits, 0 to 9 and a to f; --list shows them")
    found = {each.id: each for each in _look_up(safe, wanted, by_id)}
    if not found or (to_act and not by_id):
        runs = Runs(safe)
        named = (each for each in runs.of(None) if _begins(each, wanted) or (each.key == wanted and not by_id))
        found |= {each.id: each for each in named}
        if runs.ended:
            raise UsageError(
                f"{wanted!r} was searched for among {runs.ended[0][1].looked:,} records, and there are more: give its "
                "id, as --list shows it, and --id"
            )
    if len(found) != 1:
        which = "; ".join(f"{each.id.hex()[:16]} ({each.target}, {each.scope})" for each in list(found.values())[:10])
        raise UsageError(
            f"{wanted!r} names {len(found)} runs{': ' + which if which else ''}; give the id of one, and --id"
        )
    return next(iter(found.values()))


def _look_up(safe: RetrySafe, wanted: str, by_id: bool) -> Iterator[Record]:
    digits = Wanted(wanted).digits
    names = [] if by_id else sorted({operation.name for operation in safe.operations.values()})
    ids = [Key(wanted, name, "operation").id(safe.namespace) for name in names]
    for each in ids + ([bytes.fromhex(digits)] if len(digits) == ALL_DIGITS else []):
        record = safe.execute(Lookup(each)).record
        if record is not None and record.namespace == safe.namespace:
            yield record
    if digits and safe.store.capabilities.lists_by_id:
        search = Search(safe.execute, List(cursor=cursor_before(digits)), finding.EXAMINED)
        for record in takewhile(lambda each: _begins(each, wanted), search):
            if record.namespace == safe.namespace and "@" in record.target and len(digits) < ALL_DIGITS:
                yield record


def _begins(record: Record, wanted: str) -> bool:
    digits = Wanted(wanted).digits
    return bool(digits) and record.id.hex().startswith(digits)


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
        told = {"cause": journal.cause, "next": describe_next(record, journal), "ledger": build_ledger(journal)}
        print(json.dumps({**summarize_run(record, now), **told}))
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


def finish_run(safe: RetrySafe, record: Record, go: Callable[[Operation], Any]) -> int:
    operation = safe.operations.get(record.target)
    if operation is None:
        raise OperationChanged(record.target, "this code does not know it")
    made = go(operation)
    if inspect.isawaitable(made):
        made = wait_for(made)
    how = "it was finished before" if made.replayed else "finished"
    print(f"{how}: {made.answer.status} {made.answer.body.decode('utf-8', 'replace')[:2000]}")
    return 0
