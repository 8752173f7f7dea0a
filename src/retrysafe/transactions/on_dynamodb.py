"""The transaction strength on DynamoDB: your writes and the stored answer in one TransactWriteItems.

DynamoDB has no transaction that stays open while code runs; it takes a list of writes and carries out all of them or
none. So the work here is a function that says what to write:

    def order() -> Writes:
        return Writes([{"Put": {"TableName": "orders", "Item": {...}}}], Answer(201, {"id": 7}))

    transact(safe, order, key="k-1", scope="acct-1", request={"item": 7}).answer

It may be called again when another transaction was in the way, so it must not do anything else.
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
from retrysafe.core.moves import Grant, grantable
from retrysafe.core.ops import Claim, ClaimReply, Complete, Lookup
from retrysafe.core.outcomes import Busy, Mismatch, Outcome, Replay, Uncertain
from retrysafe.core.records import Answer, Fence
from retrysafe.engine.drive import arun, run
from retrysafe.engine.effects import Call, Flow, Pause
from retrysafe.engine.events import Name
from retrysafe.engine.guard import POLL, Ended, Task, refusal, replayed
from retrysafe.errors import RetrySafeError, RolledBack, UsageError
from retrysafe.policy import Policy
from retrysafe.stores.dynamodb.together import CONFLICT, MOST, Reason, Transact, TransactReply
from retrysafe.transactions.block import block_task

if TYPE_CHECKING:
    from retrysafe.engine.safe import RetrySafe

RERUNS = 8
"""How often it is tried when other transactions are in the way."""

RERUN_AFTER = 0.02
"""Seconds before the next try, at most; doubled each time, drawn at random, so that rivals part."""

_REFUSED: dict[type[Outcome], Name] = {Busy: "busy", Mismatch: "mismatched", Uncertain: "uncertain"}


class Writes(NamedTuple):
    """What to write, as entries of TransactWriteItems (`Put`, `Update`, `Delete`, `ConditionCheck`), and the answer."""

    entries: Sequence[Mapping[str, Any]]
    answer: Answer


Work = Callable[[], Writes] | Writes
AsyncWork = Callable[[], Writes | Awaitable[Writes]] | Writes


class WritesRefused(RetrySafeError):
    """A condition of one of your own writes did not hold. Nothing was written and nothing is stored: the same key may
    be used again, and `reasons` say which of the writes it was."""

    status = 409
    anchor = "writes-refused"

    def __init__(self, key: str, reasons: tuple[Reason, ...]) -> None:
        self.reasons = reasons
        shown = ", ".join(f"write {reason.place}: {reason.code} {reason.message}".strip() for reason in reasons)
        super().__init__(
            f"the transaction of idempotency key {key!r} was cancelled by its own conditions ({shown}); nothing was "
            "written and nothing is stored: catch this and answer what it means, or correct the writes"
        )


def transact(
    safe: RetrySafe,
    work: Work,
    *,
    key: str | Key,
    scope: str | None = None,
    request: Any = None,
    target: str = "",
    policy: Policy | None = None,
) -> Ended:
    """Carry the writes out with their receipt, once; or give the stored answer (`.replayed`)."""
    task = block_task(safe, key, scope, request=request, target=target, policy=policy)
    performer = safe.performer()

    def perform(effect: Any) -> Any:
        return effect.function() if isinstance(effect, Call) else performer(effect)

    return run(together(safe, task, work), perform)


async def atransact(
    safe: RetrySafe,
    work: AsyncWork,
    *,
    key: str | Key,
    scope: str | None = None,
    request: Any = None,
    target: str = "",
    policy: Policy | None = None,
) -> Ended:
    """The same on an event loop; `work` may be `async def`."""
    task = block_task(safe, key, scope, request=request, target=target, policy=policy)
    performer = safe.async_performer()

    async def perform(effect: Any) -> Any:
        if not isinstance(effect, Call):
            return await performer(effect)
        found = effect.function()
        return await found if inspect.isawaitable(found) else found

    return await arun(together(safe, task, work), perform)


# The story ------------------------------------------------------------------------------------------------------------


def together(safe: RetrySafe, task: Task, work: AsyncWork) -> Flow[Ended]:
    name = (safe._sync or safe._async).capabilities.name  # type: ignore[union-attr]  # one of them is there
    if name != "dynamodb":
        raise UsageError(f"transact is for a store on dynamodb://, and this one is {name}; use safe.transaction")
    claim = replace(task.claim(), on_lapse="rerun")
    for rerun in range(RERUNS):
        found = yield from admitted(safe, task, claim)
        if found is not None:
            return found
        if not rerun:
            safe.events.emit("new", claim.id, task.target)
        writes = checked((yield Call(work)) if callable(work) else work)
        reply = yield from sent(safe, claim, writes)
        ended = settled(safe, task, claim, writes, reply)
        if ended is not None:
            return ended
        yield Pause(claim.id, random.uniform(0, RERUN_AFTER * 2**rerun))
    raise RolledBack(task.key.value, "other transactions were in the way each time")


def admitted(safe: RetrySafe, task: Task, claim: Claim) -> Flow[Ended | None]:
    """None: it may run. Else the stored answer; while another is at it, wait as the policy says."""
    waited = 0.0
    while True:
        seen = yield Lookup(claim.id, claim.now)
        outcome = judged(claim, ClaimReply(False, seen.record, seen.now))
        if outcome is None:
            return None
        if isinstance(outcome, Replay):
            safe.events.emit("replayed", claim.id, task.target)
            return replayed(task, outcome.record)
        left = task.policy.wait - waited
        if not (isinstance(outcome, Busy) and task.policy.busy == "wait" and left > 0):
            safe.events.emit(_REFUSED[type(outcome)], claim.id, task.target)
            raise refusal(task, outcome)
        waited += yield Pause(claim.id, min(random.uniform(*POLL), left))


def judged(claim: Claim, seen: ClaimReply) -> Outcome | None:
    """What stands in the way; None if nothing does."""
    record = seen.record
    grant = grantable(record, claim, seen.now)
    if grant is None:
        return judge(claim, seen)
    if record is not None and record.point and grant is not Grant.REBIRTH:
        return Uncertain(record.started, f"an operation stopped at {record.point!r}; let it finish")
    return None


def checked(writes: Any) -> Writes:
    if not isinstance(writes, Writes) or not isinstance(writes.answer, Answer):
        raise UsageError(f"the work gave {writes!r}: give Writes([entries of TransactWriteItems], Answer(201, …))")
    if len(writes.entries) > MOST:
        raise UsageError(f"{len(writes.entries)} writes are too many: a transaction has room for {MOST} and a receipt")
    return writes


def sent(safe: RetrySafe, claim: Claim, writes: Writes) -> Flow[TransactReply]:
    sealed = safe._sealer.seal(Complete(claim.id, Fence(1, claim.token), writes.answer))
    assert isinstance(sealed, Complete)
    reply = yield Transact(claim, sealed.answer, tuple(writes.entries), time.time_ns() // 1000)
    return TransactReply(safe._sealer.unseal(reply.claim), reply.reasons)


def settled(safe: RetrySafe, task: Task, claim: Claim, writes: Writes, reply: TransactReply) -> Ended | None:
    """How it ended for this caller; None: something was in the way that may be gone next time."""
    record = reply.claim.record
    if reply.claim.granted:
        assert record is not None
        safe.events.emit("completed", claim.id, task.target)
        return Ended(writes.answer, False, writes, record)
    if record is not None:
        return None  # somebody got there first: the next look judges what it left
    refused = tuple(reason for reason in reply.reasons if reason.code != CONFLICT)
    if refused:
        safe.events.emit("released", claim.id, task.target)
        raise WritesRefused(task.key.value, refused)
    return None
