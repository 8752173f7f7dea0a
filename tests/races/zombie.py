"""A worker that is frozen in the middle of its work. Run as `python -m tests.races.zombie URL LEASE`.

It claims the key by the store's own clock, writes the claim's fence to stdout and waits on stdin. Whatever line comes
is answered with what each fenced write was told.
"""

from __future__ import annotations

import json
import sys

from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import advance, claim, complete, record_of, release, renew, suspect

KEY = "zombie"


def main(url: str, lease: float) -> None:
    store = open_store(url)
    held = store.execute(claim(KEY, lease=lease, retention=1, on_lapse="rerun", now=None))
    assert held.granted
    say({"attempt": record_of(held).attempt, "token": record_of(held).token.hex()})
    for _ in sys.stdin:
        writes = {
            "renew": renew(held, lease=3600, now=None),
            "advance": advance(held, "zombie", b"zombie", now=None),
            "complete": complete(held, b"zombie", now=None),
            "release": release(held, "zombie", now=None),
            "suspect": suspect(held, "zombie", now=None),
        }
        say({name: store.execute(op) for name, op in writes.items()})
    store.close()


def say(what: object) -> None:
    print(json.dumps(what), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], float(sys.argv[2]))
