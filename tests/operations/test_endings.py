"""How an operation ends: each line of the table in docs/howto/operations.md, on both databases, sync and async."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from retrysafe import Answer, Key
from retrysafe.core.ops import Resolve
from retrysafe.core.states import State
from retrysafe.errors import (
    FingerprintMismatch,
    InProgress,
    LeaseLost,
    NotFinished,
    OperationError,
    OutcomeUnknown,
    ResultNotStorable,
)
from retrysafe.operations import StepFailed, Stop, Undo, stage
from tests.operations.world import Charge, OrderIn, Ordering, World

# An Answer ---------------------------------------------------------------------------------------


def test_an_answer_is_stored_and_replayed(w: World) -> None:
    ordering = Ordering(w)
    first = ordering()
    assert first == Answer(201, {"order": 1, "charge": "ch_0"})
    assert w.run(ordering.op.start(OrderIn("a", 5), key="k")).replayed
    assert ordering() == first
    assert (w.items(), len(w.sent), len(w.jobs())) == (["a"], 1, 1)
    assert w.states() == {"insert_order": "done", "charge": "done", "finish": "done"}


def test_a_body_may_return_plain_data(w: World) -> None:
    op = w.safe.operation("plain")

    @w.body(op)
    def body(n: int) -> dict[str, int]:
        return {"n": n}

    assert w.run(op(3, key="k")) == Answer(200, {"n": 3})


def test_a_body_that_returns_what_cannot_be_stored_is_told_so_and_can_be_resumed(w: World) -> None:
    op = w.safe.operation("unstorable")
    results: list[Any] = [object(), {"ok": 1}]

    @w.foreign(op)
    def call(*, key: str) -> str:
        w.sent.append(key)
        return "x"

    @w.body(op)
    def body() -> Any:
        yield call
        return results.pop(0)

    with pytest.raises(ResultNotStorable, match="body of 'unstorable'"):
        w.run(op(key="k"))
    assert w.state() is State.RELEASED
    assert w.run(op(key="k")) == Answer(200, {"ok": 1})
    assert len(w.sent) == 1


# Stop --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("where", ["insert_order", "charge", "finish"])
def test_stop_is_the_answer_and_nothing_is_undone(w: World, where: str) -> None:
    ordering = Ordering(w)
    ordering.fail[where] = [Stop(402, {"declined": True})]
    assert ordering() == Answer(402, {"declined": True})
    assert ordering() == Answer(402, {"declined": True})
    # In a local step the step's own transaction is rolled back; those before it stay.
    assert w.items() == ([] if where == "insert_order" else ["a"])
    assert w.jobs() == ()
    assert ordering.calls.count(where) == 1


def test_stop_in_the_body(w: World) -> None:
    op = w.safe.operation("stopped")

    @w.body(op)
    def body(n: int) -> Answer:
        raise Stop(400, {"n": n}, retry="no")

    assert w.run(op(1, key="k")) == Answer(400, {"n": 1}, [("retry", "no"), ("content-type", "application/json")])
    assert w.state() is State.COMPLETED


def test_after_a_stop_no_step_runs_even_if_the_body_goes_on(w: World) -> None:
    op = w.safe.operation("stubborn")

    @w.foreign(op)
    def declined(*, key: str) -> str:
        raise Stop(402, {})

    @w.foreign(op)
    def other(*, key: str) -> str:
        w.sent.append(key)
        return "x"

    @w.body(op)
    def body() -> Any:
        try:
            yield declined
        except Stop:
            yield other

    assert w.run(op(key="k")).status == 402
    assert w.sent == []


# Other exceptions --------------------------------------------------------------------------------


def test_a_local_step_that_fails_is_rolled_back_and_tried_again(w: World) -> None:
    ordering = Ordering(w)
    ordering.fail["finish"] = [ValueError("no"), ValueError("no")]
    assert ordering().status == 201
    assert (w.items(), len(w.jobs()), ordering.calls.count("finish")) == (["a"], 1, 3)


def test_what_is_not_finished_is_released_at_its_point_and_goes_on_from_there(w: World) -> None:
    ordering = Ordering(w)
    ordering.fail["finish"] = [ValueError("no")] * 3
    with pytest.raises(NotFinished, match=r"create_order with key 'k' stopped at 'charge'"):
        ordering()
    assert w.state() is State.RELEASED
    assert w.states() == {"insert_order": "done", "charge": "done"}
    assert ordering().status == 201
    assert (w.items(), len(w.sent), len(w.jobs())) == (["a"], 1, 1)


def test_what_failed_before_its_first_step_is_unfinished_work_too(w: World) -> None:
    """The worker goes on: so it needs a point, and must not expire."""
    ordering = Ordering(w)
    ordering.fail["insert_order"] = [ValueError("no")] * 3
    with pytest.raises(NotFinished):
        ordering()
    assert (w.record().point, w.state()) == ("started", State.RELEASED)


def test_a_provider_that_applies_and_then_times_out_charges_once(w: World) -> None:
    ordering = Ordering(w)
    ordering.fail["charge"] = [TimeoutError("reply lost")] * 2
    assert ordering().status == 201
    assert (len(w.sent), len(set(w.sent)), len(ordering.applied)) == (3, 1, 1)


def test_the_key_is_the_same_in_every_attempt(w: World) -> None:
    ordering = Ordering(w)
    ordering.fail["charge"] = [ConnectionError("down")] * 6
    for _ in range(2):
        with pytest.raises(NotFinished):
            ordering()
        assert w.states() == {"insert_order": "done", "charge": "begun"}
    assert ordering().status == 201
    assert (len(w.sent), len(set(w.sent)), w.items()) == (7, 1, ["a"])


def test_attempts_are_bounded_and_then_a_person_is_asked(w: World) -> None:
    ordering = Ordering(w, max_attempts=2)
    ordering.fail["charge"] = [ConnectionError("down")] * 6
    with pytest.raises(NotFinished):
        ordering()
    w.age(2)
    with pytest.raises(OutcomeUnknown, match="gave up after 2 failed attempts"):
        ordering()
    record = w.record()
    assert record.state is State.UNCERTAIN
    assert record.note.startswith("dead letter: gave up after 2 failed attempts, at 'charge' (ConnectionError)")
    assert w.states() == {"insert_order": "done", "charge": "begun"}
    with pytest.raises(OutcomeUnknown):
        ordering()
    assert len(w.sent) == 6


# find, key_life ----------------------------------------------------------------------------------


def asking(w: World, find: Any = None, **options: Any) -> tuple[Any, list[BaseException]]:
    """One foreign step; what it raises is taken from the list."""
    op = w.safe.operation("asking", max_attempts=options.pop("max_attempts", 10))
    errors: list[BaseException] = []

    @w.foreign(op, find=w.in_mode(find) if find else None, **options)
    def call(n: int, *, key: str) -> Charge:
        w.sent.append(key)
        if errors:
            raise errors.pop(0)
        return Charge(f"c{n}")

    @w.body(op)
    def body(n: int) -> Answer:
        charge = yield lambda: call(n)
        return Answer(200, {"charge": charge.id})

    return op, errors


def test_after_the_tries_the_provider_is_asked(w: World) -> None:
    def find(n: int, *, key: str) -> Charge:
        assert key == w.sent[0]
        return Charge("found")

    op, errors = asking(w, find)
    errors += [TimeoutError()] * 3
    assert w.run(op(1, key="k")).json() == {"charge": "found"}
    assert len(w.sent) == 3


def test_a_provider_that_knows_nothing_is_sent_the_same_key_again(w: World) -> None:
    op, errors = asking(w, lambda n, *, key: None)
    errors += [TimeoutError()] * 3
    with pytest.raises(NotFinished):
        w.run(op(1, key="k"))
    assert w.run(op(1, key="k")).json() == {"charge": "c1"}
    assert len(set(w.sent)) == 1


def test_past_its_life_a_key_is_not_sent_again(w: World) -> None:
    """I17: the other system may have forgotten the key, so the call would be a second one."""
    op, errors = asking(w, key_life=1000)
    errors += [TimeoutError()] * 9
    for late in (0, 800):
        if late:
            w.age(late)
        with pytest.raises(NotFinished):
            w.run(op(1, key="k"))
    assert len(w.sent) == 6
    w.age(101)
    with pytest.raises(OutcomeUnknown, match="not sent again"):
        w.run(op(1, key="k"))
    assert (len(w.sent), w.state()) == (6, State.UNCERTAIN)


def test_past_its_life_a_person_can_say_that_it_did_not_happen(w: World) -> None:
    """Found by simulated seed 20112: whoever said so, the next attempt found the key too old, and asked again, for
    ever. The promise is that it runs (docs/howto/resolving.md)."""
    op, errors = asking(w, key_life=1000)
    errors += [TimeoutError()] * 3
    with pytest.raises(NotFinished):
        w.run(op(1, key="k"))
    w.age(5000)
    with pytest.raises(OutcomeUnknown, match="not sent again"):
        w.run(op(1, key="k"))
    w.safe.resolve(w.record().id, happened=False, because="not in their list")
    errors += [TimeoutError()] * 3
    with pytest.raises(NotFinished):
        w.run(op(1, key="k"))
    w.age(500)
    assert w.run(op(1, key="k")).json() == {"charge": "c1"}, "its key counts from when it was sent after that"
    assert (len(w.sent), len(set(w.sent))) == (7, 1)


def test_what_a_person_said_counts_for_one_life_of_the_key(w: World) -> None:
    """The attempt after the person's word is killed inside the call. A key's life later nobody knows again."""
    op, errors = asking(w, key_life=1000)
    errors += [TimeoutError()] * 3
    with pytest.raises(NotFinished):
        w.run(op(1, key="k"))
    w.age(5000)
    with pytest.raises(OutcomeUnknown, match="not sent again"):
        w.run(op(1, key="k"))
    w.safe.resolve(w.record().id, happened=False, because="not in their list")

    class Killed(BaseException):
        pass

    errors.append(Killed())
    with pytest.raises(Killed):
        w.run(op(1, key="k"))
    assert len(w.sent) == 4
    w.lapse()
    w.age(901)
    with pytest.raises(OutcomeUnknown, match="not sent again"):
        w.run(op(1, key="k"))
    assert len(w.sent) == 4


def test_past_its_life_and_a_persons_word_the_provider_is_asked_first(w: World) -> None:
    found: list[Charge] = []

    def find(n: int, *, key: str) -> Charge | None:
        return found[0] if found else None

    op, errors = asking(w, find, key_life=1000)
    errors += [TimeoutError()] * 3
    with pytest.raises(NotFinished):
        w.run(op(1, key="k"))
    w.age(5000)
    with pytest.raises(OutcomeUnknown, match="not sent again"):
        w.run(op(1, key="k"))
    w.safe.resolve(w.record().id, happened=False, because="not in their list")
    found.append(Charge("late"))
    assert w.run(op(1, key="k")).json() == {"charge": "late"}
    assert len(w.sent) == 3


@pytest.mark.parametrize("wrong", [-600.0, 600.0, -86_400.0])
def test_a_host_with_a_wrong_clock_does_not_make_a_key_younger(
    w: World, wrong: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A host 600 s behind sent a key past its life again. Only the store's clock counts, plus the time since."""
    op, errors = asking(w, key_life=1000)
    errors += [TimeoutError()] * 9
    with pytest.raises(NotFinished):
        w.run(op(1, key="k"))
    w.age(901)
    real = time.time
    monkeypatch.setattr(time, "time", lambda: real() + wrong)
    with pytest.raises(OutcomeUnknown, match="not sent again"):
        w.run(op(1, key="k"))
    assert len(w.sent) == 3


