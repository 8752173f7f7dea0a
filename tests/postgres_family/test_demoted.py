"""A primary that became read-only and goes on answering, as behind a managed failover: its connections are let go of,
and the next call finds the one that takes writes. On servers of its own: what is set here is set for everybody."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest

from retrysafe.errors import StoreUnavailable, StoreUnclear
from retrysafe.testing.builders import claim, lookup
from tests.opening import COLOURS, open_do, open_migrated, unique, with_option
from tests.servers import PostgresServer
from tests.servers.lazy import started
from tests.waiting import until

pytestmark = [pytest.mark.store("postgres"), pytest.mark.xdist_group("postgres demoted")]

PATIENCE = 60.0


@dataclass
class Node:
    server: PostgresServer

    def ask(self, *statements: str) -> list[Any]:
        with psycopg.connect(self.server.url, autocommit=True) as admin:
            for text in statements:
                found = admin.execute(text)  # type: ignore[arg-type]  # our own text
            return found.fetchall()

    def read_only(self, on: bool) -> None:
        """For the sessions that there are, too."""
        self.ask(f"ALTER SYSTEM SET default_transaction_read_only = {'on' if on else 'off'}", "SELECT pg_reload_conf()")
        until(lambda: self.ask("SHOW default_transaction_read_only") == [("on" if on else "off",)], PATIENCE, "that")

    def guests(self, name: str) -> set[int]:
        return {pid for (pid,) in self.ask(f"SELECT pid FROM pg_stat_activity WHERE application_name = '{name}'")}


@pytest.fixture(scope="module")
def nodes() -> Iterator[tuple[Node, Node]]:
    made = Node(started(PostgresServer())), Node(started(PostgresServer()))
    for node in made:
        open_migrated(node.server.url, "sync").close()
    yield made
    for node in made:
        node.server.stop()


@pytest.mark.parametrize("batch", [False, True], ids=["one", "batch"])
@pytest.mark.parametrize("colour", COLOURS)
def test_the_next_call_finds_the_primary(nodes: tuple[Node, Node], colour: str, batch: bool) -> None:
    first, second = nodes
    name = unique("guest_")
    hosts = f"127.0.0.1:{first.server.port},127.0.0.1:{second.server.port}"
    url = f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write"
    with closing(open_do(with_option(url, "application_name", name), colour)) as do:
        assert do(claim(unique(), now=None)).granted
        before = first.guests(name)
        assert before
        first.read_only(True)
        try:
            key, other = unique(), unique()
            ops = [claim(key, now=None), claim(other, now=None)]
            with pytest.raises(StoreUnavailable, match="read-only") as told:
                do.many(ops) if batch else do(ops[0])
            assert not isinstance(told.value, StoreUnclear)
            assert [reply.granted for reply in (do.many(ops) if batch else [do(ops[0])])] == [True] * (1 + batch)
            until(lambda: not first.guests(name) & before, PATIENCE, "the old connections to end")
            assert second.guests(name)
        finally:
            first.read_only(False)
    with closing(open_do(first.server.url, "sync")) as there:
        assert there(lookup(key, now=None)).record is None, "nothing was done there"
