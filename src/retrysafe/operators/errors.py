"""How an operator's wish can end without being done. The command line has an exit code for each (cli/exits.py), the
console a status (`STATUSES` in console/console.py)."""

from __future__ import annotations

from retrysafe.errors import RetrySafeError


class CommandError(RetrySafeError):
    """A command that ended without doing its work. `hint` says what to do next."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class Refused(CommandError):
    """The state of the record does not allow it."""


class NotFound(CommandError):
    """There is no such record, run or job."""


class ChangedUnderneath(CommandError):
    """The record changed since the operator looked at it. Nothing was done."""


class OutOfReach(CommandError):
    """The store does not answer."""