def test_past_its_life_the_provider_is_still_asked(w: World) -> None:
    op, errors = asking(w, lambda n, *, key: Charge("found") if len(w.sent) > 2 and not errors else None, key_life=1000)
    errors += [TimeoutError()] * 3
    errors.append(TimeoutError())
    with pytest.raises(NotFinished):
        w.run(op(1, key="k"))
    errors.clear()
    w.age(5000)
    assert w.run(op(1, key="k")).json() == {"charge": "found"}
    assert len(w.sent) == 3


def test_an_attempt_that_never_came_to_the_call_does_not_make_its_key_younger(w: World) -> None:
    """The first attempt dies inside the call without a trace; the second stops before it. The third must count from
    the first."""
    op = w.safe.operation("young")
    died: list[int] = []

    @w.foreign(op, key_life=1000)
    def call(*, key: str) -> str:
        w.sent.append(key)
        return "x"

    @w.body(op)
    def body() -> Answer:
        if len(died) == 1:
            died.append(1)
            raise ValueError("before the call")
        yield call
        return Answer(200, {})

    _task, claim = op.prepare((), {}, "k")
    assert w.safe.execute(claim).granted  # attempt 1: dead inside the call, for all anybody knows
    w.lapse()
    died.append(1)
    w.age(850)
    with pytest.raises(NotFinished):
        w.run(op(key="k"))
    w.age(100)
    with pytest.raises(OutcomeUnknown):
        w.run(op(key="k"))
    assert w.sent == []


