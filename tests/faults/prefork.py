"""A program as a prefork server runs it: opens its store in the parent, forks, and works on in all of them.

    python -m tests.faults.prefork URL CHILDREN KEYS

The parent and every child claim the same keys at the same time. Each prints one line of JSON: which keys it was
granted, and whether a heartbeat of its own kept a lease. Nobody leaves before everybody has connected, so that the
server can be asked in the meantime who is there.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable
from typing import Any

from retrysafe import Policy, RetrySafe
from retrysafe.core.keys import record_id
from retrysafe.core.ops import Lookup
from retrysafe.testing.builders import claim

DEADLINE = 60.0
LEASE = 0.3


def main(url: str, children: int, keys: int) -> None:
    safe = RetrySafe(url)
    assert safe.store.execute(claim("before the fork", now=None)).granted
    gate, opened = os.pipe()
    pids = []
    for _ in range(children):
        pid = os.fork()
        if pid == 0:
            os.close(opened)
            leave(lambda: report(safe, keys, wait=gate))
        pids.append(pid)
    report(safe, keys)
    sys.stdin.readline()  # whoever runs us has looked at the server
    os.close(opened)
    for pid in pids:
        _, status = os.waitpid(pid, 0)
        assert status == 0, f"child {pid} ended with {status}"
    assert safe.store.execute(claim("after the fork", now=None)).granted
    safe.close()


def leave(work: Callable[[], Any]) -> None:
    """A child ends here, whatever happens, and never falls back into its parent's code."""
    code = 1
    try:
        work()
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def report(safe: RetrySafe, keys: int, wait: int | None = None) -> None:
    granted = [key for key in map(str, range(keys)) if safe.store.execute(claim(key, lease=600, now=None)).granted]
    line = json.dumps({"pid": os.getpid(), "granted": granted, "heartbeat": heartbeat(safe)})
    os.write(1, line.encode() + b"\n")  # one small write: the lines of several processes do not mix
    if wait is not None:
        os.read(wait, 1)


def heartbeat(safe: RetrySafe) -> bool:
    """A call that lasts until its lease was renewed by this process's own heartbeat."""

    @safe.once("beat:{key}", scope="prefork", policy=Policy.preset("function", lease=LEASE))
    def waits(key: str) -> bool:
        at = record_id("function", safe.namespace, "prefork", f'beat:{{"{key}"}}')
        first = safe.store.execute(Lookup(at)).record
        assert first is not None
        deadline = time.monotonic() + DEADLINE
        while time.monotonic() < deadline:
            now = safe.store.execute(Lookup(at)).record
            assert now is not None
            if now.lease_until > first.lease_until:
                return True
            time.sleep(LEASE / 20)
        return False

    return waits(str(os.getpid()))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
