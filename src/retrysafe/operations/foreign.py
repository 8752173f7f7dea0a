"""Foreign steps: a call to another system, never inside a transaction, always with the same idempotency key."""

from __future__ import annotations

from typing import Any, NamedTuple

from retrysafe.core.times import duration_to_micros
from retrysafe.engine import typed
from retrysafe.engine.effects import CallFunction, Flow, FlowPause
from retrysafe.errors import LeaseLost, ResultNotStorable, UsageError
from retrysafe.operations.commits import announce, commit_journal
from retrysafe.operations.errors import OperationEnding, StepFailed, StepOutcomeUnknown, format_error
from retrysafe.operations.journal import StepEntry, was_unknown
from retrysafe.operations.run import KEY_MARGIN_SECONDS, OperationRun, retry_delays
from retrysafe.operations.steps import Step


def run_foreign_step(
    run: OperationRun, step: Step, place: int, known: StepEntry | None, given: dict[str, Any]
) -> Flow[Any]:
    if known is not None and known.state == "done":
        return run.read_result(step, known)
    yield from announce(run, step, begun=known is not None and step.repeatable)
    args = step.dump_args(given, sealed=run.tx_binding.sealer.active)
    begun = StepEntry(step.name, "begun", args, "", run.first_sent_time(step, place, known), given=run.given)
    if step.repeatable and known is not None and was_unknown(known):
        result = yield from send_anew(run, step, place, given, begun.replace(at=run.earliest_time()))
    elif step.repeatable:
        run.journal = run.journal.with_entry(place, begun)
        result = yield from send_repeatably(run, step, place, given, begun.at)
    else:
        result = yield from send_once(run, step, place, given, begun, begun_before=known is not None)
    text, result = dump_result(run, step, result)
    done = begun.replace(state="done", result=text)
    run.journal, run.dirty = run.journal.with_entry(place, done), True
    if not step.repeatable:
        yield from commit_journal(run, run.journal)  # it cannot be sent again, so its result is stored at once
    return result


def dump_result(run: OperationRun, step: Step, result: Any) -> tuple[str, Any]:
    """The result as text, and as it is read back: this attempt gets the same value as a later one."""
    try:
        text = typed.dump(result, typed.secrets_rule(run.tx_binding.sealer.active))
        return text, typed.load(text, step.returns)
    except Exception as error:  # among others, anything that the type's constructor raises
        raise ResultNotStorable(f"step {step.name!r}", str(error)) from error


def send_repeatably(run: OperationRun, step: Step, place: int, given: dict[str, Any], since: int) -> Flow[Any]:
    """Send with the same key, a bounded number of times, and only while the other system still knows the key (I17)."""
    key = run.derive_key(step, place)
    failure: BaseException = TimeoutError(f"its key may be older than key_life={step.key_life:.0f} s")
    final = False
    for pause in (*retry_delays(step.tries, step.backoff), None):
        if not is_key_usable(run, step, since):
            break
        if step.deadline is not None and run.latest_time() - since >= duration_to_micros(step.deadline):
            failure, final = TimeoutError(f"its deadline of {step.deadline:g} s is over"), True
            break
        try:
            return (yield CallFunction(lambda: step.function(**given, key=key), step.timeout, step.name))
        except (OperationEnding, LeaseLost, UsageError):
            raise
        except Exception as error:
            failure, final = error, isinstance(error, step.final)
        if final:
            break
        if pause is not None:
            yield FlowPause(run.record.id, pause)
    found = yield from find_outcome(step, given, key)
    if found is not None and not isinstance(found, FindFailed):
        return found
    if not is_key_usable(run, step, since):
        raise StepOutcomeUnknown(step.name, format_error(failure), undoable=True) from failure
    raise StepFailed(step.name, format_error(failure), final=final) from failure


def send_anew(run: OperationRun, step: Step, place: int, given: dict[str, Any], begun: StepEntry) -> Flow[Any]:
    """Send a call whose key was too old, after a person has said that it did not happen. The key counts from now. That
    is committed first: the person's word is not for a later life of the key (I17)."""
    found = yield from find_before_sending(step, given, run.derive_key(step, place))
    if found is not None:
        return found
    run.journal = run.journal.with_entry(place, begun)
    yield from commit_journal(run, run.journal)
    return (yield from send_repeatably(run, step, place, given, begun.at))


def send_once(
    run: OperationRun, step: Step, place: int, given: dict[str, Any], begun: StepEntry, *, begun_before: bool
) -> Flow[Any]:
    """Send a call that must not be repeated. Its intent is committed first. After that only `find` can tell whether it
    happened (I18).

    A lapse makes a record with such an intent uncertain, and so does every failure. Only a person who says that the
    call did not happen makes it claimable again. So an intent that is found here allows the call to be sent once more.
    """
    key = run.derive_key(step, place)
    if begun_before:
        found = yield from find_before_sending(step, given, key)
        if found is not None:
            return found
    yield from commit_journal(run, run.journal.with_entry(place, begun), on_lapse="uncertain")
    try:
        return (yield CallFunction(lambda: step.function(**given, key=key), step.timeout, step.name))
    except (OperationEnding, LeaseLost):
        raise
    except Exception as error:
        failure = error
    found = yield from find_outcome(step, given, key)
    if found is not None and not isinstance(found, FindFailed):
        return found
    raise StepOutcomeUnknown(
        step.name, f"it may not be repeated, and failed with {format_error(failure)}", undoable=False
    ) from failure


def find_before_sending(step: Step, given: dict[str, Any], key: str) -> Flow[Any]:
    """Ask the other system before a call is sent that may have been sent before. None: it did not happen."""
    found = yield from find_outcome(step, given, key)
    if isinstance(found, FindFailed):
        why = f"it may have been sent before, and `find` failed with {format_error(found.error)}"
        raise StepOutcomeUnknown(step.name, why, undoable=False) from found.error
    return found


class FindFailed(NamedTuple):
    """`find` failed, so the outcome is still unknown."""

    error: Exception


def find_outcome(step: Step, given: dict[str, Any], key: str) -> Flow[Any]:
    """Ask the other system whether the call happened. None: it did not, or the step has no `find`."""
    if step.find is None:
        return None
    find = step.find
    try:
        return (yield CallFunction(lambda: find(**given, key=key), step.timeout))
    except (OperationEnding, LeaseLost):
        raise
    except Exception as error:
        return FindFailed(error)


def is_key_usable(run: OperationRun, step: Step, since: int) -> bool:
    """True if the other system still knows our key for sure. It may have seen the key first at `since`."""
    margin = min(KEY_MARGIN_SECONDS, step.key_life / 10)
    return run.latest_time() - since < duration_to_micros(step.key_life - margin)