# repeatable=False --------------------------------------------------------------------------------


def resolve(w: World, answer: Answer | None) -> None:
    record = w.record()
    assert w.safe.execute(Resolve(record.id, record.fence, answer, "a person"))


def test_what_may_not_be_repeated_is_sent_once_and_becomes_uncertain(w: World) -> None:
    op, errors = asking(w, repeatable=False)
    errors += [TimeoutError("?")]
    with pytest.raises(OutcomeUnknown, match="may not be repeated"):
        w.run(op(1, key="k"))
    with pytest.raises(OutcomeUnknown):
        w.run(op(1, key="k"))
    assert (len(w.sent), w.state(), w.states()) == (1, State.UNCERTAIN, {"call": "begun"})


def test_a_person_who_knows_gives_the_answer(w: World) -> None:
    op, errors = asking(w, repeatable=False)
    errors += [TimeoutError("?")]
    with pytest.raises(OutcomeUnknown):
        w.run(op(1, key="k"))
    resolve(w, Answer(200, {"charge": "by hand"}))
    assert w.run(op(1, key="k")).json() == {"charge": "by hand"}
    assert len(w.sent) == 1


def test_a_person_who_says_it_did_not_happen_lets_it_be_sent_once_more(w: World) -> None:
    op, errors = asking(w, repeatable=False)
    errors += [TimeoutError("?")]
    with pytest.raises(OutcomeUnknown):
        w.run(op(1, key="k"))
    resolve(w, None)
    assert w.run(op(1, key="k")).json() == {"charge": "c1"}
    assert (len(w.sent), len(set(w.sent))) == (2, 1)


