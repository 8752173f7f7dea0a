"""`retrysafe reconcile module:object`: compare our records with those of the other system."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from retrysafe.cli.import_object import import_object
from retrysafe.cli.output import print_line, print_table
from retrysafe.errors import UsageError
from retrysafe.worker.reconciler import Differences, Reconciliation, reconcile

EXIT_DIFFERENT = 1
EXIT_FAILED = 2
SHOWN_ITEMS = 100


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "reconcile",
        help="compare our records with another system's",
        description="Compares both sides and changes nothing. Exits with 0 if they agree, 1 if they differ, and 2 if "
        "the comparison failed.",
        examples=("retrysafe reconcile myapp.reconcile:charges --json",),
    )
    parser.add_argument(
        "object",
        metavar="MODULE:OBJECT",
        help="an object with ours(), theirs(), key(item) and optionally one_per(item), or a callable that returns one",
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object with all differences")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        found = reconcile(load_reconciliation(args.object))
    except Exception as error:  # the user's code may raise anything: report it with an exit code of its own
        print(f"retrysafe: could not reconcile: {error if str(error) else type(error).__name__}", file=sys.stderr)
        return EXIT_FAILED
    if args.json:
        print(format_json(found))
    elif sys.stdout.isatty():
        print_differences(found)
    else:
        for line in format_lines(found):
            print_line(line)
    return 0 if found.clean else EXIT_DIFFERENT


def load_reconciliation(text: str) -> Reconciliation:
    found = import_object(text)
    if not isinstance(found, Reconciliation) and callable(found):
        found = found()
    if not isinstance(found, Reconciliation):
        raise UsageError(f"{text} is a {type(found).__name__}; it needs the methods ours(), theirs() and key(item)")
    return found


DIFFERENCE_LABELS = {
    "missing_there": "ours, but not theirs",
    "missing_here": "theirs, but not ours",
    "doubled_there": "theirs twice",
    "doubled_here": "ours twice",
    "several_there": "theirs, several of one operation",
    "several_here": "ours, several of one operation",
}


def format_json(found: Differences) -> str:
    differences = {name: [str(item) for item in getattr(found, name)] for name in DIFFERENCE_LABELS}
    return json.dumps({"clean": found.clean, "matched": found.matched, **differences})


def print_differences(found: Differences) -> None:
    """On a terminal: how many of each, then which."""
    items = {words: getattr(found, name) for name, words in DIFFERENCE_LABELS.items()}
    counts = [("match", found.matched), *((words, len(each)) for words, each in items.items())]
    print_table(("what", "records"), counts)
    if found.clean:
        return
    print()
    print_table(("what", "item"), ((words, item) for words, each in items.items() for item in each[:SHOWN_ITEMS]))
    for words, each in items.items():
        if len(each) > SHOWN_ITEMS:
            print_line(f"{words}: {len(each) - SHOWN_ITEMS} more; --json shows them all")


def format_lines(found: Differences) -> list[str]:
    lines = [f"{found.matched} match"]
    for name, words in DIFFERENCE_LABELS.items():
        items = getattr(found, name)
        lines.append(f"{len(items)} {words}")
        lines += [f"  {item}" for item in items[:SHOWN_ITEMS]]
        if len(items) > SHOWN_ITEMS:
            lines.append(f"  … and {len(items) - SHOWN_ITEMS} more; --json shows them all")
    return lines
