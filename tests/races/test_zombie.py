"""A real process, really frozen (SIGSTOP) while somebody takes over, then thawed: it changes nothing (I3, I4)."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import ClaimReply
from retrysafe.core.records import Record
from retrysafe.testing import Do
from retrysafe.testing.builders import claim, complete, lookup, reap, record_of
from tests.opening import REDIS_KIN, SHARED_STORES, open_migrated, store_url
from tests.races.zombie import KEY

ROOT = Path(__file__).parents[2]
DEADLINE = 60.0
LEASE = 0.2
FAR_AHEAD = 9e9
"""Seconds since 1970: late enough for any retention but for ever."""

REFUSED = dict.fromkeys(["renew", "advance", "complete", "release", "suspect"], False)

pytestmark = pytest.mark.xdist_group("races")  # one at a time: they want the machine to themselves

every_shared_store = pytest.mark.parametrize(
    "store", [pytest.param(store, marks=pytest.mark.store(store)) for store in (*SHARED_STORES, *REDIS_KIN)]
)


class Zombie:
    """The other process, as seen from here."""

    def __init__(self, url: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.races.zombie", url, str(LEASE)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def hear(self) -> Any:
        """Its next line; fails if it says nothing for too long."""
        assert self.process.stdout is not None
        ready, _, _ = select.select([self.process.stdout], [], [], DEADLINE)
        assert ready, f"the zombie said nothing for {DEADLINE:.0f} s"
        return json.loads(self.process.stdout.readline())

    def freeze(self) -> None:
        """Returns once the kernel says it is stopped."""
        self.process.send_signal(signal.SIGSTOP)
        _, status = os.waitpid(self.process.pid, os.WUNTRACED)
        assert os.WIFSTOPPED(status)

    def thaw(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def try_everything(self) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return self.hear()


@contextmanager
def frozen_holder(url: str) -> Iterator[Zombie]:
    """A process that holds the key and is frozen."""
    zombie = Zombie(url)
    try:
        assert zombie.hear()["attempt"] == 1
        zombie.freeze()
        yield zombie
    finally:
        zombie.process.kill()
        zombie.process.communicate()


def take_over(do: Do) -> ClaimReply:
    """Ask until it is granted: the store's own clock says when the lease has lapsed."""
    deadline = time.monotonic() + DEADLINE
    while time.monotonic() < deadline:
        reply = do(claim(KEY, lease=3600, retention=1, on_lapse="rerun", now=None))
        if reply.granted:
            return reply
        time.sleep(0.01)
    raise AssertionError(f"not taken over within {DEADLINE:.0f} s")


def stored(do: Do) -> Record:
    return record_of(do(lookup(KEY, now=None)))


@pytest.fixture
def place(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Do, str]]:
    url = store_url(request, tmp_path, store)
    do = open_migrated(url, "sync")
    yield do, url
    do.close()


@every_shared_store
def test_a_thawed_owner_was_replaced(place: tuple[Do, str]) -> None:
    do, url = place
    with frozen_holder(url) as zombie:
        second = take_over(do)
        assert record_of(second).attempt == 2
        zombie.thaw()
        assert zombie.try_everything() == REFUSED
        assert stored(do) == second.record
        assert do(complete(second, b"fresh", now=None)) is True
        before = stored(do)
        assert zombie.try_everything() == REFUSED
        assert stored(do) == before


@every_shared_store
def test_a_thawed_owner_meets_the_next_life(place: tuple[Do, str]) -> None:
    """Completed by another, expired, reaped, born again: attempt 1 as its own was, but not its own."""
    do, url = place
    with frozen_holder(url) as zombie:
        assert do(complete(take_over(do), b"fresh", now=None)) is True
        assert do(reap(now=FAR_AHEAD)) == 1
        zombie.thaw()
        assert zombie.try_everything() == REFUSED
        assert do(lookup(KEY, now=None)).record is None
        zombie.freeze()
        reborn = do(claim(KEY, lease=3600, on_lapse="rerun", now=None))
        assert (reborn.granted, record_of(reborn).attempt) == (True, 1)
        zombie.thaw()
        assert zombie.try_everything() == REFUSED
        assert stored(do) == reborn.record
