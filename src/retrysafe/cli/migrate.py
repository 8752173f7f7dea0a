"""`retrysafe migrate URL`: create or upgrade the tables."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from retrysafe.stores.registry import find_backend, open_store, safe_url


def add(commands: Any) -> None:
    parser = commands.add_parser(
        "migrate",
        help="create or upgrade a store's tables",
        description="Creates or upgrades a store's tables. Safe to run twice, and by several machines at once.",
    )
    parser.add_argument("url", metavar="URL", help="the store, for example postgresql://user@host/db")
    parser.add_argument("--sql", action="store_true", help="print the schema instead of applying it")
    parser.set_defaults(run=run)


def run(given: argparse.Namespace) -> int:
    if given.sql:
        sys.stdout.write(find_backend(given.url).schema(given.url))
        return 0
    store = open_store(given.url)
    try:
        applied = store.migrate()
    finally:
        store.close()
    for name in applied:
        print(f"applied {name}")
    print(f"{safe_url(given.url)} is up to date")
    return 0
