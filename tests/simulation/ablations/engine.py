"""The engine: claims that are sent again, leases as their owner sees them, what a caller is told."""

from __future__ import annotations

import os
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from retrysafe.core import judge as judging
from retrysafe.core.ops import Claim
from retrysafe.core.outcomes import Busy, Execute, Outcome
from retrysafe.core.records import Fence
from retrysafe.core.states import State
from retrysafe.engine import aheartbeat, aperform, drive, guard, heartbeat, orphaned_claims, safe
from retrysafe.engine.aperform import AsyncPerformer
from retrysafe.engine.clock import clock
from retrysafe.engine.heartbeat import Lease
from retrysafe.engine.resending import ResendState
from retrysafe.errors import StoreError, StoreUnavailable, StoreUnclear
from tests.simulation.ablations.base import Ablation, Patch, Situation, always, calm, change, put, substitute, together
from tests.simulation.scenarios.interruptions import INTERRUPTIONS

GUARDS = ("guard", "web")
BURNT = "I32 nothing is burnt"
TOLD = "told the truth"


def forget_the_policy(original: Any) -> Any:
    """A guard whose owner died may run again, whatever its policy says."""

    def build_claim(self: Any) -> Claim:
        return replace(original(self), on_lapse="rerun")

    return build_claim


def take_refused_for_granted(original: Any) -> Any:
    """A claim that changed nothing is taken for one's own."""

    def judge(op: Claim, reply: Any) -> Outcome:
        outcome: Outcome = original(op, reply)
        if isinstance(outcome, Busy) and reply.record is not None:
            return Execute(Fence(reply.record.attempt, op.token), reply.record, reply.now, reply.asked)
        return outcome

    return judge


def draw_anew_when_unclear(original: Any) -> Any:
    """Each sending of a claim after an unclear one has a new token."""

    async def send(self: Any, op: Any, sealed: Any, until: float | None, failed: Any = None) -> Any:
        while isinstance(op, Claim):
            try:
                reply = await self._store.execute(op)
            except StoreUnclear:
                drawn = os.urandom(32)
                op = sealed = replace(op, token=drawn[:16], run=drawn[16:])
                continue
            return aperform.stamp_asked(reply, clock())
        return await original(self, op, sealed, until, failed)

    return send


def take_unclear_for_nothing(original: Any) -> Any:
    def delay_after_error(self: Any, error: StoreError, now: float) -> float:
        if isinstance(error, StoreUnclear):
            error = StoreUnavailable(str(error))
        delay: float = original(self, error, now)
        return delay

    return delay_after_error


def let_a_refusal_end_it(original: Any) -> Any:
    """After an unclear sending, a refused one is taken for the answer."""

    def delay_after_error(self: Any, error: StoreError, now: float) -> float:
        if isinstance(error, StoreUnavailable) and not self._insists:
            raise error
        delay: float = original(self, error, now)
        return delay

    return delay_after_error


def count_from_the_reply(original: Any) -> Any:
    return lambda reply, sent_at, resent=False: original(reply, clock(), resent)


def renew_from_the_reply(original: Any) -> Any:
    return lambda self, sent_at: original(self, clock())


def start_late(original: Any) -> Any:
    """The function is called however long ago it was claimed."""

    async def invoke(self: Any, call: Any) -> Any:
        self.heartbeat.start(call.lease, call.duration)
        with heartbeat.hold_lease(call.lease):
            call.started = True
            result = call.function()
            return await result

    return invoke


def run_what_has_lapsed(original: Any) -> Any:
    """The claim is taken as granted, also if its lease is over by the time it is recognised."""

    def claim_or_wait(claim: Claim, task: Any, events: Any) -> Any:
        reply = yield claim
        outcome = judging.judge(claim, reply)
        if isinstance(outcome, Execute):
            return outcome
        return (yield from original(guard.build_fresh_claim(claim), task, events))

    return claim_or_wait


def give_up_at_once(original: Any) -> Any:
    """What tells how a call ended is sent once, as any other operation is."""

    async def execute_through_cancel(self: Any, op: Any, until: float | None = None) -> Any:
        return await original(self, op, None)

    return execute_through_cancel


def raise_as_it_came(original: Any) -> Any:
    def settle_complete(task: Any, lease: Any, answer: Any, events: Any) -> Any:
        lease.settling = True
        if not (yield guard.Persist(guard.Complete(lease.id, lease.fence, answer), lease.until)):
            raise guard.LeaseLost(task.key.value, lease.fence.attempt)

    return settle_complete


def follow_up_nothing(original: Any) -> Any:
    def release_orphaned(claim: Claim) -> Any:
        return
        yield

    return release_orphaned


def leave_what_was_swept(original: Any) -> Any:
    return lambda record, token: original(record, token) and record.state is State.CLAIMED


def look_back_for_nothing(original: Any) -> Any:
    def release_late_grant(record_id: bytes, token: bytes, pauses: tuple[float, ...] = ()) -> Any:
        return
        yield

    return release_late_grant


def look_back_for_ever(original: Any) -> Any:
    def release_late_grant(record_id: bytes, token: bytes, pauses: tuple[float, ...] = ()) -> Any:
        while True:
            yield 15.0

    return release_late_grant


def set_a_timer_for_each_lease(original: Any) -> Any:
    def push(self: Any, due: float, lease: Any) -> None:
        self._due.add(due, lease)
        self._wake_at(due)

    return push


