"""`retrysafe operations list|show|resume|undo|cancel|declared|diagram`: operations and their runs."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from typing import Any

from retrysafe.cli.exits import DONE
from retrysafe.cli.import_object import load_safe
from retrysafe.cli.keys import describe_state
from retrysafe.cli.output import make_progress_reporter, print_json, print_line, print_note, print_table
from retrysafe.cli.parsing import add_json, add_reason
from retrysafe.cli.session import NO_RECORD_ID, name_given_store, quiet_drivers, read_reason
from retrysafe.cli.settings import require_app
from retrysafe.core.moves import is_submitted
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import STATES, State
from retrysafe.engine.safe import RetrySafe
from retrysafe.errors import UsageError
from retrysafe.operations.diagram import draw_diagram
from retrysafe.operations.journal import OperationJournal, build_ledger
from retrysafe.operations.operation import Operation
from retrysafe.operations.run import read_journal
from retrysafe.operators.record_search import MAX_EXAMINED_RECORDS
from retrysafe.operators.runs import (
    RunSearch,
    RunVerb,
    act_on_run,
    describe_next,
    find_operations,
    find_run,
    list_sent_keys,
    summarize_operation,
    summarize_run,
)
from retrysafe.operators.session import open_on_safe

OLD_FLAGS = {"--list": "list", "--diagram": "diagram", "--show": "show", "--resume": "resume", "--undo": "undo"}
"""Options of the release before, and the verbs that replaced them."""

COLUMNS = ("id", "state", "operation", "key", "point", "attempt", "note")
WIDTHS = (16, 9)
STEP_COLUMNS = ("operation", "kind", "step", "more")
LEDGER_COLUMNS = ("", "step", "state", "result", "error")
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
    _add_verb(verbs, "show", "show one run and its journal", run_show, run=True)
    acts = (
        ("resume", "resume one run now, from its recovery point", run_resume),
        ("undo", "undo one run: every step that began, in reverse order", run_undo),
        ("cancel", "end one run where it is: nothing more is sent, nothing is undone", run_cancel),
    )
    for verb, text, run in acts:
        act = _add_verb(verbs, verb, text, run, run=True)
        add_reason(act)
    verbs.choices["resume"].add_argument(
        "--was-not-sent",
        action="store_true",
        help="you looked in the other system: a step that may have been sent was not. It is sent again",
    )
    left = {"cancel": "cancel although steps have run: what they did stays"}
    left["undo"] = "undo although a step that may have been sent has no undo: what it did stays"
    for verb, text in left.items():
        verbs.choices[verb].add_argument("--leave-effects", action="store_true", help=text)


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
    quiet_drivers()
    safe = load_safe(require_app(args))
    try:
        with name_given_store(args):
            yield safe
    finally:
        safe.close()


def run_declared(args: argparse.Namespace) -> int:
    with open_application(args) as safe:
        found = find_operations(safe, args.name)
        if args.json:
            for operation in found:
                print_json(summarize_operation(operation))
            return DONE
        return print_operations(found)


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
        record = find_run(safe, args.run_id, by_id=args.id, make_report=make_progress_reporter)
        return print_run(record, read_time(safe), safe.operations.get(record.target), as_json=args.json)


def run_resume(args: argparse.Namespace) -> int:
    return run_action(args, "resume")


def run_undo(args: argparse.Namespace) -> int:
    return run_action(args, "undo")


def run_cancel(args: argparse.Namespace) -> int:
    return run_action(args, "cancel")


def run_action(args: argparse.Namespace, verb: RunVerb) -> int:
    """Resume, undo or cancel one run, with an audit row."""
    reason = read_reason(args, f"operations {verb}")
    with open_application(args) as safe:
        record = find_run(safe, args.run_id, by_id=args.id, to_act=True, make_report=make_progress_reporter)
        flags = {name: getattr(args, name, False) for name in ("leave_effects", "was_not_sent")}
        answer, audit, kept = act_on_run(safe, open_on_safe(safe), record, verb, reason, **flags)
        body = answer.body.decode("utf-8", "replace")[:2000]
        if args.json:
            shown = {"id": record.id.hex(), "action": f"operations {verb}", "status": answer.status, "body": body}
            print_json({**shown, "audit": audit} | ({"kept": list(kept)} if verb == "undo" else {}))
        else:
            print_line(f"finished: {answer.status} {body}")
        if kept:
            print_note(f"kept, because they have no undo: {', '.join(kept)}; look in the other system")
    return DONE


def print_operations(operations: list[Operation]) -> int:
    """A table on a terminal. In a pipe the steps stand below the name of their operation."""
    if sys.stdout.isatty():
        print_table(STEP_COLUMNS, (row for operation in operations for row in list_steps(operation)))
        return 0
    for operation in operations:
        print_line(operation.target)
        for _, kind, name, more in list_steps(operation):
            if name:
                print_line(f"  {kind:8} {name}{f'  ({more})' if more else ''}")
    return 0


def list_steps(operation: Operation) -> Iterator[tuple[str, str, str, str]]:
    """A row for each step. An operation without steps has a row, too."""
    if not operation.steps:
        yield operation.target, "", "", ""
    for step in operation.steps.values():
        more = [word for word, there in (("undo", step.undo), ("find", step.find)) if there is not None]
        more += ["never repeated"] if not step.repeatable else []
        yield operation.target, step.kind, step.name, ", ".join(more)


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
    runs = RunSearch(safe, args.examine, make_progress_reporter)
    records = runs.iter_state(state, args.after) if state is not None else runs.iter_unfinished_first()
    named = (record for record in records if args.name is None or record.target.partition("@")[0] == args.name)
    # Read no more than is shown: the store may hold millions.
    found = sorted(islice(named, args.limit), key=lambda record: (record.state is State.COMPLETED, -record.created))
    now = read_time(safe)
    if args.json:
        for record in found:
            print_json(summarize_run(record, now))
    else:
        print_table(COLUMNS, (format_row(record, now) for record in found), WIDTHS)
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


def read_time(safe: RetrySafe) -> int:
    """The store's time. Its clock decides which leases have lapsed."""
    return int(safe.execute(Lookup(NO_RECORD_ID)).now)


