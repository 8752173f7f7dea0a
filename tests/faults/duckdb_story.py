"""A process that claims and completes one key in a DuckDB file, and says each thing it was told. Made to be killed.

    python -m tests.faults.duckdb_story PATH TOKEN

Prints `claimed` and `completed` as soon as the store has acknowledged them, or the name of the error it raised.
"""

from __future__ import annotations

import sys

from retrysafe.errors import StoreError
from retrysafe.stores.registry import open_store
from tests.faults.sqlite_story import asked, done


def main(path: str, token: str) -> None:
    store = open_store(f"duckdb:///{path}")
    op = asked(token)
    try:
        assert store.execute(op).granted
        print("claimed", flush=True)
        assert store.execute(done(op))
        print("completed", flush=True)
    except StoreError as error:
        print(type(error).__name__, flush=True)
        print(error, file=sys.stderr)
    store.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
