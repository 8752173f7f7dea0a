"""Saga steps as jobs: inside a step, the key of the job that does it.

    @order.foreign(timeout=60)
    def charge(o: Order, *, key: str) -> str:
        return jobs.perform(charge_card, (o.id, o.cents), key=saga_step("charge"), wait=50)

The worker may die, the saga's process may die, and either may be started again: it is the same job.
"""

from __future__ import annotations

from retrysafe.errors import UsageError
from retrysafe.jobs.ids import job_id, step_key
from retrysafe.operations.run import current

RUN_CHARS = 20
"""Hex digits of the saga's run that are part of the id: enough that no two sagas ever share one."""


def saga_id() -> str:
    """The running saga: its operation's name and its run. Another tenant's saga with the same key is another one, and
    so is a saga that is begun anew after its key expired."""
    run = current.get()
    if run is None:
        raise UsageError(
            "saga_id() was called outside an operation: call it in a step. An undo has a key of its own already, so "
            "give its job that"
        )
    return f"{run.name.partition('@')[0]}-{run.record.run.hex()[:RUN_CHARS]}"


def saga_step(step: str) -> str:
    """`{saga}-{step}`: the key of the job that does this step. An undo's job takes the `key` the undo is given."""
    return job_id(step_key(saga_id(), step))
