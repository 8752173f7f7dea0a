"""`retrysafe migrate URL`: create or upgrade the tables. A file of its own, like every command group."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import print_json
from retrysafe.cli.parsing import add_json
from retrysafe.cli.session import quiet_drivers
from retrysafe.cli.settings import require_url
from retrysafe.stores.registry import find_backend, open_store, safe_url


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="create or upgrade a store's tables",
        description="Creates or upgrades a store's tables. It is safe to run it twice, or on several machines at once.",
        takes_url=True,
        url_only=True,
        examples=("retrysafe migrate sqlite:///app.db", "retrysafe migrate postgresql://user@host/db --sql"),
    )
    parser.add_argument("wrong", nargs="?", metavar="", help=argparse.SUPPRESS)
    parser.add_argument("--sql", action="store_true", help="print the SQL and change nothing")
    add_json(parser, "print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    url = args.wrong if args.wrong is not None else require_url(args)
    if args.sql:
        sys.stdout.write(find_backend(url).schema(url))
        return exits.DONE
    quiet_drivers()
    store = open_store(url)
    try:
        applied = store.migrate()
    finally:
        store.close()
    if args.json:
        print_json({"store": safe_url(url), "applied": applied})
        return exits.DONE
    for name in applied:
        print(f"applied {name}")
    print(f"{safe_url(url)} is up to date")
    return exits.DONE
