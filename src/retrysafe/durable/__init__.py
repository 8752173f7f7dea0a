"""Idempotency keys for a durable runtime: the id of the workflow that a request starts, and a key for each step of it.

`retrysafe.durable.dbos` and `retrysafe.durable.temporal` need their runtime installed; this pure file needs none.
"""

from __future__ import annotations

from retrysafe.core.keys import Key, derive, frame
from retrysafe.errors import UsageError

__all__ = ["workflow_id"]

MAX_NAME_CHARS = 64
WORKFLOW_SERVICE = "workflow"


def workflow_id(key: Key, workflow: str) -> str:
    """The id of the one workflow that this key may start: `order-` and 48 characters, always the same.

    All users of a runtime share its ids, and a client chooses its key. So the scope must be part of the id: otherwise
    one tenant could get another tenant's workflow. For that reason the argument is a `Key` and not a plain string.
    """
    if not isinstance(key, Key):
        raise UsageError(
            f"workflow_id({key!r}, …) needs a Key, which says whose it is: Key(text, scope). A route gets one from "
            "idempotent(scope=…); for a webhook the scope is the provider"
        )
    if not isinstance(workflow, str) or not workflow or len(workflow) > MAX_NAME_CHARS or not workflow.isprintable():
        raise UsageError(f"workflow={workflow!r}: give its name, 1 to {MAX_NAME_CHARS} printable characters")
    return f"{workflow}-{derive(key, WORKFLOW_SERVICE, workflow)}"


def derive_step_key(runtime: str, where: tuple[str, ...], service: str, part: str, undo: bool) -> str:
    """The key for one place in one workflow. `where` are the names of the place, framed: ("1", "23") differs from
    ("12", "3")."""
    return derive(frame("durable", runtime, *where), service, "step", part=part, undo=undo)
