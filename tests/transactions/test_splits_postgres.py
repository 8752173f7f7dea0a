"""PostgreSQL after an SQL error: it answers nothing more, and what was committed before is found out all the same."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column, sessionmaker

from retrysafe import Answer
from retrysafe.core.ops import Lookup
from retrysafe.core.states import State
from retrysafe.errors import OutcomeUnknown, RolledBack, StoreError, TransactionSplit
from retrysafe.transactions.failures import ErrorClass, classify_error
from tests.transactions.conftest import marks
from tests.transactions.rigs import COMMIT, DEADLOCK, POSTGRES, RELEASE, ROLLBACK, SCOPE, Caller, World, task

Open = Callable[[], Caller]
ADAPTERS = [pytest.param(f"postgres-{name}", marks=marks(f"postgres-{name}"), id=name) for name in POSTGRES]
IN_A_TRANSACTION = [each for each in ADAPTERS if each.id not in ("psycopg-autocommit", "asyncpg", "asyncpg-pool")]
"""Connections that begin another transaction after a commit by hand."""
each_adapter = pytest.mark.parametrize("rig", ADAPTERS, indirect=True)


@each_adapter
def test_a_deadlock_after_a_commit_does_not_run_the_body_again(world: World, caller: Open) -> None:
    """Without the commit it would be run again, as often as need be: the first part is there already."""
    ran: list[int] = []
    with pytest.raises(TransactionSplit):
        caller().run("k", [lambda: ran.append(1), "a", COMMIT, DEADLOCK])
    assert (len(ran), world.effects()) == (1, ["a"])
    with pytest.raises(OutcomeUnknown):
        caller().run("k", ["a2"])


@each_adapter
def test_a_deadlock_without_a_commit_runs_it_again(world: World, caller: Open) -> None:
    ran: list[int] = []
    with pytest.raises(RolledBack):
        caller().block("k", ["a", DEADLOCK])
    assert world.effects() == []
    user = caller()
    steps: list[Any] = [lambda: ran.append(1), "a", DEADLOCK]

    def mend() -> None:
        if len(ran) == 2:
            steps.remove(DEADLOCK)

    steps.insert(1, mend)
    assert user.run("k", steps).replayed is False
    assert (len(ran), world.effects()) == (2, ["a"])


@pytest.mark.parametrize("rig", IN_A_TRANSACTION, indirect=True)
def test_a_rollback_by_hand_before_the_error_is_no_split(world: World, caller: Open) -> None:
    with pytest.raises(Exception, match="duplicate") as caught:
        caller().run("k", ["a", ROLLBACK, "b", "b"])
    assert classify_error(caught.value) is ErrorClass.CONSTRAINT
    assert caller().run("k", ["c"]).replayed is False
    assert "a" not in world.effects()


@pytest.mark.parametrize("rig", IN_A_TRANSACTION, indirect=True)
def test_an_error_that_the_body_passed_over(world: World, caller: Open) -> None:
    """It returns as if nothing had been; our receipt is what PostgreSQL refuses."""

    user = caller()
    original, async_original = user._do, getattr(user, "_ado", None)

    def do(handle: Any, steps: Any) -> None:
        with pytest.raises(Exception, match="duplicate"):
            original(handle, steps)

    async def ado(handle: Any, steps: Any) -> None:
        assert async_original is not None
        with pytest.raises(Exception, match="duplicate"):
            await async_original(handle, steps)

    user._do = do  # type: ignore[method-assign]
    if async_original is not None:
        user._ado = ado  # type: ignore[attr-defined]
    with pytest.raises(TransactionSplit):
        user.run("k", ["a", COMMIT, "b", "b"])
    with pytest.raises(StoreError, match="passed over"):
        user.run("other", ["c", "c"])
    assert world.effects() == ["a"]


# Sessions, which hold back and look after themselves -----------------------------------------------------------------


class Base(DeclarativeBase):
    pass


class Effect(Base):
    __tablename__ = "effects"
    value: Mapped[str] = mapped_column(primary_key=True)


@pytest.fixture
def engine(postgres: World) -> Iterator[Engine]:
    made = create_engine(postgres.plain.replace("postgresql://", "postgresql+psycopg://"))
    yield made
    made.dispose()


def by_commit(session: Session) -> None:
    session.commit()


def by_statement(session: Session) -> None:
    session.execute(text("COMMIT"))


def by_savepoint(session: Session) -> None:
    with session.begin_nested():
        session.add(Effect(value="inner"))


@pytest.mark.store("postgres")
@pytest.mark.parametrize("how", [by_commit, by_statement, by_savepoint])
def test_a_flush_that_fails(postgres: World, engine: Engine, how: Callable[[Session], None]) -> None:
    """The session has rolled back by itself by then. A savepoint that ended before is no commit."""
    maker = sessionmaker(engine)

    def attempt() -> None:
        with postgres.safe.transaction(maker, key="k", scope=SCOPE, request=1) as tx:
            session: Session = tx.handle
            session.add(Effect(value="a"))
            session.flush()
            how(session)
            session.execute(text("SELECT 1"))
            session.add(Effect(value="b"))
            session.flush()
            session.expunge_all()
            session.add(Effect(value="b"))
            tx.answer = Answer(201, {})

    if how is by_savepoint:
        with pytest.raises(Exception, match="duplicate"):
            attempt()
        assert postgres.effects() == []
    else:
        with pytest.raises(TransactionSplit):
            attempt()
        assert postgres.effects() == ["a"]
        record = postgres.safe.execute(Lookup(task(postgres.safe, "k", 1, RELEASE).build_claim().id)).record
        assert record is not None
        assert record.state is State.UNCERTAIN


@pytest.mark.store("postgres")
@pytest.mark.parametrize("given", [sessionmaker, lambda engine: engine], ids=["sessionmaker", "engine"])
def test_a_connection_that_is_lost_after_a_commit(postgres: World, engine: Engine, given: Any) -> None:
    """Nobody can be asked on it any more, but its commit was seen."""

    def attempt() -> None:
        with postgres.safe.transaction(given(engine), key="k", scope=SCOPE, request=1) as tx:
            tx.handle.execute(text("INSERT INTO effects (value) VALUES ('a')"))
            tx.handle.commit()
            own = tx.handle.execute(text("SELECT pg_backend_pid()")).scalar()
            postgres.query(f"SELECT pg_terminate_backend({own}, 5000)")
            tx.handle.execute(text("SELECT 1"))

    with pytest.raises(TransactionSplit):
        attempt()
    assert postgres.effects() == ["a"]
    with pytest.raises(OutcomeUnknown):
        postgres.safe.transaction(given(engine), key="k", scope=SCOPE, request=1).__enter__()
