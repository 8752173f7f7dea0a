"""The idempotency key of a Temporal activity: the same in all its attempts.

    @activity.defn
    def charge(cents: int) -> str:
        return psp.charge(cents, idempotency_key=activity_key("psp"))

An activity runs at least once: if a worker dies after the effect and before the server knows of it, another attempt
follows. Only the key tells the other system that it is the same charge.
"""

from __future__ import annotations

from typing import Literal

from temporalio import activity

from retrysafe.durable import derive_step_key
from retrysafe.errors import UsageError

__all__ = ["activity_key"]

Per = Literal["run", "workflow"]


def activity_key(service: str, *, part: str = "", undo: bool = False, per: Per = "run") -> str:
    """The key of the running activity for one `service`: 48 characters, the same in every attempt.

    The key is derived from the namespace, the workflow's id, its run and the activity's id. `per="workflow"` leaves the
    run out, so the key also survives a reset or a retry of the whole workflow. Use it only if this workflow id never
    does the same work anew: with a schedule or continue-as-new the second month's charge would count as the first.
    """
    if per not in ("run", "workflow"):
        raise UsageError(f"per={per!r}: choose 'run' or 'workflow'")
    if not activity.in_activity():
        raise UsageError(
            f"activity_key({service!r}) was called outside a Temporal activity: call it in a function decorated with "
            "@activity.defn, never in the workflow itself"
        )
    info = activity.info()
    if info.workflow_id is None:  # a client started it without a workflow, so only its own id and run identify it
        where = ("", info.activity_run_id or "") if per == "run" else ("",)
    else:
        where = (info.workflow_id, info.workflow_run_id or "") if per == "run" else (info.workflow_id,)
    return derive_step_key("temporal", (info.namespace, per, *where, info.activity_id), service, part, undo)