def claim_in_the_callers_task(original: Any) -> Any:
    """A claim that is cancelled together with its caller, and sent once more."""

    async def execute(self: Any, op: Any, until: float | None = None) -> Any:
        import asyncio

        sealed = self._sealer.seal(op)
        try:
            return await self._send(op, sealed, until)
        except asyncio.CancelledError as cause:
            raise drive.CancelledDuringOp(cause, None, StoreUnclear("cancelled")) from None

    return execute


def swallow_cancellations(original: Any) -> Any:
    """The error of a flow hides that its caller was cancelled."""

    async def arun(flow: Any, perform: Any, first: Any = None) -> Any:
        try:
            effect = next(flow)
            while True:
                begun, first = first, None
                try:
                    if begun is not None:
                        reply = begun.get()
                    else:
                        reply = None if effect is drive.INTERRUPTIBLE else await perform(effect)
                except drive.CancelledDuringOp as stop:
                    effect = flow.send(stop.reply) if stop.error is None else flow.throw(stop.error)
                except BaseException as error:
                    effect = flow.throw(error)
                else:
                    effect = flow.send(reply)
        except StopIteration as done:
            return done.value

    return arun


def patch_arun() -> AbstractContextManager[Any]:
    return put(safe, "arun", swallow_cancellations(drive.arun))


LATE_START: Patch = substitute(AsyncPerformer, "_invoke", start_late)
RERUN_FROZEN = Situation(kinds=("rerun",), plan=change(freezes=4, crashes=0, reply_lost=0.2))

ABLATIONS = (
    Ablation(
        "a dead owner's guard runs again",
        "one effect",
        substitute(guard.Task, "build_claim", forget_the_policy),
        Situation(kinds=GUARDS),
    ),
    Ablation(
        "a refused claim is taken for one's own",
        "I1 single grant",
        substitute(guard, "judge", take_refused_for_granted),
    ),
    Ablation(
        "a new token for each sending",
        BURNT,
        substitute(AsyncPerformer, "_send", draw_anew_when_unclear),
        Situation(kinds=GUARDS),
    ),
    Ablation(
        "unclear is taken for nothing done",
        BURNT,
        substitute(ResendState, "delay_after_error", take_unclear_for_nothing),
        Situation(kinds=GUARDS),
    ),
    Ablation(
        "a refusal ends an unclear claim",
        BURNT,
        substitute(ResendState, "delay_after_error", let_a_refusal_end_it),
        Situation(kinds=GUARDS, plan=change(refused=0.2, reply_lost=0.2)),
    ),
    Ablation(
        "a claim that was given up is not followed up",
        BURNT,
        substitute(aperform, "release_orphaned", follow_up_nothing),
        Situation(kinds=GUARDS, plan=change(reply_lost=0.2, held_back=0.2, request_lost=0.2)),
    ),
    Ablation(
        "an owner does not take back what was swept",
        BURNT,
        together(always(guard, "was_swept", False), substitute(aperform, "release_orphaned", follow_up_nothing)),
        Situation(kinds=GUARDS, plan=change(reply_lost=0.2, slow=0.2)),
    ),
    Ablation(
        "a claim that was swept is left",
        BURNT,
        substitute(orphaned_claims, "is_granted_to", leave_what_was_swept),
        Situation(kinds=GUARDS, plan=calm(reply_lost=0.3, freezes=4, tick=5.0)),
    ),
    Ablation(
        "a caller that leaves does not look back",
        BURNT,
        substitute(aperform, "release_late_grant", look_back_for_nothing),
        Situation(kinds=GUARDS, plan=calm(slow=0.3, refused=0.2, reply_lost=0.1, freezes=4)),
    ),
    Ablation(
        "a caller that leaves looks back for ever",
        "no leak",
        substitute(aperform, "release_late_grant", look_back_for_ever),
        Situation(kinds=GUARDS, plan=calm(slow=0.3, refused=0.2, reply_lost=0.1)),
    ),
    Ablation(
        "each lease sets a timer of its own",
        "no leak",
        substitute(aheartbeat._LoopBeats, "push", set_a_timer_for_each_lease),
        Situation(plan=change(purchases=3, hosts=1)),
    ),
    Ablation(
        "a claim is cancelled with its caller",
        BURNT,
        together(
            substitute(AsyncPerformer, "execute_through_cancel", claim_in_the_callers_task),
            substitute(aperform, "release_orphaned", follow_up_nothing),
        ),
        Situation(INTERRUPTIONS, ("guard",), calm(slow=0.05)),
    ),
    Ablation(
        "a lease counts from the reply",
        "I33 lease of the caller",
        together(
            substitute(aperform, "stamp_asked", count_from_the_reply),
            substitute(Lease, "record_renewal", renew_from_the_reply),
        ),
        Situation(kinds=("rerun", "operation", "saga"), plan=change(freezes=4)),
    ),
    Ablation("a call begins however late", "I33 lease of the caller", LATE_START, RERUN_FROZEN),
    Ablation(
        "a lapsed claim runs without a lease",
        "I33 lease of the caller",
        together(substitute(guard, "claim_or_wait", run_what_has_lapsed), LATE_START),
        Situation(kinds=("rerun", "guard"), plan=change(reply_lost=0.2, slow=0.2)),
    ),
    Ablation(
        "a completion is sent once, and its error told as it came",
        TOLD,
        together(
            substitute(AsyncPerformer, "execute_through_cancel", give_up_at_once),
            substitute(guard, "settle_complete", raise_as_it_came),
        ),
        Situation(kinds=("guard", "rerun")),
    ),
    Ablation(
        "a cancellation is swallowed",
        "I29 cancellations arrive",
        patch_arun,
        Situation(INTERRUPTIONS, ("guard", "rerun")),
    ),
)
