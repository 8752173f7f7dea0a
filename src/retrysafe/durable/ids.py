"""From keys to a runtime's ids and back. Pure: the runtimes are asked elsewhere who is running."""

from __future__ import annotations

from retrysafe.core.keys import Key, derive, frame
from retrysafe.errors import UsageError

MAX_NAME_CHARS = 64
WORKFLOW_SERVICE = "workflow"


def workflow_id(key: Key, workflow: str) -> str:
    """The id of the one workflow this key may start: `order-` and 48 characters, the same for ever.

    A runtime's ids are shared by everybody who uses it, and a client chooses its key: so the scope is part of the id,
    or one tenant would be given another's workflow. It takes a `Key` for that reason, and not a plain string.
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
    """The key for one place in one workflow. `where` names it, each name framed: ("1", "23") is not ("12", "3")."""
    return derive(frame("durable", runtime, *where), service, "step", part=part, undo=undo)
