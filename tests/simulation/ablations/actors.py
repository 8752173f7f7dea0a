"""Safeguards of local steps, outbox, jobs, consumers and webhooks, taken out one at a time. Each must be noticed by the
rule that is named for it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

from retrysafe.consumers.inbox import Inbox
from retrysafe.core.jobs import FinishJobs
from retrysafe.core.ops import Lookup, Release
from retrysafe.core.states import State
from retrysafe.engine import orphaned_claims
from retrysafe.errors import NotNow
from retrysafe.jobs.task import FencedTask
from retrysafe.operations import local, operation
from retrysafe.operations.run import OperationRun
from retrysafe.stores.sql.receipts import load_receipts
from retrysafe.testing.simulation import local_shop, queue_shop, ways_shop, webhook_shop
from retrysafe.testing.simulation.database import NAMES, SimulatedDatabase
from retrysafe.transactions.staging import Staging
from retrysafe.webhooks import receiver, replies, schedules
from retrysafe.worker.enqueuer import TopicQueue
from tests.simulation.ablations.base import Ablation, Situation, calm, put, substitute, together

# Local steps ------------------------------------------------------------------------------------


def _name_receipts_anew() -> AbstractContextManager[Any]:
    """A receipt that no later attempt finds."""
    original = local.StepChange

    def build(step: str, name: str, *args: Any, **kwargs: Any) -> local.StepChange:
        return original(step, f"{name} {os.urandom(4).hex()}", *args, **kwargs)

    return put(local, "StepChange", build)


def _leave_the_point_out() -> AbstractContextManager[Any]:
    """The rows commit, and the recovery point does not."""

    def commit(run: OperationRun, change: Any, tx: Any, staged: list[Any]) -> Any:
        statements = load_receipts(tx.dialect, run.tx_binding.names)
        result, text = yield from local.run_function(run, change, statements, Staging(run.record.run, change.name))
        journal, answer = change.update_journal(result, text)
        run.advances -= 1  # the attempt believes that it has advanced
        return result, journal, answer

    return put(local, "commit_with_store", commit)


def _lose_what_was_accepted() -> AbstractContextManager[Any]:
    """A claim whose caller has left is released without a recovery point, and the worker does not find its run."""

    def release_record(record: Any) -> Any:
        if record is not None:
            yield from orphaned_claims.send_until_answered(
                Release(record.id, record.fence, orphaned_claims.ORPHANED_NOTE)
            )

    return put(orphaned_claims, "release_record", release_record)


def _take_it_for_accepted(original: Any) -> Any:
    """Whoever submits again what was let go of is told that it was accepted."""

    def accept(*args: Any) -> Any:
        flow = original(*args)
        effect = next(flow)
        while True:
            try:
                reply = yield effect
                found = reply.record if isinstance(effect, Lookup) else None
                if found is not None and found.state is State.RELEASED and not found.point:
                    reply = reply._replace(record=found._replace(state=State.CLAIMED, lease_until=reply.now + 1))
                effect = flow.send(reply)
            except StopIteration as done:
                return done.value

    return accept


# Outbox, jobs, consumers ------------------------------------------------------------------------


def _publish_under_a_new_id() -> AbstractContextManager[Any]:
    original = TopicQueue._deliver

    def deliver(self: TopicQueue, staged: Any) -> Any:
        job = staged.job._replace(id=os.urandom(16).hex())
        return original(self, staged._replace(job=job))

    return put(TopicQueue, "_deliver", deliver)


def _delete_before_publishing() -> AbstractContextManager[Any]:
    original = TopicQueue._publish

    def publish(self: TopicQueue, taken: Any, token: bytes, stopping: Any) -> Any:
        yield FinishJobs(tuple(staged.job.id for staged in taken), token)
        return (yield from original(self, taken, token, stopping))

    return put(TopicQueue, "_publish", publish)


def _stage_outside() -> AbstractContextManager[Any]:
    """A job that is staged at once, whatever becomes of the transaction."""
    original = Staging.add

    def add(self: Staging, handle: Any, *args: Any) -> None:
        original(self, handle, *args)
        job = self.jobs.pop()
        database = handle._database
        table = NAMES.outbox
        late.append((database, f"INSERT OR IGNORE INTO {table} (id, topic, payload, order_key, created, attempts, due,"
                     " token, dead, error, namespace) VALUES (?, ?, ?, '', 0, 0, 0, x'', 0, '', 'shop')",
                     (job.id, job.topic, job.payload)))  # fmt: skip

    late: list[Any] = []
    release = SimulatedDatabase._release

    def release_and_stage(self: Any) -> None:
        for database, sql, values in late:
            database.connection.execute(sql, values)
        late.clear()
        release(self)

    @contextmanager
    def patch() -> Iterator[None]:
        with (
            put(Staging, "add", add),
            put(SimulatedDatabase, "_release", release_and_stage),
        ):
            yield

    return patch()


def _no_fence() -> AbstractContextManager[Any]:
    """Each delivery of a job runs it."""
    original = FencedTask._prepare_call

    def prepare(self: FencedTask, delivery: str, *args: Any) -> Any:
        return original(self, f"{delivery}{os.urandom(4).hex()}", *args)

    return put(FencedTask, "_prepare_call", prepare)


def _forget_messages() -> AbstractContextManager[Any]:
    """The number that a broker gives to each delivery, in place of the producer's id."""
    original = Inbox._read_id
    return put(Inbox, "_read_id", lambda self, message: f"{original(self, message)}-{message.deliveries}")


