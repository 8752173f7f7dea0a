"""Inside a DBOS step: a key that is the same each time the step is run again.

    @DBOS.step(retries_allowed=True)
    def charge(cents: int) -> str:
        return psp.charge(cents, idempotency_key=step_key("psp"))

DBOS records a step's result *after* it returned. A process that dies between the two runs the step again when the
workflow is recovered; only the key tells the other side that it is the same charge.
"""

from __future__ import annotations

from dbos import DBOS

from retrysafe.durable.ids import derive_step_key
from retrysafe.errors import UsageError

__all__ = ["step_key"]


def step_key(service: str, *, part: str = "", undo: bool = False) -> str:
    """The key of the running step for one `service`: 48 characters, the same for its retries and after a recovery.

    Made of the workflow's id and the step's number in it, so another step, another workflow and a fork of this one
    have another. `part` tells several calls to one service in one step apart; `undo` marks the call that takes back.
    """
    workflow, step = DBOS.workflow_id, DBOS.step_id
    if workflow is None or step is None:
        raise UsageError(
            f"step_key({service!r}) was called outside a DBOS step, where nothing has a stable number: call it in a "
            "function decorated with @DBOS.step() that a workflow has called"
        )
    return derive_step_key("dbos", (workflow, str(step)), service, part, undo)
