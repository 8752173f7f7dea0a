"""`retrysafe stats`: what is open and how old the oldest is. `retrysafe top` repaints it."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import format_age, print_json, print_line, print_note, print_table
from retrysafe.cli.parsing import add_json
from retrysafe.cli.session import open_session
from retrysafe.core.backlog import DEFAULT_LIMIT_ROWS, OpenGroup, TopicGroup
from retrysafe.errors import UsageError
from retrysafe.operators.name_check import describe_unknown_name
from retrysafe.operators.overview import Overview, read_overview, summarize_overview

CLEAR_SCREEN = "\x1b[H\x1b[2J"


def add_stats_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "stats",
        help="what is open, and how old the oldest is",
        description="Open keys by kind and target, uncertain ones first, with the age of the oldest; records due for "
        "reaping; jobs of the outbox by topic. The cost does not grow with what is finished, on stores that declare it "
        "(docs/reference/capabilities.md). --count counts every record, which does.",
        takes_url=True,
        examples=("retrysafe stats postgresql://user@host/db", "retrysafe stats --json | jq .uncertain"),
    )
    _add_options(parser)
    parser.add_argument("--count", action="store_true", help="also count the keys in each state; reads the whole store")
    add_json(parser, "print one JSON object")
    parser.set_defaults(run=run_stats)


def add_top_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "top",
        help="the same, live",
        description="Repaints `retrysafe stats` until Ctrl-C.",
        takes_url=True,
        examples=("retrysafe top sqlite:///app.db --every 5",),
    )
    _add_options(parser)
    parser.add_argument("--every", type=float, default=2.0, metavar="S", help="seconds between two looks (2)")
    parser.add_argument("--times", type=int, metavar="N", help="stop after this many looks")
    add_json(parser, "print one JSON object per look")
    parser.set_defaults(run=run_top, count=False)


add_parser = add_stats_parser


def _add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--namespace", help="only this application (all)")
    parser.add_argument(
        "--examine",
        type=int,
        default=DEFAULT_LIMIT_ROWS,
        metavar="N",
        help=f"read at most so many rows of each ({DEFAULT_LIMIT_ROWS})",
    )


def run_stats(args: argparse.Namespace) -> int:
    with open_session(args) as session:
        overview = read_overview(session, args.namespace, args.examine, count=args.count)
        unknown = "" if overview.open.groups else describe_unknown_name(session, args.namespace)
    print_json(summarize_overview(overview)) if args.json else print_overview(overview)
    if unknown:
        print_note(unknown)
    return exits.DONE


def run_top(args: argparse.Namespace) -> int:
    if not args.every > 0:
        raise UsageError(f"--every {args.every}: give a number of seconds above zero")
    looks = 0
    with open_session(args) as session:
        while args.times is None or looks < args.times:
            if looks:
                time.sleep(args.every)
            overview = read_overview(session, args.namespace, args.examine, count=args.count)
            if args.json:
                print_json(summarize_overview(overview))
            else:
                print(CLEAR_SCREEN if sys.stdout.isatty() else "", end="")
                print_overview(overview)
            sys.stdout.flush()
            looks += 1
    return exits.DONE


def _age(moment: int, now: int) -> str:
    return format_age(now - moment) if moment else "-"


def print_overview(overview: Overview) -> None:
    found, jobs, counted = overview
    now, more = found.now, "+" if found.truncated else ""
    print(f"uncertain    {found.uncertain}{more}  oldest {_age(found.oldest_uncertain, now)}")
    print(
        f"in progress  {found.in_progress}{more}  oldest {_age(found.oldest_in_progress, now)}  ({found.lapsed} lapsed)"
    )
    print(f"to reap      {found.reapable}{more}  oldest {_age(found.oldest_reapable, now)}")
    if jobs is not None:
        print(f"outbox       {jobs.waiting} waiting, oldest {_age(jobs.oldest_waiting, now)}; {jobs.dead} dead")
    if counted is not None:
        print(f"in all       {counted.completed} completed, {counted.released} released, {counted.claimed} claimed")
    if found.groups:
        print()
        columns = ("kind", "target", "in progress", "lapsed", "uncertain", "oldest")
        ordered = sorted(found.groups, key=lambda group: (-group.uncertain, -group.in_progress))
        print_table(columns, (_format_group(group, now) for group in ordered), (9, 40, 11, 6, 9), headed=True)
    if jobs is not None:
        print_topics(jobs.groups, now)
    if found.truncated:
        print_note("there is more than was read: --examine N reads more")


def print_topics(groups: Sequence[TopicGroup], now: int) -> None:
    if sys.stdout.isatty() and groups:
        print()
        columns = ("topic", "waiting", "oldest", "dead")
        print_table(columns, ((each.topic, each.waiting, _age(each.oldest_waiting, now), each.dead) for each in groups))
        return
    for group in groups:
        waiting = f"{group.waiting} waiting, oldest {_age(group.oldest_waiting, now)}"
        print_line(f"topic {group.topic}: {waiting}; {group.dead} dead")


def _format_group(group: OpenGroup, now: int) -> tuple[Any, ...]:
    oldest = group.oldest_uncertain or group.oldest_in_progress
    return (group.kind, group.target, group.in_progress, group.lapsed, group.uncertain, _age(oldest, now))
