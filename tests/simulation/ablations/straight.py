"""The straight way of a web request (web/sync_async.py): what it recognises by itself, and what it must hand over to
the flow. Safeguards that both ways share are taken out on each of them.

What the straight way decides alone is left out one condition at a time; `by_flows_only` (scenarios/straight.py) then
proves that the flow needs its own.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

from retrysafe.core import keys as keying
from retrysafe.core.ops import ClaimReply, Release
from retrysafe.core.states import State
from retrysafe.engine import guard
from retrysafe.engine.aperform import AsyncPerformer
from retrysafe.engine.drive import CancelledDuringOp, FirstReply
from retrysafe.errors import RetrySafeError, StoreError
from retrysafe.web import exchange as exchanging
from retrysafe.web.exchange import Exchange
from retrysafe.web.sync_async import AsyncExchange
from tests.simulation.ablations.base import Ablation, Patch, Situation, calm, change, substitute, together
from tests.simulation.ablations.web import (
    begin_anyway,
    check_no_owner,
    hash_nothing,
    leave_out_the_scope,
    serialise_again,
)
from tests.simulation.scenarios.interruptions import INTERRUPTIONS
from tests.simulation.scenarios.straight import STRAIGHT, send_by_flow, settle_by_flow

BURNT = "I32 nothing is burnt"
STORED = "I7 told is stored"
PLAIN = ("executed", "submitted")


# The claim --------------------------------------------------------------------------------------


def take_any_scope(original: Any) -> Any:
    """A record of another scope or key is taken for one's own."""

    def take_plain_reply(self: Exchange, task: Any, claim: Any, reply: ClaimReply) -> Any:
        record = reply.record
        if record is not None:
            reply = reply._replace(record=record._replace(scope=claim.scope, key=claim.key))
        return original(self, task, claim, reply)

    return take_plain_reply


def take_any_fingerprint(original: Any) -> Any:
    """Whoever sends the key gets its answer."""

    def take_plain_reply(self: Exchange, task: Any, claim: Any, reply: ClaimReply) -> Any:
        record = reply.record
        if record is not None and not reply.granted:
            reply = reply._replace(record=record._replace(fingerprint=claim.fingerprint))
        return original(self, task, claim, reply)

    return take_plain_reply


def take_what_has_lapsed(original: Any) -> Any:
    """A grant counts also if its lease is over by now."""

    def take_plain_reply(self: Exchange, task: Any, claim: Any, reply: ClaimReply) -> Any:
        record = reply.record
        if record is not None and reply.granted and record.lease_until <= reply.now:
            return self._build_grant(task, claim, record, reply.now, reply.asked)
        return original(self, task, claim, reply)

    return take_plain_reply


def take_a_living_claim(original: Any) -> Any:
    """A claim that was refused, because somebody has the key, is taken for granted."""

    def take_plain_reply(self: Exchange, task: Any, claim: Any, reply: ClaimReply) -> Any:
        record = reply.record
        if record is not None and not reply.granted and record.state is State.CLAIMED:
            record = record._replace(token=claim.token)
            return self._build_grant(task, claim, record, reply.now, reply.asked)
        return original(self, task, claim, reply)

    return take_plain_reply


def replay_what_is_gone(original: Any) -> Any:
    """A tombstone is replayed as if it were the answer."""

    def take_plain_reply(self: Exchange, task: Any, claim: Any, reply: ClaimReply) -> Any:
        record = reply.record
        if record is not None and record.answer is not None and record.answer.gone and not reply.granted:
            reply = reply._replace(record=record._replace(answer=replace(record.answer, gone="")))
        return original(self, task, claim, reply)

    return take_plain_reply


def drop_held_grants(original: Any) -> Any:
    """The flow is not told of a grant that a cancelled caller got."""

    def init(self: FirstReply, reply: Any = None, error: BaseException | None = None) -> None:
        if isinstance(error, CancelledDuringOp) and isinstance(error.reply, ClaimReply):
            error = error.cause
        original(self, reply, error)

    return init