def test_find_tells_what_happened_to_a_call_that_may_not_be_repeated(w: World) -> None:
    op, errors = asking(w, lambda n, *, key: Charge("found"), repeatable=False)
    errors += [TimeoutError("?")]
    assert w.run(op(1, key="k")).json() == {"charge": "found"}
    assert len(w.sent) == 1


def test_a_crash_inside_a_call_that_may_not_be_repeated_is_uncertain(w: World) -> None:
    class Killed(BaseException):
        pass

    op, errors = asking(w, repeatable=False)
    errors += [Killed()]
    with pytest.raises(Killed):
        w.run(op(1, key="k"))
    assert w.state() is State.UNCERTAIN
    assert "may not be repeated" in w.record().note


def test_swallowing_an_unknown_outcome_does_not_make_it_known(w: World) -> None:
    op = w.safe.operation("swallowing")

    @w.foreign(op, repeatable=False)
    def call(*, key: str) -> str:
        raise TimeoutError

    @w.body(op)
    def body(how: str) -> Answer:
        try:
            yield call
        except Exception:
            if how == "stop":
                raise Stop(402, {}) from None
            if how == "undo":
                raise Undo(402, {}) from None
        return Answer(200, {})

    for how in ("return", "stop", "undo"):
        with pytest.raises(OutcomeUnknown):
            w.run(op(how, key=how))
    assert {record.state for record in w.records()} == {State.UNCERTAIN}


