"""`retrysafe dead-letters`: everything that is not tried again before a person has looked: jobs of the outbox whose
deliveries all failed, and runs of operations that gave up."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.outbox import iter_jobs
from retrysafe.cli.output import age_seconds, format_age, print_json, print_note, print_table, shorten
from retrysafe.cli.parsing import add_json
from retrysafe.cli.record_search import iter_records
from retrysafe.cli.session import Session, open_session
from retrysafe.core.ops import List
from retrysafe.core.states import State
from retrysafe.engine.why import DEAD_LETTER
from retrysafe.errors import UsageError

COLUMNS = ("what", "id", "name", "age", "why", "do")
WIDTHS = (4, 32, 24, 6, 60)


def add_dead_letters_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "dead-letters",
        help="jobs and runs that are not tried again before a person has looked",
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
            print_note(f"{print_table(COLUMNS, rows, WIDTHS)} dead letters")
    return exits.DONE


def iter_letters(session: Session, namespace: str | None, limit: int) -> Iterator[dict[str, Any]]:
    now = session.read_time()
    if session.capabilities.outbox:
        for staged, _ in zip(iter_jobs(session, namespace, dead=True, topic=None), range(limit), strict=False):
            yield {
                "what": "job",
                "id": staged.job.id,
                "namespace": staged.namespace,
                "name": staged.job.topic,
                "age_seconds": age_seconds(staged.created, now),
                "why": staged.error,
                "do": f"retrysafe outbox retry {staged.job.id[:16]} --namespace {staged.namespace} --because TEXT",
            }
    records = iter_records(session.execute, List(namespace, State.UNCERTAIN))
    dead = (record for record in records if record.note.startswith(DEAD_LETTER))
    for record, _ in zip(dead, range(limit), strict=False):
        yield {
            "what": "run",
            "id": record.id.hex(),
            "namespace": record.namespace,
            "name": record.target,
            "age_seconds": age_seconds(record.started, now),
            "why": record.note,
            "do": f"retrysafe operations resume MODULE:SAFE {record.id.hex()[:16]} --id --because TEXT",
        }


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
