"""`retrysafe migrate URL`: create or upgrade the tables. A file of its own, like every command group."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from retrysafe.stores.registry import find_backend, open_store, safe_url


def add_parser(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="create or upgrade a store's tables",
        description="Creates or upgrades a store's tables. It is safe to run it twice, or on several machines at once.",
    )
    parser.add_argument("url", metavar="URL", help="the store, for example postgresql://user@host/db")
    parser.add_argument("--sql", action="store_true", help="print the SQL and change nothing")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    if args.sql:
        sys.stdout.write(find_backend(args.url).schema(args.url))
        return 0
    store = open_store(args.url)
    try:
        applied = store.migrate()
    finally:
        store.close()
    for name in applied:
        print(f"applied {name}")
    print(f"{safe_url(args.url)} is up to date")
    return 0
