"""`retrysafe operations list|show|resume|undo|cancel|declared|diagram`: operations and their runs."""

from __future__ import annotations

import argparse
import inspect
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import islice, takewhile
from typing import Any

from retrysafe.cli import record_search
from retrysafe.cli.exits import DONE, ChangedUnderneath, NotFound, Refused
from retrysafe.cli.import_object import load_safe
from retrysafe.cli.keys import describe_state
from retrysafe.cli.output import print_json, print_note
from retrysafe.cli.parsing import add_json, add_reason
from retrysafe.cli.record_search import (
    ID_DIGITS,
    MAX_EXAMINED_RECORDS,
    RecordQuery,
    RecordSearch,
    cursor_before,
    make_progress_reporter,
)
from retrysafe.cli.session import NO_RECORD_ID, Session, make_entry
from retrysafe.cli.settings import read_setting
from retrysafe.core.keys import Key
from retrysafe.core.moves import is_outcome_unknown
from retrysafe.core.ops import List, Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import STATES, State
from retrysafe.core.times import format_time
from retrysafe.engine.bridge import wait_for
from retrysafe.engine.safe import RetrySafe
from retrysafe.engine.why import state_for_people
from retrysafe.errors import OperationChanged, UsageError
from retrysafe.operations.diagram import draw_diagram
from retrysafe.operations.journal import OperationJournal, build_ledger, describe_next_step
from retrysafe.operations.operation import Operation
from retrysafe.operations.submission import is_submitted

OLD_FLAGS = {"--list": "list", "--diagram": "diagram", "--show": "show", "--resume": "resume", "--undo": "undo"}
"""Options of the release before, and the verbs that replaced them."""

VERBS = ("declared", "diagram", "list", "show", "resume", "undo", "cancel")


def translate_old(words: list[str]) -> list[str]:
    """`operations MODULE:SAFE --undo ID` as `operations undo MODULE:SAFE ID`. Without an option: `declared`."""
    first = next((word for word in words if not word.startswith("-")), "")
    if first in VERBS or not words or {"-h", "--help"} & set(words):
        return words
    if ":" not in first:
        return words  # a mistyped verb
    rest = [word.partition("=") for word in words]
    for place, (option, equals, value) in enumerate(rest):
        if option in OLD_FLAGS:
            verb = OLD_FLAGS[option]
            print_note(f"hint: `operations MODULE:SAFE {option}` is now `operations {verb} MODULE:SAFE`")
            left = [*words[:place], *([value] if equals else []), *words[place + 1 :]]
            return [verb, *_drop_unused(left, verb)]
    return ["declared", *words]


def _drop_unused(words: list[str], verb: str) -> list[str]:
    """The old command ignored options that did not belong to its verb."""
    allowed = {"list": (), "diagram": (), "show": ("--id",), "resume": ("--id",), "undo": ("--id",)}[verb]
    return [word for word in words if word != "--id" or "--id" in allowed]


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "operations",
        help="operations and their runs",
        description="Lists, draws, shows, resumes, undoes and cancels. They need your application, not only its store.",
        rewrite=translate_old,
        examples=(
            "retrysafe operations list myapp:safe",
            "retrysafe operations undo myapp:safe order-7 --because '...'",
        ),
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, parser_class=type(parser))
    declared = _add_verb(
        verbs, "declared", "the operations that the application declares, with their steps", run_declared
    )
    diagram = _add_verb(verbs, "diagram", "draw every operation as a Mermaid flowchart", run_diagram)
    listing = _add_verb(verbs, "list", "list runs, unfinished ones first", run_list)
    for each in (declared, diagram, listing):
        each.add_argument("--name", help="only the operation of this name")
    listing.add_argument("--state", choices=sorted(STATES), help="only runs in this state")
    listing.add_argument("--limit", type=int, default=50, help="print at most this many runs (50)")
    listing.add_argument(
        "--examine",
        type=int,
        metavar="N",
        help=f"search at most this many records of each state ({MAX_EXAMINED_RECORDS})",
    )
    listing.add_argument(
        "--after", default="", metavar="CURSOR", help="with --state: continue a list that ended at its limit"
    )
    _add_verb(verbs, "show", "show one run and its ledger", run_show, run=True)
    acts = (
        ("resume", "resume one run now, from its recovery point", run_resume),
        ("undo", "undo one run: every step that began, in reverse order", run_undo),
        ("cancel", "end one run where it is: nothing more is sent, nothing is undone", run_cancel),
    )
    for verb, text, run in acts:
        act = _add_verb(verbs, verb, text, run, run=True)
        add_reason(act)
    cancel = verbs.choices["cancel"]
    cancel.add_argument(
        "--leave-effects", action="store_true", help="cancel although steps have run: what they did stays"
    )


def _add_verb(verbs: Any, verb: str, text: str, command: Any, *, run: bool = False) -> Any:
    which = " order-7" if run else ""
    reason = " --because 'the customer called'" if verb in ("resume", "undo", "cancel") else ""
    parser = verbs.add_parser(
        verb, help=text, takes_app=int(run), examples=(f"retrysafe operations {verb} myapp:safe{which}{reason}",)
    )
    if run:
        parser.add_argument("run_id", metavar="RUN", help="the id of a run, its first 8 or more digits, or its key")
        parser.add_argument("--id", action="store_true", help="RUN is an id and not a key")
    add_json(parser)
    parser.set_defaults(run=command)
    return parser


