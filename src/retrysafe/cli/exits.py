"""Exit codes, and which error means which. Scripts rely on them."""

from __future__ import annotations

from retrysafe.errors import RetrySafeError

DONE = 0
REFUSED = 1
USAGE = 2
NOT_FOUND = 3
CHANGED = 4
OUT_OF_REACH = 5


class CommandError(RetrySafeError):
    """A command that ended without doing its work. `hint` says what to do next."""

    code = REFUSED

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Refused(CommandError):
    code = REFUSED


class NotFound(CommandError):
    code = NOT_FOUND


class ChangedUnderneath(CommandError):
    code = CHANGED


class OutOfReach(CommandError):
    code = OUT_OF_REACH


def find_exit_code(error: RetrySafeError) -> int:
    """The exit code of an error. The store's own errors are 5, wrong input is 2, everything else is a refusal."""
    from retrysafe.errors import StoreError, UsageError

    if isinstance(error, CommandError):
        return error.code
    if isinstance(error, StoreError):
        return OUT_OF_REACH
    return USAGE if isinstance(error, UsageError) else REFUSED
