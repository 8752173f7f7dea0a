"""Two flows around the guard's claim: one can be cancelled without leaving a lease behind, the other limits how many
requests of a process wait.
"""

from __future__ import annotations

from typing import Any

from retrysafe.core.ops import Claim
from retrysafe.core.outcomes import Busy, Execute, Outcome
from retrysafe.core.times import SECOND_MICROS
from retrysafe.engine.effects import INTERRUPTIBLE, Effect, Flow, FlowPause
from retrysafe.engine.events import Events
from retrysafe.engine.guard import Task, claim_or_wait, settle_unstarted
from retrysafe.engine.heartbeat import Lease
from retrysafe.web.traffic import Waiters


def claim_interruptibly(claim: Claim, task: Task, events: Events) -> Flow[Outcome]:
    """Claim by the guard's flow. If the request was cancelled meanwhile, release the claim: no work has begun."""
    outcome = yield from claim_or_wait(claim, task, events)
    if isinstance(outcome, Execute):
        try:
            yield INTERRUPTIBLE
        except BaseException:
            lease = Lease(claim.id, task.key.value, outcome.fence, outcome.until)
            yield from settle_unstarted(task, lease, "it was interrupted before it began", events)
            raise
    return outcome


class NoPlaceToWait(Exception):
    """Thrown into a flow that wants to wait: it leaves its claim as any caller does, and ends."""


def limit_waiters(flow: Flow[Outcome], waiters: Waiters, task: Task, record_id: bytes, events: Events) -> Flow[Outcome]:
    """Run a flow that may wait. If too many requests wait already, the outcome is Busy at once."""
    waiting = False
    try:
        effect: Effect = next(flow)
        while True:
            if isinstance(effect, FlowPause) and effect.seconds > 0 and not waiting:
                waiting = waiters.enter(task.key.scope)
                if not waiting:
                    effect = flow.throw(NoPlaceToWait())
                    continue
            try:
                reply: Any = yield effect
            except BaseException as error:
                effect = flow.throw(error)
            else:
                effect = flow.send(reply)
    except StopIteration as done:
        outcome: Outcome = done.value
        return outcome
    except NoPlaceToWait:
        events.emit("busy", record_id, task.target, task.series)
        return Busy(SECOND_MICROS)
    finally:
        if waiting:
            waiters.leave(task.key.scope)