@contextmanager
def open_application(args: argparse.Namespace) -> Iterator[RetrySafe]:
    app = read_setting(args, "app").value
    if not app:
        raise UsageError(
            'which application? Give MODULE:SAFE, set RETRYSAFE_APP, or write app = "module:safe" into retrysafe.toml'
        )
    safe = load_safe(app)
    try:
        yield safe
    finally:
        safe.close()


def open_audit(safe: RetrySafe) -> Session:
    return Session(safe.store, safe.execute, safe.namespace, repr(safe), lambda: None)


def run_declared(args: argparse.Namespace) -> int:
    with open_application(args) as safe:
        found = find_operations(safe, args.name)
        if args.json:
            for operation in found:
                print_json(summarize_operation(operation))
            return DONE
        return print_operations(found)


def summarize_operation(operation: Operation) -> dict[str, Any]:
    steps = [
        {
            "name": step.name,
            "kind": step.kind,
            "undo": step.undo is not None,
            "find": step.find is not None,
            "repeatable": step.repeatable,
        }
        for step in operation.steps.values()
    ]
    return {"operation": operation.target, "steps": steps}


def run_diagram(args: argparse.Namespace) -> int:
    with open_application(args) as safe:
        found = find_operations(safe, args.name)
        if args.json:
            for operation in found:
                print_json({"operation": operation.target, "mermaid": draw_diagram(operation)})
            return DONE
        return print_diagrams(found)


def run_list(args: argparse.Namespace) -> int:
    with open_application(args) as safe:
        return list_runs(safe, args)


def run_show(args: argparse.Namespace) -> int:
    with open_application(args) as safe:
        return print_run(find_run(safe, args.run_id, by_id=args.id), read_time(safe), as_json=args.json)


def run_resume(args: argparse.Namespace) -> int:
    return act_on_run(args, "resume", lambda operation, record: operation.resume_id(record.id, args.because or ""))


def run_undo(args: argparse.Namespace) -> int:
    return act_on_run(args, "undo", lambda operation, record: operation.undo_id(record.id, args.because))


def run_cancel(args: argparse.Namespace) -> int:
    return act_on_run(args, "cancel", lambda operation, record: operation.cancel_id(record.id, args.because))


def act_on_run(args: argparse.Namespace, verb: str, call: Callable[[Operation, Record], Any]) -> int:
    """Resume, undo or cancel one run, with an audit row."""
    make_entry(args, f"operations {verb}")
    with open_application(args) as safe:
        record = find_run(safe, args.run_id, by_id=args.id, to_act=True)
        now = read_time(safe)
        refusal = why_not(record, now, verb, leave_effects=getattr(args, "leave_effects", False))
        if refusal:
            raise Refused(refusal)
        before = state_for_people(record, now)
        entry = make_entry(args, f"operations {verb}", (record.id.hex(),), before=before, attempt=record.attempt)
        with open_audit(safe).act(entry) as audit:
            operation = safe.operations.get(record.target)
            if operation is None:
                raise OperationChanged(record.target, "this code does not declare it")
            result = call(operation, record)
            if inspect.isawaitable(result):
                result = wait_for(result)
            if result.replayed:
                raise ChangedUnderneath(
                    f"the run {record.id.hex()[:16]} was finished meanwhile ({result.answer.status}); nothing was done"
                )
            audit.result = {"status": result.answer.status}
        body = result.answer.body.decode("utf-8", "replace")[:2000]
        if args.json:
            shown = {
                "id": record.id.hex(),
                "action": f"operations {verb}",
                "status": result.answer.status,
                "body": body,
            }
            print_json({**shown, "audit": audit.id})
        else:
            print(f"finished: {result.answer.status} {body}")
    return DONE


def why_not(record: Record, now: int, verb: str, *, leave_effects: bool = False) -> str:
    """Why a run cannot be resumed, undone or cancelled; empty if it can. Pure."""
    short = record.id.hex()[:16]
    if record.state is State.COMPLETED:
        status = record.answer.status if record.answer is not None else 200
        more = "; what it did can only be taken back by new work of your own" if verb == "undo" else ""
        return f"the run {short} is finished with {status}: there is nothing to {verb}{more}"
    if record.state is State.CLAIMED and not record.lapsed(now):
        return f"its owner is at work on the run {short}, and its lease lasts until {format_time(record.lease_until)}"
    if verb != "cancel":
        return ""
    if is_outcome_unknown(record, now):
        return f"the outcome of the run {short} is unknown; say how it ended: retrysafe keys resolve {short} --id"
    if not is_submitted(record) and not leave_effects:
        began = [entry["step"] for entry in build_ledger(OperationJournal.decode(record.progress))]
        what = f"has begun {', '.join(began)}" if began else "was begun, and its first step may have been sent"
        return f"the run {short} {what}: undo it, or say --leave-effects to leave what was done"
    return ""


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
        raise UsageError(f"--id {wanted!r}: an id is 8 to 64 digits, 0 to 9 and a to f; `operations list` shows them")
    found = {each.id: each for each in _look_up(safe, wanted, by_id)}
    if not found or (to_act and not by_id):
        runs = RunSearch(safe)
        query = RecordQuery(wanted)
        named = (each for each in runs.iter_runs(None) if query.matches_id(each) or (each.key == wanted and not by_id))
        found |= {each.id: each for each in named}
        if runs.unfinished:
            raise UsageError(
                f"the search for {wanted!r} ended after {runs.unfinished[0][1].examined:,} records, and there are "
                "more: give its id, as `operations list` shows it, and --id"
            )
    if not found:
        raise NotFound(f"{wanted!r} names 0 runs", "`retrysafe operations list MODULE:SAFE` lists them")
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
