"""The transaction strength through PgBouncer in transaction mode: the same behaviours as on a server of one's own.

The lock on the key belongs to the transaction, as the session does here. What a user has to say to the driver behind
such a pooler is said here, too: nothing is prepared (`prepare_threshold=None`, `statement_cache_size=0`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
from psycopg import sql
from sqlalchemy import create_engine
from sqlalchemy.orm import sessionmaker
from sqlalchemy.pool import NullPool

from retrysafe import RetrySafe
from tests.postgres_family.conftest import Pooled
from tests.transactions.conftest import EFFECTS
from tests.transactions.rigs import (
    AsyncCaller,
    Caller,
    World,
    asyncpg_write,
    psycopg_write,
    sqlalchemy_raw,
    sqlalchemy_url,
    sqlalchemy_write,
)
from tests.transactions.test_behaviours import *  # noqa: F403

pytestmark = [pytest.mark.store("pgbouncer"), pytest.mark.xdist_group("pgbouncer")]


class Behind(World):
    """The callers go through the pooler; the test looks at the database beside it."""

    direct: str

    def query(self, sql: str) -> list[Any]:
        with psycopg.connect(self.direct, autocommit=True) as other:
            return other.execute(sql).fetchall()


def raw(connection: Any, text: str) -> Any:
    return connection.execute(text)


@contextmanager
def on_psycopg(world: World) -> Iterator[Caller]:
    with psycopg.connect(world.plain, prepare_threshold=None) as connection:
        yield Caller(world, connection, psycopg_write, raw)


@contextmanager
def on_async_psycopg(world: World) -> Iterator[Caller]:
    caller = AsyncCaller(
        world, lambda: psycopg.AsyncConnection.connect(world.plain, prepare_threshold=None), psycopg_write, raw
    )
    yield caller
    caller.close(lambda connection: connection.close())


@contextmanager
def on_asyncpg(world: World) -> Iterator[Caller]:
    async def opened() -> Any:
        return await asyncpg.connect(world.plain, statement_cache_size=0)

    caller = AsyncCaller(world, opened, asyncpg_write, raw)
    yield caller
    caller.close(lambda connection: connection.close())


@contextmanager
def on_session(world: World) -> Iterator[Caller]:
    unprepared = {"prepare_threshold": None}
    engine = create_engine(sqlalchemy_url(world, "postgresql+psycopg"), poolclass=NullPool, connect_args=unprepared)
    with sessionmaker(engine)() as session:
        yield Caller(world, session, sqlalchemy_write, sqlalchemy_raw)
    engine.dispose()


RIGS: dict[str, Callable[[World], Any]] = {
    "postgres-psycopg": on_psycopg,
    "postgres-psycopg-async": on_async_psycopg,
    "postgres-asyncpg": on_asyncpg,
    "postgres-session": on_session,
}


@pytest.fixture(params=RIGS)
def rig(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture
def world(pooled: Pooled) -> Iterator[World]:
    pooled.empty("sync").close()
    with psycopg.connect(pooled.direct, autocommit=True) as admin:
        admin.execute(EFFECTS)
        admin.execute(sql.SQL("DELETE FROM {}").format(sql.Identifier("effects")))
    made = Behind(pooled.url, RetrySafe(pooled.url))
    made.direct = pooled.direct
    yield made
    made.safe.close()


@pytest.fixture
def caller(rig: str, world: World) -> Iterator[Callable[[], Caller]]:
    with ExitStack() as stack:
        yield lambda: stack.enter_context(RIGS[rig](world))
