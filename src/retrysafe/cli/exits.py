"""Exit codes, and which error means which. Scripts rely on them."""

from __future__ import annotations

from retrysafe.errors import RetrySafeError
from retrysafe.operators.errors import ChangedUnderneath, CommandError, NotFound, OutOfReach, Refused

__all__ = ["ChangedUnderneath", "CommandError", "NotFound", "OutOfReach", "Refused", "find_exit_code"]

DONE = 0
REFUSED = 1
USAGE = 2
NOT_FOUND = 3
CHANGED = 4
OUT_OF_REACH = 5


CODES: dict[type[CommandError], int] = {
    Refused: REFUSED,
    NotFound: NOT_FOUND,
    ChangedUnderneath: CHANGED,
    OutOfReach: OUT_OF_REACH,
}


def find_exit_code(error: RetrySafeError) -> int:
    """The exit code of an error. The store's own errors are 5, except that it answers and refuses the schema; wrong
    input is 2, everything else is a refusal."""
    from retrysafe.errors import SchemaRefused, StoreError, UsageError

    for kind, code in CODES.items():
        if isinstance(error, kind):
            return code
    if isinstance(error, StoreError) and not isinstance(error, SchemaRefused):
        return OUT_OF_REACH
    return USAGE if isinstance(error, UsageError) else REFUSED
