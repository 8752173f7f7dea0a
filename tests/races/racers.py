"""Many processes with many threads, all reaching for the same key at the same moment.

Every thread of every process waits at a barrier before each key, so each key sees PROCESSES × THREADS claims at
once. A racer reports only what it was granted.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any, NamedTuple

from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import claim, record_of
from tests.forks import FORKS

PROCESSES = 8
THREADS = 25
PATIENCE = 300.0
"""A barrier that is not complete by then is broken: some racer died, and the others must not wait for it."""


class Grant(NamedTuple):
    key: int
    attempt: int
    token: bytes


@dataclass(frozen=True)
class Race:
    """One round: `keys` keys, each claimed by everybody at the moment `now`."""

    url: str
    keys: int
    now: float
    lease: float = 30
    threads: int = THREADS
    """In each of the processes."""


def run_race(race: Race) -> list[Grant]:
    """Run one round in PROCESSES fresh processes; every grant anybody was told of."""
    barrier = FORKS.Barrier(PROCESSES)
    results: Any = FORKS.Queue()
    racers = [FORKS.Process(target=_process, args=(race, barrier, results)) for _ in range(PROCESSES)]
    for racer in racers:
        racer.start()
    try:
        replies = [results.get(timeout=PATIENCE) for _ in racers]
    finally:
        for racer in racers:
            racer.join(5)
            racer.kill()
            racer.join()
        results.close()
    failed = [reply for reply in replies if isinstance(reply, str)]
    assert not failed, f"{len(failed)} racers failed, the first with: {failed[0]}"
    return [Grant(*grant) for grants in replies for grant in grants]


def _process(race: Race, barrier: Any, results: Any) -> None:
    """One process: a store of its own, THREADS threads on it."""
    store = open_store(race.url)
    grants: list[Grant] = []
    errors: list[str] = []
    gate = threading.Barrier(race.threads, action=lambda: barrier.wait(PATIENCE))
    threads = [threading.Thread(target=_thread, args=(race, store, gate, grants, errors)) for _ in range(race.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store.close()
    results.put(errors[0] if errors else [tuple(grant) for grant in grants])


def _thread(race: Race, store: Store, gate: threading.Barrier, grants: list[Grant], errors: list[str]) -> None:
    try:
        for key in range(race.keys):
            op = claim(f"k{key}", lease=race.lease, on_lapse="rerun", now=race.now)
            gate.wait(PATIENCE)
            reply = store.execute(op)
            if reply.granted:
                grants.append(Grant(key, record_of(reply).attempt, op.token))
    except BaseException as error:
        errors.append(repr(error))
        gate.abort()
