"""A process that claims and completes one key in an SQLite file, and says each thing it was told. Made to be killed.

    python -m tests.faults.sqlite_story PATH TOKEN

Prints `claimed` and `completed` as soon as the store has acknowledged them, or the name of the error it raised.
"""

from __future__ import annotations

import sys

from retrysafe.core.ops import Claim, Complete
from retrysafe.core.records import Fence
from retrysafe.errors import StoreError
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import answer, claim

KEY = "k"
ANSWER = answer(b"done" * 500)
FIRST = 1


def asked(token: str) -> Claim:
    return claim(KEY, lease=600, token=bytes.fromhex(token), run=bytes(16), now=None)


def done(op: Claim) -> Complete:
    return Complete(op.id, Fence(FIRST, op.token), ANSWER)


def main(path: str, token: str) -> None:
    store = open_store(f"sqlite:///{path}")
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
