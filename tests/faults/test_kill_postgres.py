"""PostgreSQL itself is killed with SIGKILL at the message boundaries around the commit, and started again (I10, I11).

Whatever was acknowledged is there after recovery; whatever was not is found out by sending it again; nobody is
granted twice. SIGKILL is not a power cut: what the kernel has in memory survives it (see the durability doctor).
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from retrysafe.core.ops import Lookup
from retrysafe.errors import StoreOutage, StoreUnclear
from tests.faults.proxy import PostgresProxy, Side
from tests.faults.story import CASES, Case, asked, check_truth, eventually, resend, rival, stored, warm
from tests.opening import open_do, open_migrated, unique, with_option
from tests.servers import PostgresServer

# One group: the tests share a server, and xdist gives a group to one worker.
pytestmark = [pytest.mark.store("postgres"), pytest.mark.xdist_group("killed postgres")]


class Doomed:
    """A server of this module's own, a proxy in front of it, and a store on each."""

    def __init__(self) -> None:
        self.server = PostgresServer()
        self.server.start()
        self.proxy = PostgresProxy(self.server.url)
        self.healthy = open_migrated(self.server.url, "sync")
        self.do = open_do(with_option(self.proxy.url, "pool", "1"), "sync")

    def kill(self) -> None:
        """The postmaster and every process it started, each in a session of its own, so that none lives to commit."""
        assert self.server.process is not None
        postmaster = self.server.process.pid
        os.kill(postmaster, signal.SIGSTOP)  # it must not start anybody, nor tell anybody to shut down cleanly
        for pid in [*children(postmaster), postmaster]:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.server.process.wait()

    def revive(self) -> None:
        self.server.restart()
        warm(self.healthy)

    def close(self) -> None:
        self.do.close()
        self.healthy.close()
        self.proxy.close()
        self.server.stop()


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                # The name in parentheses may contain anything; what follows it is state and parent.
                if int((entry / "stat").read_text().rpartition(")")[2].split()[1]) == parent:
                    found.append(int(entry.name))
    return found


@pytest.fixture(scope="module")
def doomed() -> Iterator[Doomed]:
    doomed = Doomed()
    yield doomed
    doomed.close()


def around_commit(messages: list[str]) -> list[tuple[int, Side]]:
    """Just before and after the last request leaves (its Sync, or the COMMIT), and before and after its reply."""
    sync = max(number for number, message in enumerate(messages, start=1) if message in (">S", ">Q"))
    return [(sync, "before"), (sync, "after"), (sync, "swallow"), (len(messages), "after")]


def everywhere(messages: list[str]) -> list[tuple[int, Side]]:
    return [(number, side) for number in range(1, len(messages) + 1) for side in ("before", "after")]


def count(doomed: Doomed, send: Any) -> list[str]:
    warm(doomed.do)
    doomed.proxy.count()
    send()
    return list(doomed.proxy.seen)


def killed_at(doomed: Doomed, case: Case, number: int, side: Side) -> None:
    op: Any = case.make(doomed.healthy, unique())
    warm(doomed.do)
    before = doomed.healthy(Lookup(op.id)).record
    doomed.proxy.cut_at(number, side, on_cut=doomed.kill)
    try:
        reply = doomed.do(op)
    except StoreOutage as error:
        reply = None
        clear = not isinstance(error, StoreUnclear)
    else:
        clear = False
    assert doomed.proxy.was_cut()
    doomed.revive()
    if clear:
        assert doomed.healthy(Lookup(op.id)).record == before, "refused as not sent, yet something was done"
    if reply is None:
        reply = resend(lambda: doomed.do(op))
    check_truth(doomed.healthy, case, op, reply)


@pytest.mark.parametrize("case", [case for case in CASES if case.name in ("claim", "complete")], ids=lambda c: c.name)
def test_killed_around_the_commit(doomed: Doomed, case: Case) -> None:
    op = case.make(doomed.healthy, unique())
    for number, side in around_commit(count(doomed, lambda: doomed.do(op))):
        killed_at(doomed, case, number, side)


def test_a_batch_killed_around_its_commit(doomed: Doomed) -> None:
    for number, side in around_commit(count(doomed, lambda: doomed.do.many([asked(unique()) for _ in range(3)]))):
        killed_batch(doomed, number, side)


def killed_batch(doomed: Doomed, number: int, side: Side) -> None:
    batch = [asked(unique()) for _ in range(3)]
    warm(doomed.do)
    doomed.proxy.cut_at(number, side, on_cut=doomed.kill)
    replies = None
    with suppress(StoreOutage):
        replies = doomed.do.many(batch)
    assert doomed.proxy.was_cut()
    doomed.revive()
    if replies is None:
        there = [doomed.healthy(Lookup(op.id)).record is not None for op in batch]
        assert len(set(there)) == 1, "a batch is one transaction: all of it or nothing"
        replies = resend(lambda: doomed.do.many(batch))
    for op, reply in zip(batch, replies, strict=True):
        assert reply.granted is True
        assert stored(doomed.healthy, op).fence == (1, op.token)
        rival(doomed.healthy, stored(doomed.healthy, op))


def test_nothing_acknowledged_is_lost(doomed: Doomed) -> None:
    """Records of every state, acknowledged one by one, then the kill."""
    made: list[tuple[Case, Any, Any]] = []
    for case in CASES:
        op = case.make(doomed.healthy, unique())
        made.append((case, op, resend(partial(doomed.do, op))))
    doomed.kill()
    doomed.revive()
    for case, op, reply in made:
        check_truth(doomed.healthy, case, op, reply)


def test_down_means_unavailable_and_back_means_back(doomed: Doomed) -> None:
    impatient = open_do(with_option(with_option(doomed.server.url, "pool", "1"), "pool_timeout", "0.2"), "sync")
    try:
        warm(impatient)
        op = asked(unique())
        doomed.kill()
        for _ in range(3):
            with pytest.raises(StoreOutage):
                impatient(op)
        doomed.revive()
        reply = eventually(lambda: impatient(op), StoreOutage)
        check_truth(doomed.healthy, CASES[0], op, reply)
    finally:
        impatient.close()


@pytest.mark.campaign
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_killed_everywhere(doomed: Doomed, case: Case) -> None:
    op = case.make(doomed.healthy, unique())
    for number, side in everywhere(count(doomed, lambda: doomed.do(op))):
        killed_at(doomed, case, number, side)


@pytest.mark.campaign
def test_a_batch_killed_everywhere(doomed: Doomed) -> None:
    for number, side in everywhere(count(doomed, lambda: doomed.do.many([asked(unique()) for _ in range(3)]))):
        killed_batch(doomed, number, side)


def test_every_process_dies(doomed: Doomed) -> None:
    """The killing is what it says: no process of the server outlives it."""
    assert doomed.server.process is not None
    before = children(doomed.server.process.pid)
    assert before
    doomed.kill()
    assert eventually(lambda: not_there(before), AssertionError)
    doomed.revive()


def not_there(pids: list[int]) -> bool:
    assert not [pid for pid in pids if alive(pid)]
    return True


def alive(pid: int) -> bool:
    """A zombie waiting for whoever adopted it is dead."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
