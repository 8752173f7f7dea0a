"""What counts as a failed attempt: not a database that is away, not a client that obeys Retry-After (I35)."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe, Stop, Undo
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, OperationError, OutcomeUnknown, UsageError
from retrysafe.operations import StepFailed
from retrysafe.operations.run import retry_delays
from retrysafe.worker.completer import Completer
from tests.operations.world import Ordering, World, make_world


def test_a_client_that_asks_every_second_during_an_outage_does_not_end_it(w: World) -> None:
    """Twelve seconds, twelve attempts, ten of which there may be: it goes on when the provider is back."""
    ordering = Ordering(w)
    ordering.fail["charge"] = [ConnectionError("down")] * 3 * 12
    for _ in range(12):
        with pytest.raises(NotFinished) as told:
            ordering()
        assert told.value.retry_after >= 1
        w.age(1)
    assert w.journal().failed <= 4
    assert ordering().status == 201
    assert (len(set(w.sent)), w.items()) == (1, ["a"])


def test_a_transaction_that_cannot_be_opened_never_undoes_what_was_paid(w: World) -> None:
    """A pool that was not open yet, at every attempt there is."""
    ordering = Ordering(w, max_attempts=2)
    ordering.fail["finish"] = [ValueError("no")] * 3
    with pytest.raises(NotFinished):
        ordering()

    def closed() -> Any:
        raise ConnectionError("the pool is not open yet")

    opened, w.safe.tx = w.safe.tx, closed
    ordering.op._tx_binding = None
    for _ in range(4):
        w.age(600)
        with pytest.raises(NotFinished, match="no transaction could be opened"):
            ordering()
    w.safe.tx = opened
    assert (w.state(), w.journal().failed) == (State.RELEASED, 1)
    assert ordering().status == 201
    assert (len(w.sent), w.items()) == (1, ["a"])


def test_a_death_counts_and_a_shutdown_does_not(w: World) -> None:
    ordering = Ordering(w, max_attempts=3)
    ordering.fail["insert_order"] = [KeyboardInterrupt() if w.loop is None else asyncio.CancelledError()]
    with pytest.raises(BaseException):  # noqa: B017
        ordering()
    assert (w.state(), w.journal().failed) == (State.RELEASED, 0)
    for _ in range(2):
        assert w.safe.execute(ordering.op._build_resume_claim(w.record())[1]).granted
        w.lapse()
    assert w.journal().count_failures(w.record().attempt) == 2
    ordering.fail["charge"] = [ConnectionError("down")] * 3
    with pytest.raises(OutcomeUnknown, match="gave up after 3 failed attempts"):
        ordering()


def test_the_worker_says_why(w: World, caplog: pytest.LogCaptureFixture) -> None:
    ordering = Ordering(w)
    ordering.fail["charge"] = [ConnectionError("secret words")] * 6
    with pytest.raises(NotFinished):
        ordering()
    with caplog.at_level(logging.WARNING, logger="retrysafe.worker"):
        Completer(w.safe, backoff=lambda n: 0.0).run_once()
    assert "create_order@1" in caplog.text
    assert "NotFinished (StepFailed)" in caplog.text
    assert "secret words" not in caplog.text


# What the body makes of it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ending", [Stop(402, {"declined": True}), Undo(409, {"declined": True})])
def test_an_ending_that_the_body_swallows_is_not_lost(w: World, ending: Exception) -> None:
    op = w.safe.operation("paying")

    @w.foreign(op)
    def charge(*, key: str) -> str:
        raise ending

    @w.body(op)
    def body() -> Answer:
        with contextlib.suppress(Exception):
            yield charge
        return Answer(201, {"paid": True})

    answer = w.run(op(key="k"))
    assert (answer.status, answer.json()) == (ending.answer.status, {"declined": True})  # type: ignore[attr-defined]
    assert w.run(op(key="k")) == answer


def test_a_body_may_say_the_ending_in_its_own_words(w: World) -> None:
    op = w.safe.operation("paying")

    @w.foreign(op)
    def charge(*, key: str) -> str:
        raise Stop(402, {})

    @w.body(op)
    def body() -> Answer:
        try:
            yield charge
        except Stop:
            raise Undo(409, {"mine": True}) from None
        return Answer(201, {})

    assert w.run(op(key="k")).json() == {"mine": True}


# Waiting in other ways ----------------------------------------------------------------------------------------------


class Async:
    """Two steps on a loop, and a body that gets a function to call them."""

    def __init__(self, safe: RetrySafe, **options: Any) -> None:
        self.op = safe.operation("sending")
        self.sent: list[str] = []
        self.patience: asyncio.Timeout | None = None

        @self.op.foreign(**options)
        async def first(*, key: str) -> str:
            self.sent.append("first")
            if self.patience is not None:
                self.patience.reschedule(asyncio.get_running_loop().time())
                await asyncio.sleep(60)
            return "first"

        @self.op.foreign
        async def second(*, key: str) -> str:
            self.sent.append("second")
            return "second"

        self.first, self.second = first, second


@pytest.fixture(
    params=[pytest.param(store, id=store, marks=pytest.mark.store(store)) for store in ("sqlite", "postgres")]
)
def aw(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """A world of async code: sync code has nothing to await."""
    world = make_world(request, tmp_path, request.param, "async")
    yield world
    world.close()


@pytest.mark.parametrize("repeatable", [True, False])
def test_a_timeout_around_a_step_is_refused(aw: World, repeatable: bool) -> None:
    """The body would go on as if it had not been sent."""
    given = Async(aw.safe, repeatable=repeatable)

    @given.op.body
    async def body() -> Answer:
        try:
            async with asyncio.timeout(None) as given.patience:
                await given.first()
        except TimeoutError:
            pass
        return Answer(201, {"sent": False})

    expected = OperationError if repeatable else OutcomeUnknown
    with pytest.raises(expected, match="was cancelled from within the body"):
        aw.run(given.op(key="k"))
    assert aw.state() is (State.RELEASED if repeatable else State.UNCERTAIN)
    assert given.sent == ["first"]


def test_the_step_after_a_timeout_is_not_sent(aw: World) -> None:
    given = Async(aw.safe)

    @given.op.body
    async def body() -> Answer:
        try:
            async with asyncio.timeout(None) as given.patience:
                await given.first()
        except TimeoutError:
            await given.second()
        return Answer(201, {})

    with pytest.raises(OperationError, match="was cancelled from within the body"):
        aw.run(given.op(key="k"))
    assert given.sent == ["first"]


def test_steps_side_by_side_are_refused_before_anything_is_sent(aw: World) -> None:
    given = Async(aw.safe)

    @given.op.body
    async def body() -> Answer:
        await asyncio.gather(given.first(), given.second())
        return Answer(201, {})

    with pytest.raises(OperationError, match="not awaited before step"):
        aw.run(given.op(key="k"))
    assert given.sent == []


@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")
def test_a_step_that_is_not_awaited_is_found_out(aw: World) -> None:
    given = Async(aw.safe)

    @given.op.body
    async def body() -> Answer:
        given.second()
        return Answer(201, {"sent": True})

    with pytest.raises(OperationError, match="'second' was called, but not awaited at all"):
        aw.run(given.op(key="k"))
    assert given.sent == []


# Declaring ----------------------------------------------------------------------------------------------------------


def test_so_many_tries_are_so_many_calls(w: World) -> None:
    op = w.safe.operation("knocking")

    @w.foreign(op, tries=8)
    def knock(*, key: str) -> str:
        w.sent.append(key)
        raise ConnectionError("nobody")

    @w.body(op)
    def body() -> Answer:
        try:
            yield knock
        except StepFailed:
            return Answer(200, {})
        return Answer(201, {})

    assert w.run(op(key="k")).status == 200
    assert len(w.sent) == 8


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("foreign", {"tries": 2.5}),
        ("foreign", {"tries": 0}),
        ("foreign", {"timeout": -1}),
        ("foreign", {"tries": 10**9}),
        ("foreign", {"timeout": float("inf")}),
        ("foreign", {"repeatable": "no"}),
        ("foreign", {"repeatable": False, "tries": 5}),
        ("foreign", {"repeatable": False, "backoff": (1,)}),
        ("foreign", {"service": None}),
        ("foreign", {"deadline": "5"}),
        ("foreign", {"deadline": True}),
        ("foreign", {"undo": lambda amount, key: None}),
        ("foreign", {"find": lambda key, amount: None}),
        ("foreign", {"find": lambda: None}),
        ("local", {"timeout": 5}),
        ("local", {"key_life": 5}),
        ("local", {"service": "psp"}),
        ("local", {"undo": lambda tx, amount: None}),
        ("local", {"undo": lambda: None}),
        ("foreign", {"key_life": float("nan")}),
        ("foreign", {"undo": "refund"}),
        ("foreign", {"find": 7}),
        ("foreign", {"backoff": 3}),
        ("foreign", {"backoff": (-1,)}),
        ("foreign", {"final": ValueError}),
        ("foreign", {"deadline": 0}),
        ("foreign", {"deadline": 5, "repeatable": False}),
        ("local", {"deadline": 5}),
        ("local", {"repeatable": False}),
        ("local", {"find": print}),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_declared(w: World, kind: str, options: dict[str, Any]) -> None:
    op = w.safe.operation("wrong")

    def step(tx: Any = None, *, key: str = "") -> None: ...

    with pytest.raises(OperationError, match="step 'step'"):
        getattr(op, kind)(**options)(step)


@pytest.mark.parametrize("ending", [Stop, Undo])
def test_an_ending_begins_with_its_status(ending: Any) -> None:
    with pytest.raises(UsageError, match=rf"{ending.__name__}\('declined'\): the first argument is the status"):
        ending("declined")


def test_arguments_without_a_name_are_refused(w: World) -> None:
    op = w.safe.operation("nameless")

    def step(tx: Any, *items: str) -> None: ...

    with pytest.raises(OperationError, match=r"declares `\*items: "):
        op.local(step)


@pytest.mark.parametrize("helper", [print, lambda **given: None, lambda tx=None, *, key: None])
def test_helpers_that_take_what_they_get_are_accepted(w: World, helper: Any) -> None:
    op = w.safe.operation("right")

    @op.foreign(undo=helper, find=None if helper is print else helper)
    def step(tx: Any = None, *, key: str = "") -> None: ...


# How a step is tried again ------------------------------------------------------------------------------------------


class Declined(Exception):
    pass


def one_step(w: World, kind: str, error: Exception, **options: Any) -> Any:
    op = w.safe.operation("trying")

    def refund(result: Any, key: str) -> None:
        w.sent.append("undone")

    @w.foreign(op, undo=w.in_mode(refund))
    def before(*, key: str) -> str:
        return "paid"

    def foreign_step(*, key: str) -> str:
        w.sent.append("tried")
        raise error

    def local_step(tx: Any) -> str:
        w.sent.append("tried")
        raise error

    called = w.foreign(op, **options)(foreign_step) if kind == "foreign" else w.local(op, **options)(local_step)

    @w.body(op)
    def body() -> Answer:
        yield before
        yield called
        return Answer(201, {})

    return op


@pytest.mark.parametrize("kind", ["foreign", "local"])
def test_an_error_that_is_final_is_met_once(w: World, kind: str) -> None:
    """Another try, or another attempt, would only meet it again: it is undone at once."""
    op = one_step(w, kind, Declined("no"), final=(Declined,))
    assert w.run(op(key="k")).status == 502
    assert w.sent == ["tried", "undone"]


@pytest.mark.parametrize("kind", ["foreign", "local"])
def test_other_errors_are_not_final(w: World, kind: str) -> None:
    op = one_step(w, kind, ConnectionError("no"), final=(Declined,), tries=2, backoff=(0.0, 0.0))
    with pytest.raises(NotFinished):
        w.run(op(key="k"))
    assert w.sent == ["tried", "tried"]


def test_after_its_deadline_a_step_is_not_sent_again(w: World) -> None:
    op = one_step(w, "foreign", ConnectionError("no"), deadline=3600, tries=1)
    with pytest.raises(NotFinished):
        w.run(op(key="k"))
    w.age(3601)
    assert w.run(op(key="k")).status == 502
    assert w.sent == ["tried", "undone"]
    assert "its deadline of 3600 s is over" in w.journal().cause


def test_the_pauses_are_as_declared() -> None:
    assert retry_delays(1) == []
    assert retry_delays(5, (0.1, 2.0)) == [0.1, 2.0, 2.0, 2.0]
    assert len(retry_delays(8)) == 7
