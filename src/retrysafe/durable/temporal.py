"""Inside a Temporal activity: a key that is the same for all its attempts.

    @activity.defn
    def charge(cents: int) -> str:
        return psp.charge(cents, idempotency_key=activity_key("psp"))

An activity runs at least once: a worker that dies after the effect and before the server has heard of it is followed by
another attempt. Only the key tells the other side that it is the same charge.
"""

from __future__ import annotations

from typing import Literal

from temporalio import activity

from retrysafe.durable.ids import derive_step_key
from retrysafe.errors import UsageError

__all__ = ["activity_key"]

Per = Literal["run", "workflow"]


def activity_key(service: str, *, part: str = "", undo: bool = False, per: Per = "run") -> str:
    """The key of the running activity for one `service`: 48 characters, the same for every attempt.

    Made of the namespace, the workflow's id, its run and the activity's id. `per="workflow"` leaves the run out: the
    key then also survives a reset or a retry of the whole workflow. Ask for it only if this id never does the same
    work anew: with a schedule or continue-as-new the second month's charge would be taken for the first.
    """
    if per not in ("run", "workflow"):
        raise UsageError(f"per={per!r}: choose 'run' or 'workflow'")
    if not activity.in_activity():
        raise UsageError(
            f"activity_key({service!r}) was called outside a Temporal activity: call it in a function decorated with "
            "@activity.defn, never in the workflow itself"
        )
    found = activity.info()
    if found.workflow_id is None:  # started by a client, without a workflow: its own id and run are all there is
        where = ("", found.activity_run_id or "") if per == "run" else ("",)
    else:
        where = (found.workflow_id, found.workflow_run_id or "") if per == "run" else (found.workflow_id,)
    return derive_step_key("temporal", (found.namespace, per, *where, found.activity_id), service, part, undo)
