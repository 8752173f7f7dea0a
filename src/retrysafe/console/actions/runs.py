"""Resume, undo or cancel the run of an operation."""

from __future__ import annotations

from typing import cast, get_args

from retrysafe.console.actions.keys import check_seen
from retrysafe.console.messages import ConsoleResponse, redirect
from retrysafe.console.visit import Visit
from retrysafe.operators.errors import NotFound
from retrysafe.operators.runs import RunVerb, act_on_run


def act_on_run_of(visit: Visit, id: str, verb: str) -> ConsoleResponse:
    if verb not in get_args(RunVerb):
        raise NotFound(f"there is no action {verb!r}")
    record = visit.find_record(id, f"operations {verb}")
    check_seen(visit, record)
    flags = {name: visit.request.field(name) == "1" for name in ("leave_effects", "was_not_sent")}
    done = act_on_run(visit.safe, visit.session, record, cast(RunVerb, verb), visit.reason, **flags)
    return redirect(visit.request.url(f"/keys/{record.id.hex()}", did=done.audit))