# The body meets a failure ------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["local", "foreign"])
def test_a_failure_that_was_caught_stays_a_failure_in_every_later_attempt(w: World, kind: str) -> None:
    op = w.safe.operation("fallback")
    broken = [True]
    caught: list[str] = []
    later: list[BaseException] = [ValueError("later")] * 3

    if kind == "local":

        @w.local(op)
        def first(tx: Any) -> str:
            if broken:
                raise ConnectionError("down")
            return "first"

    else:

        @w.foreign(op)
        def first(*, key: str) -> str:
            w.sent.append(key)
            if broken:
                raise ConnectionError("down")
            return "first"

    @w.foreign(op)
    def second(*, key: str) -> str:
        if later:
            raise later.pop()
        return "second"

    @w.body(op)
    def body() -> Answer:
        try:
            result = yield first
        except StepFailed as failure:
            caught.append(failure.step)
            result = yield second
        return Answer(200, {"result": result})

    with pytest.raises(NotFinished):
        w.run(op(key="k"))
    assert w.states() == {"first": "failed", "second": "begun"}
    broken.clear()
    assert w.run(op(key="k")).json() == {"result": "second"}
    assert len(w.sent) == (3 if kind == "foreign" else 0)
    assert caught == ["first", "first"]


def test_steps_run_one_after_the_other(w: World) -> None:
    op = w.safe.operation("parallel")

    @w.foreign(op)
    def call(n: int, *, key: str) -> int:
        if n == 1:
            yield lambda: call(2)
        return n

    @w.body(op)
    def body() -> Answer:
        if w.mode == "async":
            yield lambda: asyncio.gather(call(3), call(4))
        yield lambda: call(1)
        return Answer(200, {})

    with pytest.raises(OperationError, match="one after the other"):
        w.run(op(key="k"))


def test_a_step_outside_its_body_is_refused(w: World) -> None:
    op = w.safe.operation("outside")

    @w.foreign(op)
    def call(*, key: str) -> int:
        return 1

    with pytest.raises(OperationError, match="outside the body"):
        w.run(call())


# Keys --------------------------------------------------------------------------------------------


def test_the_same_key_with_other_input_is_a_mismatch(w: World) -> None:
    ordering = Ordering(w)
    ordering()
    with pytest.raises(FingerprintMismatch):
        ordering(item="b")
    assert w.items() == ["a"]


def test_an_expired_key_is_a_new_run_with_another_downstream_key(w: World) -> None:
    ordering = Ordering(w)
    ordering()
    w.sql(f"UPDATE {w.keys} SET expires = 1")
    ordering()
    assert (w.items(), len(set(w.sent)), len(w.jobs())) == (["a", "a"], 2, 2)


def test_a_second_tenant_has_another_downstream_key(w: World) -> None:
    ordering = Ordering(w)
    for account in ("acct-1", "acct-2", "acct-1"):
        w.run(ordering.op(OrderIn("a", 5), key=Key("k", account)))
    assert (len(w.items()), len(w.sent), len(set(w.sent))) == (2, 2, 2)


def test_two_operations_with_one_key_do_not_answer_for_each_other(w: World) -> None:
    def declare(name: str) -> Any:
        op = w.safe.operation(name)

        @w.body(op)
        def body(n: int) -> Answer:
            return Answer(200, {"name": name})

        return op

    one, two = declare("one"), declare("two")
    key = Key("k", "acct")
    assert w.run(one(1, key=key)).json() == {"name": "one"}
    with pytest.raises(FingerprintMismatch):
        w.run(two(1, key=key))


def test_while_one_is_at_it_another_is_told_to_wait(w: World) -> None:
    ordering = Ordering(w)
    _, claim = ordering.op.prepare((OrderIn("a", 5),), {}, "k")
    assert w.safe.execute(claim).granted
    with pytest.raises(InProgress):
        ordering()
    w.lapse()
    assert ordering().status == 201


# Zombies, and commits whose reply is lost --------------------------------------------------------


