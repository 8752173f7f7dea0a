"""The idempotency key of a DBOS step: the same each time the step runs again. One file per runtime, imported by its
name.

    @DBOS.step(retries_allowed=True)
    def charge(cents: int) -> str:
        return psp.charge(cents, idempotency_key=step_key("psp"))

DBOS records a step's result *after* the step returned. If the process dies between the two, the step runs again when
the workflow is recovered. Only the key tells the other system that it is the same charge.
"""

from __future__ import annotations

from dbos import DBOS

from retrysafe.durable import derive_step_key
from retrysafe.errors import UsageError

__all__ = ["step_key"]


def step_key(service: str, *, part: str = "", undo: bool = False) -> str:
    """The key of the running step for one `service`: 48 characters, the same in its retries and after a recovery.

    The key is derived from the workflow's id and the step's number, so it differs in another step, another workflow,
    and a fork of this one. `part` distinguishes several calls to one service in one step; `undo` marks the call that
    compensates.
    """
    workflow, step = DBOS.workflow_id, DBOS.step_id
    if workflow is None or step is None:
        raise UsageError(
            f"step_key({service!r}) was called outside a DBOS step, where nothing has a stable number: call it in a "
            "function decorated with @DBOS.step() that a workflow has called"
        )
    return derive_step_key("dbos", (workflow, str(step)), service, part, undo)
