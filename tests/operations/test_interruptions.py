"""Cancelled at any await, and transactions that their owner commits in the middle."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import sqlite3
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer
from retrysafe.core.states import State
from retrysafe.errors import InProgress, OutcomeUnknown
from tests.operations.world import OrderIn, Ordering, World, make_world

CANCELLATIONS = 60


@pytest.fixture(params=[pytest.param(s, marks=pytest.mark.store(s)) for s in ("sqlite", "postgres")])
def asynchronous(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    world = make_world(request, tmp_path, request.param, "async")
    yield world
    world.close()


def test_cancelled_at_any_await(asynchronous: World) -> None:
    """Each caller is cancelled a little later than the one before; the next caller finishes the work, once."""
    w = asynchronous
    ordering = Ordering(w)
    ordering("warm", item="warm")

    async def cancelled_after(turns: int) -> bool:
        key = f"k{turns}"
        task = asyncio.ensure_future(ordering.op(OrderIn(key, 5), key=key))
        for _ in range(turns):
            await asyncio.sleep(0 if turns < CANCELLATIONS // 2 else 0.0005)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        return task.cancelled()

    assert w.loop is not None
    stopped = [w.loop.run(cancelled_after(turns)) for turns in range(CANCELLATIONS)]
    assert sum(stopped) > 10
    open_ones = [record for record in w.records() if record.state is State.CLAIMED]
    assert open_ones == [], "a cancelled caller released its claim"
    for turns in range(CANCELLATIONS):
        assert ordering(f"k{turns}", item=f"k{turns}").status == 201
    assert Counter(w.items()) == Counter(["warm", *(f"k{turns}" for turns in range(CANCELLATIONS))])
    assert len(set(w.sent)) == CANCELLATIONS + 1
    assert len(w.jobs()) == CANCELLATIONS + 1


@pytest.mark.parametrize("how", ["commit", "rollback"])
def test_a_step_that_ends_its_own_transaction_is_found_out(w: World, how: str) -> None:
    op = w.safe.operation("split")

    @w.local(op)
    def splits(tx: Any) -> Answer:
        yield from w.insert(tx, "before")
        ends = getattr(tx, how)
        if w.store == "postgres":  # psycopg refuses it inside its own transaction block: by a statement, then
            yield lambda: tx.execute(how.upper())
        else:
            yield ends
        yield from w.insert(tx, "after")
        return Answer(200, {})

    @w.body(op)
    def body() -> Answer:
        return (yield splits)

    with pytest.raises(OutcomeUnknown, match="committed or rolled back its own transaction"):
        w.run(op(key="k"))
    assert w.state() is State.UNCERTAIN
    with pytest.raises(OutcomeUnknown):
        w.run(op(key="k"))


def test_a_step_that_commits_and_then_raises_is_not_run_again(w: World) -> None:
    """Its rows would be there twice, or six times: once for each try."""
    op = w.safe.operation("split")

    @w.local(op)
    def splits(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        if w.store == "postgres":
            yield lambda: tx.execute("COMMIT")
        else:
            yield tx.commit
        raise ValueError("after the commit")

    @w.body(op)
    def body() -> Answer:
        return (yield splits)

    with pytest.raises(OutcomeUnknown, match="committed or rolled back its own transaction"):
        w.run(op(key="k"))
    assert (w.state(), w.items()) == (State.UNCERTAIN, ["kept"])
    with pytest.raises(OutcomeUnknown):
        w.run(op(key="k"))
    assert w.items() == ["kept"]


def test_a_step_that_rolls_back_commits_and_meets_a_deadlock_is_not_run_again(w: World) -> None:
    """Our transaction was rolled back with all that was in it, and the one after it was committed."""
    op = w.safe.operation("split")
    ran: list[int] = []

    @w.local(op)
    def splits(tx: Any) -> Answer:
        ran.append(1)
        yield lambda: tx.execute("ROLLBACK")
        yield from w.insert(tx, "kept")
        if w.store == "postgres":
            yield lambda: tx.execute("COMMIT")
            yield lambda: tx.execute("DO $$ BEGIN RAISE deadlock_detected; END $$")
        yield tx.commit
        busy = sqlite3.OperationalError("database is locked")
        busy.sqlite_errorname = "SQLITE_BUSY"
        raise busy

    @w.body(op)
    def body() -> Answer:
        return (yield splits)

    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            w.run(op(key="k"))
    assert (w.state(), w.items(), len(ran)) == (State.UNCERTAIN, ["kept"], 1)


@pytest.mark.parametrize("around", ["attempt", "step"])
def test_a_step_that_commits_and_is_interrupted_is_not_run_again(w: World, around: str) -> None:
    """By whoever cancels the attempt, or by a timeout that the body puts around the step."""
    op = w.safe.operation("split")
    stop = KeyboardInterrupt if w.loop is None else asyncio.CancelledError

    @w.local(op)
    def splits(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        if w.store == "postgres":
            yield lambda: tx.execute("COMMIT")
        else:
            yield tx.commit
        raise stop

    @w.body(op)
    def body() -> Answer:
        try:
            return (yield splits)
        except stop:
            if around == "step":
                raise TimeoutError from None  # as asyncio.timeout does
            raise

    with pytest.raises((stop, concurrent.futures.CancelledError) if around == "attempt" else OutcomeUnknown):
        w.run(op(key="k"))
    assert (w.state(), w.items()) == (State.UNCERTAIN, ["kept"])
    assert "dead letter" in w.record().note
    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            w.run(op(key="k"))
    assert w.items() == ["kept"]
    w.safe.resolve(w.record().id, happened=False, because="looked, and deleted the row")
    assert w.state() is State.RELEASED


@pytest.mark.parametrize("passes_over", [False, True])
def test_a_step_that_commits_and_then_meets_an_sql_error_is_not_run_again(w: World, passes_over: bool) -> None:
    """PostgreSQL answers nothing more after its error: whether there was a commit is read after the rollback."""
    op = w.safe.operation("split")

    @w.local(op)
    def splits(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        if w.store == "postgres":
            yield lambda: tx.execute("COMMIT")
        else:
            yield tx.commit
        try:
            yield lambda: tx.execute("SELECT no_such_column")
        except Exception:
            if not passes_over:
                raise
        return Answer(200, {})

    @w.body(op)
    def body() -> Answer:
        return (yield splits)

    with pytest.raises(OutcomeUnknown, match="committed or rolled back its own transaction"):
        w.run(op(key="k"))
    assert (w.state(), w.items()) == (State.UNCERTAIN, ["kept"])
    with pytest.raises(OutcomeUnknown):
        w.run(op(key="k"))
    assert w.items() == ["kept"]


@pytest.mark.parametrize("error", [TimeoutError("mail server"), FileNotFoundError(2, "template.html")])
def test_a_step_that_commits_and_then_meets_an_error_of_another_system_is_not_run_again(
    w: World, error: Exception
) -> None:
    """It looks like a lost connection, but it is another one: ours can still be used."""
    op = w.safe.operation("split")

    @w.local(op)
    def splits(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        if w.store == "postgres":
            yield lambda: tx.execute("COMMIT")
        else:
            yield tx.commit
        raise error

    @w.body(op)
    def body() -> Answer:
        return (yield splits)

    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            w.run(op(key="k"))
        assert (w.state(), w.items()) == (State.UNCERTAIN, ["kept"])


def test_a_step_that_meets_an_error_of_another_system_without_a_commit_is_tried_again(w: World) -> None:
    op = w.safe.operation("tries")
    ran: list[int] = []

    @w.local(op)
    def mails(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        ran.append(1)
        if len(ran) == 1:
            raise TimeoutError("mail server")
        return Answer(200, {})

    @w.body(op)
    def body() -> Answer:
        return (yield mails)

    assert w.run(op(key="k")).status == 200
    assert (len(ran), w.items()) == (2, ["kept"])


@pytest.mark.parametrize("fails", [False, True])
def test_a_step_that_commits_and_closes_its_connection_is_not_run_again(w: World, fails: bool) -> None:
    """A file has no connection that breaks by itself: the step has closed it. On a server another connection asks what
    became of the transaction."""
    op = w.safe.operation("split")

    @w.local(op)
    def splits(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        if w.store == "postgres":
            yield lambda: tx.execute("COMMIT")
        else:
            yield tx.commit
        yield tx.close
        if fails:
            raise ValueError("after the commit")
        return Answer(200, {})

    @w.body(op)
    def body() -> Answer:
        return (yield splits)

    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            w.run(op(key="k"))
        assert (w.state(), w.items()) == (State.UNCERTAIN, ["kept"])


def test_a_step_that_loses_its_connection_without_a_commit_is_tried_again(w: World) -> None:
    if w.store != "postgres":
        pytest.skip("a file has no connection that is lost")
    op = w.safe.operation("tries")
    ran: list[int] = []

    @w.local(op)
    def loses(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        ran.append(1)
        if len(ran) == 1:
            yield lambda: tx.execute("SELECT pg_terminate_backend(pg_backend_pid())")
        return Answer(200, {})

    @w.body(op)
    def body() -> Answer:
        return (yield loses)

    assert w.run(op(key="k")).status == 200
    assert (len(ran), w.items()) == (2, ["kept"])


def test_a_step_that_commits_and_then_finds_the_file_locked_is_not_run_again(w: World) -> None:
    """SQLITE_BUSY rolls nothing back, so the transaction can still be used."""
    if w.store != "sqlite":
        pytest.skip("only SQLite has one lock for the whole file")
    op = w.safe.operation("split")

    @w.local(op)
    def splits(tx: Any) -> Answer:
        yield from w.insert(tx, "kept")
        yield tx.commit
        yield lambda: tx.execute("PRAGMA busy_timeout = 0")
        w.sql("BEGIN IMMEDIATE")
        try:
            yield from w.insert(tx, "locked out")
        finally:
            w.sql("ROLLBACK")
        return Answer(200, {})

    @w.body(op)
    def body() -> Answer:
        return (yield splits)

    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            w.run(op(key="k"))
        assert (w.state(), w.items()) == (State.UNCERTAIN, ["kept"])


def test_a_step_that_commits_and_returns_what_cannot_be_stored_is_not_run_again(w: World) -> None:
    """ "It was rolled back, so nothing happened" would not be true."""
    op = w.safe.operation("split")

    @w.local(op)
    def splits(tx: Any) -> Any:
        yield from w.insert(tx, "kept")
        if w.store == "postgres":
            yield lambda: tx.execute("COMMIT")
        else:
            yield tx.commit
        return object()

    @w.body(op)
    def body() -> Answer:
        yield splits
        return Answer(200, {})

    for _ in range(2):
        with pytest.raises(OutcomeUnknown):
            w.run(op(key="k"))
        assert (w.state(), w.items()) == (State.UNCERTAIN, ["kept"])


def test_a_lease_that_lapsed_is_not_taken_while_its_owner_lives(w: World) -> None:
    """The heartbeat renews: the second caller has to wait, however long the first takes."""
    ordering = Ordering(w)
    told: list[type[Exception]] = []
    original = ordering.meet
    twin = ordering.op.prepare((OrderIn("a", 5),), {}, "k")

    def meet(step: str) -> None:
        original(step)
        if step == "charge":
            told.append(InProgress if not w.safe.execute(twin[1]).granted else AssertionError)

    ordering.meet = meet  # type: ignore[method-assign]
    assert ordering().status == 201
    assert told == [InProgress]
