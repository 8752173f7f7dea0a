"""What goes wrong inside an operation, as errors that the body of the operation may meet."""

from __future__ import annotations

from retrysafe.errors import RetrySafeError


class StepFailed(RetrySafeError):
    """A step failed as often as it may in one attempt. A body that catches it goes on without the step, for good: the
    failure becomes part of the journal, and a later attempt meets it again at the same place."""

    anchor = "step-failed"

    def __init__(self, step: str, why: str, *, final: bool = False) -> None:
        self.step = step
        self.why = why
        self.final = final
        """Whether another attempt would only meet the same."""
        super().__init__(f"step {step!r} failed: {why}; catch it only to go on without this step")


class StepOutcomeUnknown(RetrySafeError):
    """A step has no known outcome, and may not be sent again to find out. `undoable` where its undo may answer that."""

    anchor = "outcome-unknown"

    def __init__(self, step: str, why: str, *, undoable: bool) -> None:
        self.step = step
        self.undoable = undoable
        super().__init__(f"step {step!r} is not sent again: {why}")


class StepReached(Exception):
    """The body came to a step while it is only asked which one comes next (retracing.py). Nothing was sent."""

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__(f"step {step!r} was reached")


class TransactionNotOpened(Exception):
    """No transaction of the user's could be opened: the step was not even called."""


def format_error(error: BaseException) -> str:
    """An error in one line, for the journal."""
    return f"{type(error).__name__}: {error}"[:500]
