"""Exceptions of operations: how a body ends without an answer of its own, and what goes wrong inside a step."""

from __future__ import annotations

from typing import Any

from retrysafe.core.records import Answer
from retrysafe.core.texts import name_and_message
from retrysafe.errors import RetrySafeError, UsageError


class OperationEnding(Exception):
    """Base of `Stop` and `Undo`. The user raises them, inside a step or in the body."""

    def __init__(self, status: int, body: Any = b"", **headers: str) -> None:
        if not isinstance(status, int) or isinstance(status, bool) or not 100 <= status <= 599:
            raise UsageError(
                f"{type(self).__name__}({status!r}): the first argument is the status of the answer, 100 to 599; write "
                f"{type(self).__name__}(409, ...) with what the client is told"
            )
        self.answer = Answer(status, body, headers)
        super().__init__(f"{type(self).__name__}({status})")


class Stop(OperationEnding):
    """End the operation with this answer. Finished steps are not undone: a declined card is an answer."""


class Undo(OperationEnding):
    """Undo every step that began, in reverse order (compensation), and then give this answer."""


class StepFailed(RetrySafeError):
    """A step used up its tries in this attempt. If the body catches this error, the operation continues without the
    step for good: the journal records the failure, and later attempts raise it again at the same place."""

    anchor = "step-failed"

    def __init__(self, step: str, why: str, *, final: bool = False) -> None:
        self.step = step
        self.why = why
        self.final = final
        """True if another attempt would fail in the same way."""
        super().__init__(f"step {step!r} failed: {why}; catch it only to go on without this step")


class StepOutcomeUnknown(RetrySafeError):
    """The outcome of a step is unknown, and the step may not be sent again to find out. `undoable`: its undo may be
    sent, because the undo accepts that there is nothing to undo."""

    anchor = "outcome-unknown"

    def __init__(self, step: str, why: str, *, undoable: bool) -> None:
        self.step = step
        self.undoable = undoable
        super().__init__(f"step {step!r} is not sent again: {why}")


class StepReached(Exception):
    """The body called a step during a retrace, which only looks for the next step (retracing.py). Nothing was sent."""

    def __init__(self, step: str) -> None:
        self.step = step
        super().__init__(f"step {step!r} was reached")


class TransactionNotOpened(Exception):
    """No transaction could be opened on the user's database, so the step was not called."""


def format_error(error: BaseException, limit: int = 500) -> str:
    """An error in one line of at most `limit` characters, for the journal and for messages."""
    return name_and_message(error, limit)
