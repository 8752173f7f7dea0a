"""`retrysafe rollout`: who sends keys, per route and client, from the census of running processes.

A census is counted in each process of the application (`install()` and the middlewares give it back as `census`). The
application writes it to a file, or serves it; this command reads any number of them and adds them up."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.addresses import FAILURES, check_address, explain_failure
from retrysafe.cli.output import format_count, print_json, print_note, print_table, shorten
from retrysafe.cli.parsing import add_json
from retrysafe.operators.route_usage import RouteUse, add_up, parse_census, summarize_use

FETCH_TIMEOUT_SECONDS = 10.0


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "rollout",
        help="who sends keys: from observe to required",
        description="Reads the census of the application: files, http:// addresses, or - for standard input, in any "
        "number; one per process. Shows for each route how many requests have a key, have none, a malformed one or "
        'would be refused, and whether the route is ready for mode="required". Exits with 1 if a route is not. '
        "docs/howto/rollout.md has the whole way.",
        examples=(
            "retrysafe rollout census-*.json",
            "retrysafe rollout http://127.0.0.1:8000/internal/census --clients",
        ),
    )
    parser.add_argument("sources", metavar="SOURCE", nargs="+", help="a file, an http:// address, or -")
    parser.add_argument("--route", help="only this route")
    parser.add_argument("--clients", action="store_true", help="one row per client (a hash of its scope)")
    add_json(parser)
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    uses = add_up((row for source in args.sources for row in read_census(source)), by_client=args.clients)
    shown = [use for use in uses if args.route in (None, use.route)]
    if args.route is not None and not shown:
        raise exits.NotFound(f"no route {args.route!r}; there are {', '.join(sorted({use.route for use in uses}))}")
    if args.json:
        for use in shown:
            print_json(summarize_use(use))
    else:
        columns = ("route", "client", "requests", "keyed", "missing", "malformed", "refused", "verdict")
        print_table(columns, map(format_use, shown), (40, 16, 8, 8, 8, 8, 8))
        print_note(f"{format_count(len(shown), 'row')} from {format_count(len(args.sources), 'source')}")
    return exits.DONE if all(use.verdict in ("ready for required", "no requests") for use in shown) else exits.REFUSED


def read_census(source: str) -> list[dict[str, Any]]:
    """The rows of one census."""
    return parse_census(_read_text(source), source)


def _read_text(source: str) -> str:
    if source == "-":
        return sys.stdin.read()
    if source.startswith(("http://", "https://")):
        from urllib.request import urlopen

        check_address(source)
        try:
            with urlopen(source, timeout=FETCH_TIMEOUT_SECONDS) as answer:  # noqa: S310  # the scheme was checked
                return str(answer.read().decode(errors="replace"))
        except FAILURES as error:
            raise exits.OutOfReach(f"{source}: {explain_failure(error)}") from error
    try:
        return Path(source).read_text(errors="replace")
    except OSError as error:
        raise exits.NotFound(f"{source}: {error.strerror}") from error


def format_use(use: RouteUse) -> tuple[Any, ...]:
    counts = use.counts
    refused = counts.get("would_refuse", 0) + counts.get("would_mismatch", 0)
    numbers = (use.requests, counts.get("keyed", 0), counts.get("missing", 0), counts.get("malformed", 0), refused)
    return (shorten(use.route, 60), use.client or "-", *numbers, use.verdict)