# The completion ---------------------------------------------------------------------------------


def settle_with(decide: Any) -> Any:
    """`settle_answer` in which `decide` says what became of the completion."""

    def make(original: Any) -> Any:
        async def settle_answer(self: AsyncExchange, code: int, headers: Any, body: bytes) -> Any:
            safe, answer = self.settings.safe, self.build_final_answer(code, headers, body)
            if answer is None:
                return await safe.arun(self.give_back_flow(f"it answered {code}"))
            sent = self.build_completion(answer)
            try:
                stored = await safe.async_performer().execute_through_cancel(sent.op, sent.until)
            except BaseException as error:
                stored = decide(error)
                if stored is None:
                    return await safe.arun(self.complete_flow(answer), FirstReply(error=error))
            else:
                stored = decide(stored)
            if stored and self.end_plain_completion(answer):
                return None
            return await safe.arun(self.complete_flow(answer), FirstReply(stored))

        return settle_answer

    return make


def believe_a_refusal(ended: Any) -> Any:
    """A completion that the store refused counts as stored."""
    return None if isinstance(ended, BaseException) else True


def believe_an_error(ended: Any) -> Any:
    """A completion of which nobody knows whether it arrived counts as stored."""
    if isinstance(ended, BaseException):
        return True if isinstance(ended, StoreError) else None
    return ended


def wake_nobody(original: Any) -> Any:
    """The answer is stored, and whoever waits for it has to look by himself."""

    def end_plain_completion(self: Exchange, answer: Any) -> bool:
        assert self.grant is not None
        task = self.grant.task
        self.settings.safe.events.emit("completed", self.grant.lease.id, task.target, task.series)
        self._end_claim(len(answer.body))
        return True

    return end_plain_completion


# Both ways --------------------------------------------------------------------------------------


def release_once(original: Any) -> Any:
    """What a caller that has left is granted late is released by one operation, which may fail."""

    def release_late_grant(self: AsyncPerformer, op: Any, work: Any) -> None:
        if not self._discard_task(work):
            return
        reply = work.result()
        if isinstance(reply, ClaimReply) and reply.granted and reply.record is not None:
            release = Release(reply.record.id, reply.record.fence, "its caller had left")
            self._detach_task(release, asyncio.ensure_future(_execute_quietly(self, release)))

    return release_late_grant


async def _execute_quietly(performer: AsyncPerformer, op: Any) -> None:
    try:
        await performer.execute(op)
    except StoreError:
        return


def leave_unanswered(original: Any) -> Any:
    """A claim that was submitted, and whose caller left before its reply was lost, is nobody's."""
    return lambda self, op, sealed, submitted: None


def leave_cancelled(original: Any) -> Any:
    """A request that is cancelled while it renews its lease, before it begins, is treated as one that had begun."""

    async def check_late_start(self: AsyncExchange, grant: Any) -> None:
        reason: RetrySafeError = grant.lease.lease_lost_error()
        try:
            if await self.settings.safe.async_performer().ensure_lease(grant.lease):
                return
        except StoreError as error:
            reason = error
        await self.settings.safe.arun(self.release_unstarted())
        raise self.refusal_error(reason)

    return check_late_start


FLOWS: Patch = together(
    substitute(AsyncExchange, "_send_claim", lambda original: send_by_flow),
    substitute(AsyncExchange, "settle_answer", lambda original: settle_by_flow),
)
"""The straight way is taken out, too: what is found then is found on the flow."""

CALM = Situation(STRAIGHT, PLAIN, calm(slow=0.05))
LOST = Situation(STRAIGHT, PLAIN, calm(reply_lost=0.1, slow=0.05))
TENANTS = Situation(STRAIGHT, ("tenant",), calm(purchases=2, slow=0.05))
LATE = Situation(kinds=("web",), plan=change(slow_hosts=3, freezes=4))
AWAY = Situation(kinds=("web",), plan=change(store_restarts=4, partitions=4, freezes=4))
ONE_KEY: Patch = together(
    substitute(keying, "record_id", leave_out_the_scope), substitute(guard, "record_id", leave_out_the_scope)
)
"""Records of two tenants have one id, as if a row had been copied to another id."""


