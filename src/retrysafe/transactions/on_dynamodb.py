"""The transaction strength on DynamoDB: your writes and the stored answer in one TransactWriteItems.

DynamoDB has no transaction that stays open while code runs; it takes a list of writes and carries out all of them or
none. So the work here is a function that returns what to write:

    def order() -> Writes:
        return Writes([{"Put": {"TableName": "orders", "Item": {...}}}], Answer(201, {"id": 7}))

    transact(safe, order, key="k-1", scope="acct-1", request={"item": 7}).answer

The function may be called again after a conflict with another transaction, so it must not do anything else.
"""

from __future__ import annotations

import inspect
import random
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from retrysafe.core.judge import judge
from retrysafe.core.keys import Key
from retrysafe.core.moves import Grant, decide_grant
from retrysafe.core.ops import Claim, ClaimReply, Complete, Lookup
from retrysafe.core.outcomes import Busy, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Fence
from retrysafe.engine.drive import arun, run
from retrysafe.engine.effects import CallFunction, Flow, FlowPause
from retrysafe.engine.events import REFUSED_EVENTS
from retrysafe.engine.guard import POLL_SECONDS, Ended, Task, build_replay, refusal_error
from retrysafe.errors import RetrySafeError, RolledBack, UsageError
from retrysafe.policy import Policy
from retrysafe.stores.dynamodb.transact import (
    CONFLICT_CODE,
    MAX_USER_WRITES,
    CancellationReason,
    TransactOp,
    TransactReply,
)
from retrysafe.transactions.block import build_block_task

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

MAX_RERUNS = 8
"""How often the writes are tried when other transactions conflict with them."""

RERUN_DELAY_SECONDS = 0.02
"""The longest pause before the next try. It doubles each time, and is drawn at random, so that rivals meet less."""


class Writes(NamedTuple):
    """The writes, as entries of TransactWriteItems (`Put`, `Update`, `Delete`, `ConditionCheck`), and the answer."""

    entries: Sequence[Mapping[str, Any]]
    answer: Answer


WritesWork = Callable[[], Writes] | Writes
AsyncWritesWork = Callable[[], Writes | Awaitable[Writes]] | Writes


class WritesRefused(RetrySafeError):
    """A condition of one of your own writes did not hold. Nothing was written and nothing is stored: the same key may
    be used again, and `reasons` say which of the writes it was."""

    status = 409
    anchor = "writes-refused"

    def __init__(self, key: str, reasons: tuple[CancellationReason, ...]) -> None:
        self.reasons = reasons
        shown = ", ".join(f"write {reason.place}: {reason.code} {reason.message}".strip() for reason in reasons)
        super().__init__(
            f"the transaction of idempotency key {key!r} was cancelled by its own conditions ({shown}); nothing was "
            "written and nothing is stored: catch this and answer what it means, or correct the writes"
        )


def transact(
    safe: RetrySafe,
    work: WritesWork,
    *,
    key: str | Key,
    scope: str | None = None,
    request: Any = None,
    target: str = "",
    policy: Policy | None = None,
) -> Ended:
    """Carry out the writes with their receipt, once, or return the stored answer (`.replayed`)."""
    task = build_block_task(safe, key, scope, request=request, target=target, policy=policy)
    performer = safe.performer()

    def perform(effect: Any) -> Any:
        return effect.function() if isinstance(effect, CallFunction) else performer(effect)

    return run(transact_flow(safe, task, work), perform)


async def atransact(
    safe: RetrySafe,
    work: AsyncWritesWork,
    *,
    key: str | Key,
    scope: str | None = None,
    request: Any = None,
    target: str = "",
    policy: Policy | None = None,
) -> Ended:
    """The same on an event loop; `work` may be `async def`."""
    task = build_block_task(safe, key, scope, request=request, target=target, policy=policy)
    performer = safe.async_performer()

    async def perform(effect: Any) -> Any:
        if not isinstance(effect, CallFunction):
            return await performer(effect)
        found = effect.function()
        return await found if inspect.isawaitable(found) else found

    return await arun(transact_flow(safe, task, work), perform)


