"""Foreign steps: a call to somebody else's system, never inside a transaction, always with the same key."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrysafe.core.times import micros
from retrysafe.engine import typed
from retrysafe.engine.effects import Call, Flow, Pause
from retrysafe.errors import LeaseLost, ResultNotStorable, UsageError
from retrysafe.operations.endings import Ending
from retrysafe.operations.failures import StepFailed, Unknown, told
from retrysafe.operations.journal import Entry
from retrysafe.operations.run import KEY_MARGIN, Run, announce, commit, pauses
from retrysafe.operations.steps import Step


def foreign(run: Run, step: Step, place: int, known: Entry | None, given: dict[str, Any]) -> Flow[Any]:
    if known is not None and known.state == "done":
        return run.read_back(step, known)
    yield from announce(run, step)
    args = step.dump_args(given, sealed=run.ground.sealer.active)
    begun = Entry(step.name, "begun", args, "", run.sent_since(place, known), given=run.given)
    if step.repeatable:
        run.journal = run.journal.with_entry(place, begun)
        result = yield from send_repeatably(run, step, place, given, begun.at)
    else:
        result = yield from send_once(run, step, place, given, begun, asked_before=known is not None)
    text, result = stored(run, step, result)
    done = begun.but(state="done", result=text)
    run.journal, run.dirty = run.journal.with_entry(place, done), True
    if not step.repeatable:
        yield from commit(run, run.journal)  # it cannot be asked for again: keep it at once
    return result


def stored(run: Run, step: Step, result: Any) -> tuple[str, Any]:
    """A result as text, and as it is read back: what a later attempt gets, this one gets too."""
    try:
        text = typed.dump(result, typed.kept_if(run.ground.sealer.active))
        return text, typed.load(text, step.returns)
    except Exception as error:  # whatever the type's own constructor raises, among others
        raise ResultNotStorable(f"step {step.name!r}", str(error)) from error


def send_repeatably(run: Run, step: Step, place: int, given: dict[str, Any], since: int) -> Flow[Any]:
    """The same key again, a bounded number of times, and only while the other system still knows it (I17)."""
    key = run.key(step, place)
    failure: BaseException = TimeoutError(f"its key may be older than key_life={step.key_life:.0f} s")
    final = False
    for pause in (*pauses(step.tries, step.backoff), None):
        if not usable(run, step, since):
            break
        if step.deadline is not None and run.latest() - since >= micros(step.deadline):
            failure, final = TimeoutError(f"its deadline of {step.deadline:g} s is over"), True
            break
        try:
            return (yield Call(lambda: step.function(**given, key=key), step.timeout))
        except (Ending, LeaseLost, UsageError):
            raise
        except Exception as error:
            failure, final = error, isinstance(error, step.final)
        if final:
            break
        if pause is not None:
            yield Pause(run.record.id, pause)
    found = yield from ask(step, given, key)
    if found is not None and not isinstance(found, NotTold):
        return found
    if not usable(run, step, since):
        raise Unknown(step.name, told(failure), undoable=True) from failure
    raise StepFailed(step.name, told(failure), final=final) from failure


def send_once(
    run: Run, step: Step, place: int, given: dict[str, Any], begun: Entry, *, asked_before: bool
) -> Flow[Any]:
    """A call that must not be repeated: the intent is committed first, and afterwards only `find` can tell (I18).

    A record with such an intent is only ever given out again by a person who says that it did not happen: a lapse
    makes it uncertain, and so does every failure. So an intent found here is leave to send, once more and once.
    """
    key = run.key(step, place)
    if asked_before:
        found = yield from ask(step, given, key)
        if isinstance(found, NotTold):
            why = f"it may have been sent before, and `find` failed with {told(found.error)}"
            raise Unknown(step.name, why, undoable=False) from found.error
        if found is not None:
            return found
    yield from commit(run, run.journal.with_entry(place, begun), on_lapse="uncertain")
    try:
        return (yield Call(lambda: step.function(**given, key=key), step.timeout))
    except (Ending, LeaseLost):
        raise
    except Exception as error:
        failure = error
    found = yield from ask(step, given, key)
    if found is not None and not isinstance(found, NotTold):
        return found
    raise Unknown(step.name, f"it may not be repeated, and failed with {told(failure)}", undoable=False) from failure


class NotTold(NamedTuple):
    """`find` failed: whether it happened is as unknown as before."""

    error: Exception


def ask(step: Step, given: dict[str, Any], key: str) -> Flow[Any]:
    """Ask the other system whether it happened; None when it did not, or when nobody can be asked."""
    if step.find is None:
        return None
    find = step.find
    try:
        return (yield Call(lambda: find(**given, key=key), step.timeout))
    except (Ending, LeaseLost):
        raise
    except Exception as error:
        return NotTold(error)


def usable(run: Run, step: Step, since: int) -> bool:
    """Whether the other system surely still knows our key: it may have seen it first at `since`."""
    margin = min(KEY_MARGIN, step.key_life / 10)
    return run.latest() - since < micros(step.key_life - margin)