# Webhooks ---------------------------------------------------------------------------------------


def _keep_events_for_five_minutes() -> AbstractContextManager[Any]:
    return put(schedules.Schedule, "retention", property(lambda self: 300.0))


def _key_by_time() -> AbstractContextManager[Any]:
    """A retry has another time, and counts as another event."""
    original = receiver.Receiver._build_key
    return put(receiver.Receiver, "_build_key", lambda self, event: replace_key(original(self, event), event.timestamp))


def replace_key(key: Any, timestamp: Any) -> Any:
    return replace(key, value=f"{key.value}-{timestamp}")


def _accept_what_is_busy() -> AbstractContextManager[Any]:
    """2xx for an event that somebody else is handling: if he dies, nobody sends it again."""
    original = replies.error_response

    def error_response(error: Exception, provider: str) -> Any:
        return replies.accepted_response() if isinstance(error, NotNow) else original(error, provider)

    return put(replies, "error_response", error_response)


TOGETHER, ELSEWHERE = Situation(local_shop.TOGETHER), Situation(local_shop.ELSEWHERE)
QUEUES, WEBHOOKS = Situation(queue_shop.SCENARIO), Situation(webhook_shop.SCENARIO)

ABLATIONS = (
    Ablation("receipts that nobody finds", "I16 phase once", _name_receipts_anew, ELSEWHERE),
    Ablation("rows without their recovery point", "I16 phase once", _leave_the_point_out, TOGETHER),
    Ablation(
        "an accepted run is dropped",
        "I30 convergence",
        together(_lose_what_was_accepted, substitute(operation, "accept", _take_it_for_accepted)),
        Situation(ways_shop.SCENARIO, ("by_worker",), calm(reply_lost=0.6, tick=5.0)),
    ),
    Ablation("a job is published under a new id", "I20 stable id", _publish_under_a_new_id, QUEUES),
    Ablation("a job is deleted before it is published", "I19 outbox", _delete_before_publishing, QUEUES),
    Ablation(
        "a job is staged outside its transaction",
        "I19 outbox",
        _stage_outside,
        Situation(queue_shop.SCENARIO, ("job_stopped",)),
    ),
    Ablation("a job without its fence", "I20 one effect", _no_fence, Situation(queue_shop.SCENARIO, ("job",))),
    Ablation(
        "a message known by its delivery",
        "I20 one effect",
        _forget_messages,
        Situation(queue_shop.SCENARIO, ("message",)),
    ),
    Ablation("events are kept for five minutes", "I25 one effect", _keep_events_for_five_minutes, WEBHOOKS),
    Ablation("an event known by its time", "I25 one effect", _key_by_time, WEBHOOKS),
    Ablation("2xx while another handles it", "S21 no 2xx before it is safe", _accept_what_is_busy, WEBHOOKS),
)
