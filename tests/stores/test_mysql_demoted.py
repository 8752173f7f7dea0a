"""A primary that became read-only and still answers: the store closes its connections, and the next call connects anew.
These tests have servers of their own, because their settings hold for a whole server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing, contextmanager
from typing import Any

import asyncmy
import pymysql
import pytest

from retrysafe.core.ops import Op
from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.stores.mysql.aio import AsyncMysqlStore
from retrysafe.stores.mysql.dialect import parse_url
from retrysafe.stores.mysql.sync import MysqlStore
from retrysafe.testing.builders import claim, complete, lookup
from retrysafe.testing.driver import LoopThread
from tests.opening import COLOURS, open_migrated
from tests.servers import MariaDBServer, MySQLServer
from tests.servers.mysql import MySQLFamilyServer, sessions
from tests.waiting import until

each_colour = pytest.mark.parametrize("colour", COLOURS)

KINDS = {"mysql": MySQLServer, "mariadb": MariaDBServer}
CLERK = "clerk"
"""A user that cannot write to a read-only server; root can."""


class Primary:
    """A server, and the actions of its administrator."""

    def __init__(self, server: MySQLFamilyServer) -> None:
        self.server = server
        self.connection = pymysql.connect(**parse_url(server.url).connect, autocommit=True)
        self.cursor = self.connection.cursor()
        self.cursor.execute(f"CREATE USER {CLERK}")
        self.cursor.execute(f"GRANT ALL ON test.* TO {CLERK}")
        open_migrated(server.url, "sync").close()

    def read_only(self, on: bool) -> None:
        self.cursor.execute(f"SET GLOBAL read_only = {int(on)}")

    def empty(self) -> None:
        self.read_only(False)
        self.cursor.execute("DELETE FROM retrysafe_keys")

    def guests(self) -> set[int]:
        """The store's connections to it."""
        return sessions(self.cursor, "user = %s", [CLERK])


@contextmanager
def started(kind: str) -> Iterator[Primary]:
    server = KINDS[kind]()
    server.start()
    try:
        made = Primary(server)
        with closing(made.connection):
            yield made
    finally:
        server.stop()


@pytest.fixture(params=[pytest.param(name, marks=pytest.mark.store(name)) for name in KINDS], scope="module")
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="module")
def first(kind: str) -> Iterator[Primary]:
    with started(kind) as made:
        yield made


@pytest.fixture(scope="module")
def second(kind: str) -> Iterator[Primary]:
    with started(kind) as made:
        yield made


@pytest.fixture
def primary(first: Primary) -> Iterator[Primary]:
    yield first
    first.empty()


@pytest.fixture
def successor(second: Primary) -> Iterator[Primary]:
    yield second
    second.empty()


class Guest:
    """A sync or async store whose `connect` goes to the server that the name points to now."""

    def __init__(self, server: MySQLFamilyServer, colour: str) -> None:
        self.server = server
        self.loop = LoopThread() if colour == "async" else None
        if self.loop is None:
            self.store: Any = MysqlStore(lambda **more: pymysql.connect(**self._at(), **more))
        else:
            self.store = AsyncMysqlStore(lambda **more: asyncmy.connect(**self._at(), **more))

    def _at(self) -> dict[str, Any]:
        at = {**parse_url(self.server.url).connect, "user": CLERK}
        del at["charset"]  # the store sets it
        return at

    def __call__(self, op: Op[Any]) -> Any:
        return self._told(self.store.execute(op))

    def many(self, ops: list[Op[Any]]) -> Any:
        return self._told(self.store.execute_many(ops))

    def _told(self, found: Any) -> Any:
        return found if self.loop is None else self.loop.run(found)

    def beside(self, number: int, op: Op[Any]) -> Any:
        """Run the operation while other callers hold this many connections."""

        async def aside() -> Any:
            async with AsyncExitStack() as stack:
                for _ in range(number):
                    await stack.enter_async_context(self.store._pool.connection())
                return await self.store.execute(op)

        if self.loop is not None:
            return self.loop.run(aside())
        with ExitStack() as stack:
            for _ in range(number):
                stack.enter_context(self.store._pool.connection())
            return self.store.execute(op)

    def close(self) -> None:
        if self.loop is None:
            self.store.close()
        else:
            self.loop.run(self.store.aclose())
            self.loop.close()


def refused(act: Callable[[], Any]) -> None:
    """The error says that nothing was done, and nothing was."""
    with pytest.raises(StoreUnavailable, match="read-only") as told:
        act()
    assert not isinstance(told.value, StoreUnclear)


@each_colour
def test_all_its_connections_are_let_go_of(primary: Primary, colour: str) -> None:
    with closing(Guest(primary.server, colour)) as guest:
        held = guest.beside(2, claim("k", now=None))
        before = primary.guests()
        assert len(before) == 3
        primary.read_only(True)
        refused(lambda: guest(claim("new", now=None)))
        until(lambda: not primary.guests() & before, 30, "the old connections to end")
        primary.read_only(False)
        assert guest(lookup("new", now=None)).record is None, "nothing was done"
        assert guest(claim("new", now=None)).granted
        assert guest(complete(held, now=None)) is True


@each_colour
@pytest.mark.parametrize("batch", [False, True])
def test_the_next_call_finds_the_new_primary(primary: Primary, successor: Primary, colour: str, batch: bool) -> None:
    """The name points to another server by then. A caller on the old connection would be refused for ever."""
    with closing(Guest(primary.server, colour)) as guest:
        assert guest(claim("k", now=None)).granted
        primary.read_only(True)
        guest.server = successor.server
        op = claim("new", now=None)
        act = (lambda: guest.many([op])[0]) if batch else (lambda: guest(op))
        refused(act)
        assert act().granted is True
        assert successor.guests()
        until(lambda: not primary.guests(), 30, "the old connections to end")


@each_colour
def test_one_that_was_in_use_meanwhile_is_not_kept_either(primary: Primary, colour: str) -> None:
    """The connection was taken before the failover was noticed, and returned afterwards."""
    with closing(Guest(primary.server, colour)) as guest:
        assert guest(claim("k", now=None)).granted
        primary.read_only(True)
        refused(lambda: guest.beside(2, claim("new", now=None)))
        until(lambda: not primary.guests(), 30, "the old connections to end")
