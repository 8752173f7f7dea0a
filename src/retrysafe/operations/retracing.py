"""Retracing: before a person's undo, the body runs again up to the first call that is not in the journal.

A step that an earlier attempt may have sent without a trace has no entry, and its arguments are stored nowhere. Only
the body knows them, so the body runs. Nothing is sent. The step that the body reaches is entered as begun, and undone
like the others, with None for its result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from retrysafe.engine.effects import Flow, Invoke
from retrysafe.errors import LeaseLost, OperationChanged
from retrysafe.operations.announcing import leaves_no_trace
from retrysafe.operations.errors import StepReached, format_error
from retrysafe.operations.journal import BY_PLACE, StepEntry

if TYPE_CHECKING:
    from retrysafe.operations.run import OperationRun
    from retrysafe.operations.steps import Step


def must_retrace(run: OperationRun) -> bool:
    """True if something may have been sent that is not in the journal. The release before this one announced nothing,
    so its runs look as if they were killed before their next step."""
    return bool(run.left_open) or (run.journal.rule == BY_PLACE and not run.no_unrecorded_calls)


def retrace(run: OperationRun, invoke: Invoke) -> Flow[None]:
    """Enter the step that may have been sent. Raises OperationChanged if this code does not reach it: the other steps
    alone must not be undone."""
    run.retraces, failure = True, None
    try:
        yield invoke
    except (GeneratorExit, LeaseLost):
        raise
    except Exception as error:
        failure = error
    if run.reached is not None:
        place, entry = run.reached
        run.journal = run.journal.with_entry(place, entry)
    left = run.left_open
    if not left:
        return
    if run.reached is not None:
        run.journal = run.stored
    if isinstance(failure, OperationChanged):
        raise failure
    raise OperationChanged(run.name, run.open.explain(left[0], describe_retrace_end(run, failure))) from failure


def describe_retrace_end(run: OperationRun, failure: Exception | None) -> str:
    if isinstance(failure, StepReached):
        return f"this code calls {failure.step!r} before it, whose result is not known"
    why = f" ({format_error(failure)})" if failure is not None else ""
    return f"this code does not call it{why}"


def record_reached_step(
    run: OperationRun, step: Step, place: int, known: StepEntry | None, given: dict[str, Any]
) -> StepReached:
    """The body made the first call whose result is not in the journal, so it cannot continue. Note the step in
    `run.reached` if it may have been sent. Returns the exception that ends the body."""
    may_be_out = step.name in run.left_open or not run.left_open
    if known is None and may_be_out and leaves_no_trace(step, run.tx_binding.kind):
        run.compare_arguments(step, None, given)
        args = step.dump_args(given, sealed=run.tx_binding.sealer.active)
        at = run.first_sent_time(step, place, None)
        run.reached = (place, StepEntry(step.name, "begun", args, "", at, given=run.given))
    return StepReached(step.name)