def on_both_ways(name: str, rule: str, patch: Patch, situation: Situation) -> tuple[Ablation, Ablation]:
    """A safeguard that both ways share: it must be missed on each of them."""
    return (
        Ablation(f"{name}, straight", rule, patch, situation),
        Ablation(f"{name}, by flows", rule, together(FLOWS, patch), situation),
    )


def take(make: Any) -> Patch:
    return substitute(Exchange, "take_plain_reply", make)


ABLATIONS = (
    Ablation("a plain reply of another scope", "told the truth", together(ONE_KEY, take(take_any_scope)), TENANTS),
    Ablation(
        "the flow takes a record of another scope",
        "told the truth",
        together(ONE_KEY, FLOWS, substitute(exchanging, "_check_same_owner", check_no_owner)),
        TENANTS,
    ),
    Ablation("a plain replay to another request", "I8 mismatch", take(take_any_fingerprint), CALM),
    Ablation(
        "a plain grant whose lease is over",
        "I33 lease of the caller",
        together(take(take_what_has_lapsed), substitute(AsyncExchange, "check_late_start", begin_anyway)),
        LATE,
    ),
    Ablation("a refused claim is a plain grant", "one effect", take(take_a_living_claim), CALM),
    Ablation(
        "a tombstone is a plain replay",
        "S8 no empty replay",
        take(replay_what_is_gone),
        Situation(STRAIGHT, ("large",), calm(slow=0.05)),
    ),
    Ablation(
        "the flow does not hear of a grant to a cancelled request",
        BURNT,
        substitute(FirstReply, "__init__", drop_held_grants),
        CALM,
    ),
    Ablation(
        "a submitted claim whose reply is lost is not followed up",
        BURNT,
        substitute(AsyncPerformer, "_follow_up_unanswered", leave_unanswered),
        Situation(STRAIGHT, PLAIN),
    ),
    Ablation(
        "a plain completion that was refused",
        "I6 same answer",
        substitute(AsyncExchange, "settle_answer", settle_with(believe_a_refusal)),
        Situation(STRAIGHT, ("again",), calm(freezes=8, slow=0.2, senders=2, purchases=3)),
    ),
    Ablation(
        "a plain completion that nobody answered",
        STORED,
        substitute(AsyncExchange, "settle_answer", settle_with(believe_an_error)),
        AWAY,
    ),
    Ablation(
        "a plain completion wakes nobody",
        "waiters are woken",
        substitute(Exchange, "end_plain_completion", wake_nobody),
        Situation(STRAIGHT, ("waiting",), calm(hosts=1, senders=2, purchases=3)),
    ),
    *on_both_ways(
        "a replay is written again", "I6 same answer", substitute(exchanging, "build_replay", serialise_again), LOST
    ),
    *on_both_ways("no fingerprint", "I8 mismatch", substitute(exchanging, "fingerprint_request", hash_nothing), CALM),
    Ablation(
        "an application begins however late, by flows",
        "I33 lease of the caller",
        together(FLOWS, substitute(AsyncExchange, "check_late_start", begin_anyway)),
        LATE,
    ),
    Ablation(
        "a request that is cancelled before it begins counts as begun",
        BURNT,
        substitute(AsyncExchange, "check_late_start", leave_cancelled),
        Situation(STRAIGHT, PLAIN, calm(suspends=6, reply_lost=0.3, held_back=0.2, slow=0.5, senders=2, purchases=3)),
    ),
    Ablation(
        "what a cancelled caller is granted late is released once",
        BURNT,
        substitute(AsyncPerformer, "_release_late_grant", release_once),
        Situation(INTERRUPTIONS, ("guard",)),
    ),
)
