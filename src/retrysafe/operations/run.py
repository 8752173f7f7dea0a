"""One attempt at an operation: where it stands, and the stories of its steps.

Which commits there are (DESIGN section 5): the claim; one per local step, with the user's writes and the recovery
point in it; and the answer, which rides in the last local step's commit when that step returns it. A foreign
step's result is carried by the next commit: if the process dies before that, the same call is made again with the
same key, and the other system recognises it. Only where that would not be safe is an intent written first.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import replace
from typing import Any

from retrysafe.core.keys import derive
from retrysafe.core.ops import Advance, Complete, Lookup, Op
from retrysafe.core.records import Answer, Fence, Record
from retrysafe.core.states import OnLapse, State
from retrysafe.core.times import SECOND, micros
from retrysafe.engine import typed
from retrysafe.engine.effects import Call, Flow, Pause, Transact
from retrysafe.errors import LeaseLost, OperationChanged, OperationError, RetrySafeError
from retrysafe.operations.endings import Ending
from retrysafe.operations.journal import Entry, Journal, point_of
from retrysafe.operations.steps import Step

BACKOFF = (0.05, 0.25, 1.0)
KEY_MARGIN = 300.0
"""Clocks differ, and the other system counts from when it first saw the key: stop using it this much earlier."""


class Unknown(RetrySafeError):
    """A step that may not be repeated has no known outcome. The operation becomes uncertain."""


class StepFailed(RetrySafeError):
    """A step failed as often as it may in one attempt."""

    def __init__(self, step: str, error: BaseException) -> None:
        self.step = step
        super().__init__(f"step {step!r} failed: {type(error).__name__}: {error}")


class Run:
    """The mutable part: one object per attempt, used by one caller at a time."""

    def __init__(
        self,
        name: str,
        steps: dict[str, Step],
        record: Record,
        *,
        fence: Fence,
        lease: float,
        clock: Callable[[], float],
    ) -> None:
        self.name = name
        self.steps = steps
        self.record = record
        self.fence = fence
        self.lease = micros(lease)
        self.clock = clock
        self.journal = Journal.decode(record.progress)
        self.place = 0
        self.dirty = False
        self.answer: Answer | None = None
        self.broken: RetrySafeError | None = None
        check_known(name, steps, self.journal)

    def now(self) -> int:
        return round(self.clock() * SECOND)

    def enter(self, step: Step) -> tuple[int, Entry | None]:
        """The place of this call, and what is known of it from an earlier attempt."""
        if self.broken is not None:
            raise self.broken
        if self.answer is not None:
            raise OperationError(f"step {step.name!r} was called after a local step had already returned the Answer")
        place, self.place = self.place, self.place + 1
        if place >= len(self.journal.entries):
            return place, None
        known = self.journal.entries[place]
        if known.step != step.name:
            raise OperationChanged(
                self.name, f"its step number {place + 1} was {known.step!r} and is now {step.name!r}"
            )
        return place, known

    def key(self, step: Step, place: int, undo: bool = False) -> str:
        return derive(self.record.run, step.service, step.name, part=str(place), undo=undo)

    def advance(self, journal: Journal, on_lapse: OnLapse = "resume") -> Advance:
        return Advance(self.record.id, self.fence, point_of(journal), journal.encode(), on_lapse, self.lease)


current: ContextVar[Run | None] = ContextVar("retrysafe_run", default=None)


def check_known(name: str, steps: dict[str, Step], journal: Journal) -> None:
    for entry in journal.entries:
        if entry.step not in steps:
            raise OperationChanged(name, f"it has a step {entry.step!r}, which this code does not know")


def commit(run: Run, journal: Journal, on_lapse: OnLapse = "resume") -> Flow[None]:
    """Make a journal the truth, or learn that we are no longer the ones who may."""
    journal = replace(journal, at=run.now())
    if not (yield run.advance(journal, on_lapse)):
        raise LeaseLost(run.record.key, run.fence.attempt)
    run.journal, run.dirty = journal, False


# Local steps ------------------------------------------------------------------------------------


def local(run: Run, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[Any]:
    """The user's writes and the recovery point, in one commit. Rolled back and tried again when it fails."""
    place, known = run.enter(step)
    if known is not None and known.state == "done":
        return typed.load(known.result, step.returns)
    given = step.bound(args, kwargs)
    failure: BaseException = RuntimeError("not tried")
    for pause in (*BACKOFF[: step.tries - 1], None):
        try:
            return (yield from local_once(run, step, place, given))
        except (Ending, LeaseLost, OperationError, OperationChanged):
            raise
        except Exception as error:
            failure = error
        # The commit may have happened and only its reply been lost: what is stored tells, before anything runs again.
        found, result = yield from committed(run, step, place)
        if found:
            return result
        if pause is not None:
            yield Pause(run.record.id, pause)
    raise StepFailed(step.name, failure) from failure


