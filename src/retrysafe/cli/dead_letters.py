"""`retrysafe dead-letters`: everything that is not tried again before an operator has looked: jobs of the outbox whose
deliveries all failed, and runs of operations that gave up."""

from __future__ import annotations

import argparse
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import format_age, print_json, print_note, print_table, shorten
from retrysafe.cli.parsing import add_json
from retrysafe.cli.session import open_session
from retrysafe.errors import UsageError
from retrysafe.operators.dead_letters import iter_letters

COLUMNS = ("what", "id", "name", "age", "why", "do")
WIDTHS = (4, 32, 24, 6, 60)


def add_dead_letters_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "dead-letters",
        help="jobs and runs that are not tried again before an operator has looked",
        description="Lists dead jobs of the outbox and dead runs of operations, with the command that retries each.",
        takes_url=True,
        examples=("retrysafe dead-letters", "retrysafe dead-letters --json | jq -r .do"),
    )
    parser.add_argument("--namespace", help="only this application (all)")
    parser.add_argument("--limit", type=int, default=50, help="print at most this many of each (50)")
    add_json(parser)
    parser.set_defaults(run=run)


add_parser = add_dead_letters_parser


def run(args: argparse.Namespace) -> int:
    if args.limit < 1:
        raise UsageError(f"--limit {args.limit}: give 1 or more")
    with open_session(args) as session:
        letters = iter_letters(session, args.namespace, args.limit)
        if args.json:
            for letter in letters:
                print_json(letter)
        else:
            rows = (format_letter(letter) for letter in letters)
            number = print_table(COLUMNS, rows, WIDTHS)
            print_note("1 dead letter" if number == 1 else f"{number} dead letters")
    return exits.DONE


def format_letter(letter: dict[str, Any]) -> tuple[str, ...]:
    age = format_age(int((letter["age_seconds"] or 0) * 1_000_000))
    return (
        letter["what"],
        letter["id"][:32],
        shorten(letter["name"], 24),
        age,
        shorten(letter["why"], 60),
        letter["do"],
    )