@pytest.mark.parametrize("where", ["insert_order", "charge", "finish"])
def test_who_was_taken_over_writes_nothing_and_learns_it(w: World, where: str) -> None:
    """I4, I16: its writes are rolled back, and the other's stand. On SQLite no other attempt can take over while a
    local step has the file, so there it happens during the call."""
    ordering = Ordering(w)
    original = ordering.meet
    at = "charge" if w.store == "sqlite" else where

    def meet(step: str) -> None:
        original(step)
        if step == at and w.record().attempt == 1:
            thief = b"thief".ljust(16)
            w.sql(f"UPDATE {w.keys} SET attempt = 2, token = ? WHERE state = 'claimed'", thief)

    ordering.meet = meet  # type: ignore[method-assign]
    with pytest.raises(LeaseLost):
        ordering()
    assert w.items() == ([] if at == "insert_order" else ["a"])
    w.lapse()
    assert ordering().status == 201
    assert (w.items(), len(set(w.sent)), len(w.jobs())) == (["a"], 1, 1)


class Lossy:
    """A source of transactions whose commits are carried out, and some of whose replies are lost."""

    def __init__(self, w: World, lost: list[bool]) -> None:
        from retrysafe.transactions.sources import find_source

        self._inner: Any = find_source(w.transactions(), w.mode)  # type: ignore[call-overload]
        self._lost = lost
        self._async = w.mode == "async"

    def begin(self) -> Any:
        return self._abegin() if self._async else self._begin()

    def _begin(self) -> Any:
        from contextlib import contextmanager

        @contextmanager
        def block() -> Any:
            with self._inner.begin() as tx:
                yield tx
            self._lose()

        return block()

    def _abegin(self) -> Any:
        from contextlib import asynccontextmanager

        @asynccontextmanager
        async def block() -> Any:
            async with self._inner.begin() as tx:
                yield tx
            self._lose()

        return block()

    def _lose(self) -> None:
        if self._lost and self._lost.pop(0):
            raise ConnectionError("the reply to the commit was lost")


@pytest.mark.parametrize("lost", [[True, True], [True, False], [False, True]], ids=str)
def test_a_commit_whose_reply_was_lost_is_not_done_again(w: World, lost: list[bool]) -> None:
    """I11, I15: the stored record is read before anything runs again."""
    w.safe.tx = Lossy(w, list(lost))
    ordering = Ordering(w)
    first = ordering()
    assert first == Answer(201, {"order": 1, "charge": "ch_0"})
    assert ordering() == first
    assert (w.items(), len(w.sent), len(w.jobs()), ordering.calls) == (
        ["a"],
        1,
        1,
        ["insert_order", "charge", "finish"],
    )


def test_interrupted_at_a_commit_that_took_place(w: World) -> None:
    """The journal from before that commit must not be written over it."""

    class Killed(BaseException):
        pass

    lossy = Lossy(w, [True])
    lossy._lose = lambda: (_ for _ in ()).throw(Killed()) if lossy._lost and lossy._lost.pop(0) else None  # type: ignore[method-assign]
    w.safe.tx = lossy
    ordering = Ordering(w)
    with pytest.raises(Killed):
        ordering()
    assert (w.state(), w.states()) == (State.RELEASED, {"insert_order": "done"})
    assert ordering().status == 201
    assert w.items() == ["a"]


# stage -------------------------------------------------------------------------------------------


def test_stage_is_for_local_steps_and_their_own_tx(w: World) -> None:
    op = w.safe.operation("staging")

    @w.local(op)
    def wrong(tx: Any) -> Answer:
        stage(object(), "t", {})
        return Answer(200, {})

    @w.foreign(op)
    def outside(*, key: str) -> str:
        stage(None, "t", {})
        return "x"

    @w.body(op)
    def body(which: str) -> Any:
        yield wrong if which == "wrong" else outside

    with pytest.raises(ValueError, match="pass the `tx` you were given here"):
        w.run(op("wrong", key="1"))
    with pytest.raises(ValueError, match="no transaction of ours is open"):
        w.run(op("outside", key="2"))


def test_staged_jobs_have_stable_ids(w: World) -> None:
    ordering = Ordering(w)
    ordering.fail["finish"] = [ValueError()] * 3
    with pytest.raises(NotFinished):
        ordering()
    assert w.jobs() == ()
    ordering()
    (job,) = w.jobs()
    assert len(job.job.id) == 32
    assert job.job.payload == b'{"order":1}'