def format_row(record: Record, now: int) -> tuple[str, ...]:
    state = "submitted" if is_submitted(record) else "lapsed" if record.lapsed(now) else record.state.value
    at = f"at {record.point}" if record.point else "at the start"
    return (record.id.hex()[:16], state, record.target, record.key, at, f"attempt {record.attempt}", record.note)


def print_ledger(entries: Sequence[Mapping[str, Any]]) -> None:
    if sys.stdout.isatty():
        rows = (
            (n, each["step"], each["state"], each["result"][:80], each["error"]) for n, each in enumerate(entries, 1)
        )
        print_table(LEDGER_COLUMNS, rows)
        return
    for number, entry in enumerate(entries, 1):
        error = f"  {entry['error']}" if entry["error"] else ""
        print_line(f"  {number:2}. {entry['step']:24} {entry['state']:8} {entry['result'][:80]}{error}")


def print_run(record: Record, now: int, operation: Operation | None, *, as_json: bool) -> int:
    journal = OperationJournal.decode(record.progress)
    announced = journal if operation is None else read_journal(record, operation.steps, operation.rule)
    keys = list_sent_keys(record, announced, operation)
    if as_json:
        found = {"cause": journal.cause, "next": describe_next(record, announced)}
        details = {**found, "ledger": build_ledger(journal), "keys": keys}
        print_json({**summarize_run(record, now), **details})
        return 0
    shown = summarize_run(record, now) | {"state": describe_state(record, now)}
    del shown["lapsed"]
    for name, value in shown.items():
        print_line(f"{name:10} {value}")
    if journal.cause:
        print_line(f"{'cause':10} {journal.cause}")
    print_ledger(build_ledger(journal))
    if describe_next(record, announced):
        print_line(f"{'next':10} {describe_next(record, announced)}")
    for call, key in keys.items():
        print_line(f"{'key':10} {call} {key}")
    return 0
