"""MySQL and MariaDB are killed with SIGKILL three times under load, and started again (I10, I27).

What was acknowledged is there after recovery, and nobody was granted a key twice. SIGKILL is not a power cut: what the
kernel has in memory survives it (see the durability doctor).
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest

from retrysafe.core.ops import Claim, Lookup
from retrysafe.core.states import State
from retrysafe.errors import StoreUnavailable
from retrysafe.stores.base import Store
from retrysafe.stores.registry import open_store
from retrysafe.testing.builders import complete
from tests.faults.story import asked, eventually
from tests.opening import unique, with_option
from tests.servers import MariaDBServer, MySQLServer
from tests.servers.base import Server
from tests.waiting import until

KILLS = 3
WORKERS = 6
ENOUGH = 40
"""Keys that are completed between two kills."""


@pytest.fixture(
    params=[
        pytest.param(MySQLServer, marks=[pytest.mark.store("mysql"), pytest.mark.xdist_group("killed mysql")]),
        pytest.param(MariaDBServer, marks=[pytest.mark.store("mariadb"), pytest.mark.xdist_group("killed mariadb")]),
    ],
    ids=["mysql", "mariadb"],
)
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    server: Server = request.param()
    request.getfixturevalue(f"{server.name}_url")  # says so, as every test does, where there is none to be had
    server.start()
    yield server
    server.stop()


class Load:
    """Threads that claim a key and complete it, and write down what they were told."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._stop = threading.Event()
        self.claimed: list[bytes] = []
        self.completed: list[bytes] = []
        self.interrupted = 0
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(WORKERS)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            if not self._pair(asked(unique())):
                self.interrupted += 1

    def _pair(self, op: Claim) -> bool:
        """As the engine does: what is unclear is sent again. Whether nothing had to be."""
        reply, clear = self._told(op)
        if reply is None:
            return clear
        assert reply.granted, "nobody else wants this key"
        self.claimed.append(op.id)
        done, also_clear = self._told(complete(reply, op.id, now=None))
        if done is not None:
            assert done is True
            self.completed.append(op.id)
        return clear and also_clear

    def _told(self, op: Any) -> tuple[Any, bool]:
        clear = True
        while not self._stop.is_set():
            try:
                return self._store.execute(op), clear
            except StoreUnavailable:
                clear = False
        return None, clear

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(60)
            assert not thread.is_alive()


@pytest.mark.timeout(600)
def test_three_kills_under_load(server: Server) -> None:
    url = with_option(with_option(server.url, "pool", str(WORKERS)), "pool_timeout", "1")
    store = open_store(url)
    store.migrate()
    load = Load(store)
    try:
        for _ in range(KILLS):
            before = len(load.completed)
            until(lambda mark=before: len(load.completed) >= mark + ENOUGH, 120, "work between the kills")
            server.restart()
        before = len(load.completed)
        until(lambda: len(load.completed) >= before + ENOUGH, 120, "work after the last kill")
    finally:
        load.stop()
    assert load.interrupted, "no kill was felt: the load was not there"
    assert max(Counter(load.claimed).values()) == 1
    for record_id in load.completed:
        found = eventually(lambda each=record_id: store.execute(Lookup(each)), StoreUnavailable).record
        assert found is not None, "an acknowledged key was lost"
        assert (found.state, found.attempt) == (State.COMPLETED, 1)
        assert found.answer.body == record_id
    store.close()