def local_once(run: Run, step: Step, place: int, given: dict[str, Any]) -> Flow[Any]:
    written: list[tuple[Journal, Answer | None]] = []

    def settle(result: Any) -> tuple[Op[Any], ...]:
        entry = Entry(step.name, "done", step.dump_args(given), typed.dump(result), run.now())
        journal = replace(run.journal.with_entry(place, entry), at=run.now())
        answer = result if isinstance(result, Answer) else None
        written.append((journal, answer))
        ops: tuple[Op[Any], ...] = (run.advance(journal),)
        return (*ops, Complete(run.record.id, run.fence, answer)) if answer is not None else ops

    result = yield Transact(lambda handle: step.function(handle, **given), settle)
    run.journal, run.answer = written[-1]
    run.dirty = False
    return result


def committed(run: Run, step: Step, place: int) -> Flow[tuple[bool, Any]]:
    """Whether the store shows this step as done by this attempt."""
    record = (yield Lookup(run.record.id)).record
    if record is None or record.fence != run.fence:
        raise LeaseLost(run.record.key, run.fence.attempt)
    journal = Journal.decode(record.progress)
    if place >= len(journal.entries) or journal.entries[place].state != "done":
        return False, None
    run.journal, run.dirty = journal, False
    if record.state is State.COMPLETED:
        run.answer = record.answer
    return True, typed.load(journal.entries[place].result, step.returns)


# Foreign steps ----------------------------------------------------------------------------------


def foreign(run: Run, step: Step, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Flow[Any]:
    """A call to somebody else's system, never inside a transaction, always with the same key."""
    place, known = run.enter(step)
    if known is not None and known.state == "done":
        return typed.load(known.result, step.returns)
    given = step.bound(args, kwargs)
    if run.dirty:
        yield from commit(run, run.journal)
    # An attempt that died may have sent it any time since the commit before: that is when the key's life began.
    since = known.at if known is not None else run.journal.at or run.record.created
    begun = Entry(step.name, "begun", step.dump_args(given), "", since)
    if step.repeatable:
        run.journal = run.journal.with_entry(place, begun)
        result = yield from send_repeatably(run, step, place, given, since)
    else:
        result = yield from send_once(run, step, place, given, begun, sent_before=known is not None)
    done = Entry(step.name, "done", begun.args, typed.dump(result), begun.at)
    run.journal, run.dirty = run.journal.with_entry(place, done), True
    if not step.repeatable:
        yield from commit(run, run.journal)  # it cannot be asked for again: keep it at once
    return result


def send_repeatably(run: Run, step: Step, place: int, given: dict[str, Any], since: int) -> Flow[Any]:
    """The same key again, a bounded number of times, and only while the other system still knows it (I17)."""
    key = run.key(step, place)
    failure: BaseException = TimeoutError(f"its key is older than key_life={step.key_life:.0f} s")
    for pause in (*BACKOFF[: step.tries - 1], None):
        if not usable(run, step, since):
            break
        try:
            return (yield Call(lambda: step.function(**given, key=key), step.timeout))
        except Ending:
            raise
        except Exception as error:
            failure = error
        if pause is not None:
            yield Pause(run.record.id, pause)
    found = yield from ask(step, given, key)
    if found is not None:
        return found
    if not usable(run, step, since):
        raise gave_up(run, Unknown(f"step {step.name!r} is not sent again: {failure}"))
    raise StepFailed(step.name, failure) from failure


def send_once(run: Run, step: Step, place: int, given: dict[str, Any], begun: Entry, *, sent_before: bool) -> Flow[Any]:
    """A call that must not be repeated: the intent is committed first, and afterwards only `find` can tell (I18)."""
    key = run.key(step, place)
    failure: BaseException = RuntimeError("an earlier attempt began it and did not say how it ended")
    if not sent_before:
        yield from commit(run, run.journal.with_entry(place, begun), on_lapse="uncertain")
        try:
            return (yield Call(lambda: step.function(**given, key=key), step.timeout))
        except Ending:
            raise
        except Exception as error:
            failure = error
    found = yield from ask(step, given, key)
    if found is not None:
        return found
    why = f"step {step.name!r} may not be repeated, and its outcome is unknown: {type(failure).__name__}: {failure}"
    raise gave_up(run, Unknown(why)) from failure


def ask(step: Step, given: dict[str, Any], key: str) -> Flow[Any]:
    """Ask the other system whether it happened; None when it did not, or cannot tell."""
    if step.find is None:
        return None
    find = step.find
    try:
        return (yield Call(lambda: find(**given, key=key), step.timeout))
    except Exception:
        return None


def usable(run: Run, step: Step, since: int) -> bool:
    """Whether the other system surely still knows our key: it may have seen it first at `since`."""
    margin = min(KEY_MARGIN, step.key_life / 10)
    return run.now() - since < micros(step.key_life - margin)


def gave_up(run: Run, error: RetrySafeError) -> RetrySafeError:
    """From here on every step refuses, whatever the body makes of the error."""
    run.broken = error
    return error


def committed_undo(run: Run, place: int) -> Flow[bool]:
    """Whether the store shows this place as undone, although the reply to the commit was lost."""
    record = (yield Lookup(run.record.id)).record
    if record is None or record.fence != run.fence:
        raise LeaseLost(run.record.key, run.fence.attempt)
    journal = Journal.decode(record.progress)
    if journal.entries[place].state != "undone":
        return False
    run.journal = journal
    return True