# The whole flow -------------------------------------------------------------------------------------------------------


def transact_flow(safe: RetrySafe, task: Task, work: AsyncWritesWork) -> Flow[Ended]:
    name = (safe._sync or safe._async).capabilities.name  # type: ignore[union-attr]  # one of them is there
    if name != "dynamodb":
        raise UsageError(f"transact is for a store on dynamodb://, and this one is {name}; use safe.transaction")
    claim = replace(task.build_claim(), on_lapse="rerun")
    for rerun in range(MAX_RERUNS):
        found = yield from replay_or_wait(safe, task, claim)
        if found is not None:
            return found
        if not rerun:
            safe.events.emit("new", claim.id, task.target, task.series)
        writes = check_writes((yield CallFunction(work)) if callable(work) else work)
        reply = yield from send_writes(safe, claim, writes)
        ended = read_reply(safe, task, claim, writes, reply)
        if ended is not None:
            return ended
        yield FlowPause(claim.id, random.uniform(0, RERUN_DELAY_SECONDS * 2**rerun))
    raise RolledBack(task.key.value, "other transactions were in the way each time")


def replay_or_wait(safe: RetrySafe, task: Task, claim: Claim) -> Flow[Ended | None]:
    """Return None if the work may run, else the stored answer. While another caller has the key, wait as long as the
    policy says."""
    waited = 0.0
    while True:
        seen = yield Lookup(claim.id, claim.now)
        outcome = decide(claim, ClaimReply(False, seen.record, seen.now))
        if outcome is None:
            return None
        if isinstance(outcome, Replay):
            safe.events.emit("replayed", claim.id, task.target, task.series)
            return build_replay(task, outcome.record)
        left = task.policy.wait - waited
        if not (isinstance(outcome, Busy) and task.policy.busy == "wait" and left > 0):
            safe.events.emit(REFUSED_EVENTS[type(outcome)], claim.id, task.target, task.series)
            raise refusal_error(task, outcome)
        waited += yield FlowPause(claim.id, min(random.uniform(*POLL_SECONDS), left))


def decide(claim: Claim, seen: ClaimReply) -> Outcome | None:
    """The outcome that keeps the work from running; None if it may run."""
    record = seen.record
    grant = decide_grant(record, claim, seen.now)
    if grant is None:
        return judge(claim, seen)
    if record is not None and record.point and grant is not Grant.REBIRTH:
        return Uncertain(record.started, f"an operation stopped at {record.point!r}; let it finish")
    return None


def check_writes(writes: Any) -> Writes:
    if not isinstance(writes, Writes) or not isinstance(writes.answer, Answer):
        raise UsageError(f"the work gave {writes!r}: give Writes([entries of TransactWriteItems], Answer(201, …))")
    if len(writes.entries) > MAX_USER_WRITES:
        raise UsageError(
            f"{len(writes.entries)} writes are too many: a transaction has room for {MAX_USER_WRITES} and a receipt"
        )
    return writes


def send_writes(safe: RetrySafe, claim: Claim, writes: Writes) -> Flow[TransactReply]:
    sealed = safe._sealer.seal(Complete(claim.id, Fence(1, claim.token), writes.answer))
    assert isinstance(sealed, Complete)
    reply = yield TransactOp(claim, sealed.answer, tuple(writes.entries), time.time_ns() // 1000)
    return TransactReply(safe._sealer.unseal(reply.claim), reply.reasons)


def read_reply(safe: RetrySafe, task: Task, claim: Claim, writes: Writes, reply: TransactReply) -> Ended | None:
    """The result for this caller. None: another transaction conflicted, and the next try may succeed."""
    record = reply.claim.record
    if reply.claim.granted:
        assert record is not None
        safe.events.emit("completed", claim.id, task.target, task.series)
        return Ended(writes.answer, False, writes, record)
    if record is not None:
        return None  # another caller was first: the next lookup judges its record
    refused = tuple(reason for reason in reply.reasons if reason.code != CONFLICT_CODE)
    if refused:
        safe.events.emit("released", claim.id, task.target, task.series)
        raise WritesRefused(task.key.value, refused)
    return None
