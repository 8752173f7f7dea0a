"""Sagas: undo in reverse, whatever began; and every combination of a failing step and failing undos."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.ops import List, Resolve
from retrysafe.core.states import State
from retrysafe.errors import NotFinished, OutcomeUnknown
from retrysafe.operations import Undo
from retrysafe.operations.journal import OperationJournal
from tests.operations.world import Charge, OrderIn, World


class Trip:
    """reserve (local) → charge (foreign) → ship (foreign): each with an undo, and a log of what ran."""

    def __init__(self, w: World, **options: Any) -> None:
        self.w = w
        self.log: list[tuple[Any, ...]] = []
        self.fail: dict[str, list[BaseException]] = {}
        op = self.op = w.safe.operation("trip", **options)

        def unreserve(tx: Any, o: OrderIn, result: int) -> None:
            self.meet("unreserve", o.item, result)
            yield lambda: tx.execute(w.q(f"DELETE FROM {w.orders} WHERE id = ?"), (result,))

        def refund(order: int, result: Charge | None, *, key: str) -> None:
            self.meet("refund", order, result.id if result else None, key)

        def recall(result: str | None, key: str) -> None:
            self.meet("recall", result, key)

        @w.local(op, undo=w.in_mode(unreserve))
        def reserve(tx: Any, o: OrderIn) -> int:
            found: int = yield from w.insert(tx, o.item, o.cents)
            self.meet("reserve")
            return found

        @w.foreign(op, undo=w.in_mode(refund))
        def charge(order: int, *, key: str) -> Charge:
            w.sent.append(key)
            self.meet("charge")
            return Charge("ch")

        @w.foreign(op, undo=w.in_mode(recall))
        def ship(*, key: str) -> str:
            self.meet("ship")
            return "shipped"

        @w.body(op)
        def body(o: OrderIn) -> Answer:
            order = yield lambda: reserve(o)
            yield lambda: charge(order)
            yield ship
            return Answer(200, {"order": order})

    def meet(self, what: str, *told: Any) -> None:
        self.log.append((what, *told))
        if self.fail.get(what):
            raise self.fail[what].pop(0)

    def __call__(self) -> Any:
        return self.w.run(self.op(OrderIn("a", 5), key="k"))

    def names(self) -> list[str]:
        return [entry[0] for entry in self.log]


def test_undo_runs_in_reverse_also_for_the_step_that_raised(w: World) -> None:
    trip = Trip(w)
    trip.fail["ship"] = [Undo(502, {"sorry": True})]
    assert trip() == Answer(502, {"sorry": True})
    assert trip() == Answer(502, {"sorry": True})
    assert trip.names() == ["reserve", "charge", "ship", "recall", "refund", "unreserve"]
    (_, shipped, ship_key), (_, order, charged, key), (_, item, row) = trip.log[3:]
    assert (shipped, order, charged, item, row) == (None, 1, "ch", "a", 1)
    assert len({key, ship_key, w.sent[0]}) == 3, "every undo has a key of its own"
    assert w.items() == []
    assert w.states() == {"reserve": "undone", "charge": "undone", "ship": "undone"}
    assert w.journal().cause == "Undo(502)"


def test_a_step_without_an_undo_is_kept(w: World) -> None:
    op = w.safe.operation("mixed")
    undone: list[str] = []

    @w.local(op)
    def note(tx: Any) -> int:
        return (yield from w.insert(tx, "note"))

    def uncall(key: str) -> None:
        undone.append(key)

    @w.foreign(op, undo=w.in_mode(uncall))
    def call(*, key: str) -> str:
        return "x"

    @w.body(op)
    def body() -> Any:
        yield note
        yield call
        raise Undo(409, {})

    assert w.run(op(key="k")).status == 409
    assert (w.states(), w.items(), len(undone)) == ({"note": "kept", "call": "undone"}, ["note"], 1)


def test_after_the_last_attempt_it_is_undone(w: World) -> None:
    trip = Trip(w, max_attempts=2)
    trip.fail["ship"] = [ConnectionError("down")] * 6
    with pytest.raises(NotFinished):
        trip()
    w.age(2)
    answer = trip()
    assert (answer.status, w.state(), w.items()) == (502, State.COMPLETED, [])
    assert trip.names()[-3:] == ["recall", "refund", "unreserve"]
    assert "down" in w.journal().cause


def test_past_key_life_a_step_with_an_undo_is_undone_not_sent(w: World) -> None:
    trip = Trip(w)
    trip.fail["ship"] = [ConnectionError("down")] * 3
    with pytest.raises(NotFinished):
        trip()
    w.age(90_000)
    assert trip().status == 502
    assert trip.names().count("ship") == 3
    assert w.states() == {"reserve": "undone", "charge": "undone", "ship": "undone"}


@pytest.mark.parametrize("which", ["recall", "refund", "unreserve"])
def test_an_undo_that_fails_for_good_does_not_stop_the_next(w: World, which: str) -> None:
    trip = Trip(w)
    trip.fail["ship"] = [Undo(502, {})]
    trip.fail[which] = [ConnectionError("down")] * 4
    with pytest.raises(OutcomeUnknown, match="the undo of"):
        trip()
    names = trip.names()
    assert {"recall", "refund", "unreserve"} <= set(names)
    assert names.count(which) == 4
    step = {"recall": "ship", "refund": "charge", "unreserve": "reserve"}[which]
    assert w.state() is State.UNCERTAIN
    assert w.record().note == f"dead letter: the undo of {step} failed; see its ledger"
    assert [name for name, state in w.states().items() if state == "stuck"] == [step]
    assert w.journal().entries[["reserve", "charge", "ship"].index(step)].error == "ConnectionError: down"

    # A person repairs what was wrong and lets it go on: only that undo runs, with its own key.
    record = w.record()
    assert w.safe.execute(Resolve(record.id, record.fence, None, "repaired"))
    assert trip().status == 502
    assert trip.names() == [*names, which]
    assert set(w.states().values()) == {"undone"}


def test_a_crash_during_the_undoing_goes_on_undoing(w: World) -> None:
    class Killed(BaseException):
        pass

    trip = Trip(w)
    trip.fail["ship"] = [Undo(502, {})]
    trip.fail["refund"] = [Killed()]
    with pytest.raises(Killed):
        trip()
    assert w.state() is State.RELEASED
    assert w.states() == {"reserve": "done", "charge": "undoing", "ship": "undone"}
    assert w.record().point == "undoing: 2 left"
    assert trip().status == 502
    assert trip.names()[-3:] == ["refund", "refund", "unreserve"]
    refunds = [entry for entry in trip.log if entry[0] == "refund"]
    assert refunds[0] == refunds[1], "the same key, the same arguments"


def test_past_its_life_the_key_of_an_undo_is_not_sent_again(w: World) -> None:
    class Killed(BaseException):
        pass

    trip = Trip(w)
    trip.fail["ship"] = [Undo(502, {})]
    trip.fail["refund"] = [Killed()]
    with pytest.raises(Killed):
        trip()
    w.age(90_000)
    with pytest.raises(OutcomeUnknown):
        trip()
    assert trip.names().count("refund") == 1
    assert w.states() == {"reserve": "undone", "charge": "stuck", "ship": "undone"}


def test_an_undo_keeps_its_lease(w: World) -> None:
    """However long it takes: the heartbeat that kept the body alive keeps the undoing alive."""
    from retrysafe.engine.heartbeat import current_lease

    trip = Trip(w)
    held: list[bool] = []
    original = trip.meet

    def meet(what: str, *told: Any) -> None:
        held.append(current_lease() is not None)
        original(what, *told)

    trip.meet = meet  # type: ignore[method-assign]
    trip.fail["ship"] = [Undo(502, {})]
    trip()
    assert held == [True] * 6


def test_jobs_staged_by_an_undo_are_its_own(w: World) -> None:
    from retrysafe.operations import stage

    op = w.safe.operation("told")

    def unbook(tx: Any) -> None:
        yield lambda: None
        stage(tx, "unbooked", {})

    @w.local(op, undo=w.in_mode(unbook))
    def book(tx: Any) -> str:
        yield lambda: None
        stage(tx, "booked", {})
        return "b"

    @w.body(op)
    def body() -> Any:
        yield book
        raise Undo(409, {})

    for key in ("1", "2"):
        assert w.run(op(key=key)).status == 409
    assert [job.job.topic for job in w.jobs()] == ["booked", "unbooked"] * 2
    assert len({job.job.id for job in w.jobs()}) == 4


# Every combination -------------------------------------------------------------------------------

STEPS = ("a", "b", "c", "d", "e")
FAILING_STEPS = (None, *STEPS)
FAILING_UNDOS = [set(chosen) for size in range(6) for chosen in combinations(STEPS, size)]


@pytest.mark.parametrize("how", ["undo", "error"])
def test_five_steps_every_failing_step_with_every_set_of_failing_undos(how: str) -> None:
    """I22: 6 × 32 runs, each twice: all-done, all-undone, or a dead letter with a full ledger. Never silent."""
    safe = RetrySafe("memory://")
    ends = {"done": 0, "undone": 0, "dead": 0}
    for number, (step, undos) in enumerate((s, u) for s in FAILING_STEPS for u in FAILING_UNDOS):
        log: list[str] = []
        op = five_steps(safe, f"five{number}", log, step, undos, how)
        try:
            answer = op(key="k")
        except OutcomeUnknown:
            answer = None
        (record,) = [r for r in safe.execute(List(limit=1000)).records if r.target == op.target]
        journal = OperationJournal.decode(record.progress)
        began = list(STEPS[: STEPS.index(step) + 1]) if step else list(STEPS)
        assert [entry.step for entry in journal.entries] == began
        if step is None:
            ends["done"] += 1
            assert (answer, record.state) == (Answer(200, {}), State.COMPLETED)
            assert {entry.state for entry in journal.entries} == {"done"}
            continue
        expected = {name: "stuck" if name in undos else "undone" for name in began}
        assert {entry.step: entry.state for entry in journal.entries} == expected
        undone_in_order = [name for name in dict.fromkeys(log) if name.startswith("-")]
        assert undone_in_order == [f"-{name}" for name in reversed(began)]
        if undos & set(began):
            ends["dead"] += 1
            assert (answer, record.state) == (None, State.UNCERTAIN)
            assert record.note.startswith("dead letter: the undo of ")
        else:
            ends["undone"] += 1
            assert record.state is State.COMPLETED
            assert answer is not None
            assert answer.status == 502
    assert ends == {"done": 32, "undone": 31, "dead": 129}
    safe.close()


def five_steps(safe: RetrySafe, name: str, log: list[str], failing: str | None, undos: set[str], how: str) -> Any:
    op = safe.operation(name, max_attempts=1)
    called = {}
    for step in STEPS:

        def do(*, key: str, step: str = step) -> str:
            log.append(step)
            if step == failing:
                raise Undo(502, {}) if how == "undo" else ConnectionError(step)
            return step

        def undo(key: str, step: str = step) -> None:
            log.append(f"-{step}")
            if step in undos:
                raise ConnectionError(step)

        do.__name__ = step
        called[step] = op.foreign(undo=undo)(do)

    @op.body
    def body() -> Answer:
        for step in STEPS:
            called[step]()
        return Answer(200, {})

    return op
