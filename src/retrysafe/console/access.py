"""Who uses the console, and what each may do. The application answers both questions; there is no default for the
first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from retrysafe.console.messages import ConsoleRequest

LOOK = "look"
"""The action of every page that only shows. The others have the names of the commands: `keys resolve`."""

REVEAL = "keys show"
"""To see the stored bytes of a record. It writes an audit row, so it is an action."""


class Operator(NamedTuple):
    """Somebody who is logged in. The name is written into audit rows."""

    name: str
    user: Any = None
    """Whatever `authorize` needs to know: the user object of the framework, a set of roles."""


Authenticate = Callable[[ConsoleRequest], Operator | None]
"""Who sent this request? None: nobody who may see the console."""

Authorize = Callable[[Operator, str, Any], bool]
"""May this operator do this action with this record? The record is a Record, a StagedJob, or None for a whole page."""


def allow_all(operator: Operator, action: str, record: Any) -> bool:
    return True
