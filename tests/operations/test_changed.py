"""Code that changed under an operation: it refuses the run instead of guessing, and leaves it to the old code (I31)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from retrysafe import Answer, RetrySafe
from retrysafe.core.states import State
from retrysafe.core.times import duration_to_micros
from retrysafe.engine.resume_times import compute_backoff
from retrysafe.engine.why import BEGUN_BY_OTHER_CODE
from retrysafe.errors import NotFinished, OperationChanged
from retrysafe.operations import Stop
from retrysafe.worker.completer import Completer
from tests.operations.world import World

Body = Callable[[dict[str, Any]], Any]


def declare(w: World, names: list[str], *, version: int = 1, fails: bool = False, body: Body | None = None) -> Any:
    """An operation of foreign steps, called in order; the last one fails if told to. Another program would declare the
    same name again: here it is another RetrySafe on the same store."""
    safe = RetrySafe(w.url, tx=w.safe.tx)
    op = safe.operation("shipping", version=version)
    steps: dict[str, Any] = {}
    for name in names:

        def step(*, key: str, name: str = name) -> str:
            w.sent.append(f"{name}@{version}")
            if fails and name == names[-1]:
                raise ConnectionError("down")
            return name

        step.__name__ = name
        steps[name] = op.foreign(w.in_mode(step))

    def story() -> Any:
        if body is not None:
            return (yield from body(steps))
        for name in names:
            yield steps[name]
        return Answer(200, {"by": version})

    op.body(w.in_mode(story))
    return op


def leave_half_way(w: World) -> None:
    op = declare(w, ["pick", "pack"], fails=True)
    with pytest.raises(NotFinished):
        w.run(op(key="k"))
    close(w, op)
    assert w.states() == {"pick": "done", "pack": "begun"}


def close(w: World, op: Any) -> None:
    if w.loop is not None:
        w.loop.run(op.safe.aclose())
    else:
        op.safe.close()


def refused(w: World, op: Any, match: str) -> None:
    before = w.record()
    with pytest.raises(OperationChanged, match=match):
        w.run(op(key="k"))
    after = w.record()
    assert (after.state, after.point) == (State.RELEASED, before.point)
    assert w.states() == {"pick": "done", "pack": "begun"}
    close(w, op)
    # The code that began it can still finish it.
    op = declare(w, ["pick", "pack"])
    assert w.run(op(key="k")) == Answer(200, {"by": 1})
    assert w.sent.count("pick@1") == 1
    close(w, op)


def test_another_version_refuses(w: World) -> None:
    leave_half_way(w)
    refused(w, declare(w, ["pick", "pack"], version=2), "begun as 'shipping@1'")


def test_a_renamed_step_refuses(w: World) -> None:
    leave_half_way(w)
    refused(w, declare(w, ["take", "pack"]), "has a step 'pick', which this code does not know")


def test_reordered_steps_refuse(w: World) -> None:
    leave_half_way(w)
    refused(w, declare(w, ["pack", "pick"]), "step number 1 was 'pick' and is now 'pack'")


def only_pick(steps: dict[str, Any]) -> Any:
    yield steps["pick"]
    return Answer(200, {"early": True})


def stops(steps: dict[str, Any]) -> Any:
    yield steps["pick"]
    raise Stop(410, {})


@pytest.mark.parametrize("body", [only_pick, stops])
def test_a_body_that_no_longer_comes_to_a_step_refuses(w: World, body: Body) -> None:
    """The step that was begun may have happened: an answer without it would be a guess."""
    leave_half_way(w)
    refused(w, declare(w, ["pick", "pack"], body=body), "has a step 'pack', which the body no longer calls")


def test_refusing_does_not_hide_a_call_that_left_no_trace(w: World) -> None:
    """Killed in its first step: nothing is in the journal. Other code takes over and refuses; the run is still
    unfinished work."""
    op = declare(w, ["pick", "pack"])
    _, claim = op.prepare((), {}, "k")
    assert w.safe.execute(claim).granted
    close(w, op)
    w.lapse()
    newer = declare(w, ["pick", "pack"], version=2)
    with pytest.raises(OperationChanged):
        w.run(newer(key="k"))
    close(w, newer)
    assert (w.state(), w.record().point) == (State.RELEASED, "started")


def test_a_worker_with_older_code_leaves_it_alone(w: World) -> None:
    leave_half_way(w)
    older = declare(w, ["pick"], version=7)
    assert Completer(older.safe, grace=0, backoff=lambda n: 0).run_once().unknown == 1
    close(w, older)
    assert (w.state(), w.record().attempt) == (State.RELEASED, 1)


def test_a_run_that_other_code_cannot_take_up_is_due_soon(w: World) -> None:
    """However often its client came to the code that lacks a step of it."""
    leave_half_way(w)
    other = declare(w, ["take", "pack"])
    for _ in range(9):
        with pytest.raises(OperationChanged):
            w.run(other(key="k"))
    close(w, other)
    record = w.record()
    assert (record.attempt, record.note) == (10, f"{BEGUN_BY_OTHER_CODE}, as 'shipping@1'")
    fits = declare(w, ["pick", "pack"])
    w.sql(f"UPDATE {w.keys} SET completed = completed - ?", duration_to_micros(compute_backoff(1)))
    assert Completer(fits.safe).run_once().finished == 1
    close(w, fits)


def test_a_journal_of_another_release_refuses(w: World) -> None:
    leave_half_way(w)
    w.sql(f"UPDATE {w.keys} SET progress = ?", b'{"v":99}')
    op = declare(w, ["pick", "pack"])
    with pytest.raises(OperationChanged, match="of version 99"):
        w.run(op(key="k"))
    close(w, op)
    assert w.record().progress == b'{"v":99}'
