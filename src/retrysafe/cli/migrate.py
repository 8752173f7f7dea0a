"""`retrysafe migrate URL`: create or upgrade the tables. A file of its own, like every command group."""

from __future__ import annotations

import argparse
import sys
from contextlib import closing
from typing import Any

from retrysafe.cli import exits
from retrysafe.cli.output import print_json
from retrysafe.cli.parsing import add_json
from retrysafe.cli.session import quiet_drivers
from retrysafe.cli.settings import require_url
from retrysafe.errors import UsageError
from retrysafe.stores.registry import find_backend, open_store, safe_url
from retrysafe.stores.sql.schema_state import LOSSES, REBUILT_UNASKED, RecreatesTables


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
    parser.add_argument(
        "--recreate",
        action="append",
        default=[],
        choices=sorted(LOSSES.keys() - REBUILT_UNASKED - {"meta"}),
        help="make this table again if it is lost, and accept that what was in it is forgotten",
    )
    add_json(parser, "print one JSON object")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    url = args.wrong if args.wrong is not None else require_url(args)
    if args.sql:
        sys.stdout.write(find_backend(url).schema(url))
        return exits.DONE
    quiet_drivers()
    applied = migrate_and_recreate(url, args.recreate) if args.recreate else migrate(url)
    if args.json:
        print_json({"store": safe_url(url), "applied": applied})
        return exits.DONE
    for name in applied:
        print(name if name.startswith("recreated ") else f"applied {name}")
    print(f"{safe_url(url)} is up to date")
    return exits.DONE


def migrate(url: str) -> list[str]:
    with closing(open_store(url)) as store:
        return store.migrate()


def migrate_and_recreate(url: str, tables: list[str]) -> list[str]:
    """Migrate an SQL store, and make these tables again if they are lost."""
    with closing(find_backend(url).open(url)) as store:
        if not isinstance(store, RecreatesTables):
            raise UsageError(f"--recreate: {safe_url(url)} has no tables to make again; it is for SQL stores")
        return store.migrate(tables)
