"""Outbox, jobs and webhooks: who may be lost, tried for ever, or eaten by somebody else."""

from __future__ import annotations

from typing import Any

from retrysafe.core.jobs import FinishJobs
from retrysafe.core.records import Answer
from retrysafe.engine.handlers import Handlers
from retrysafe.errors import VerificationError
from retrysafe.jobs import enqueue_flow
from retrysafe.jobs.task import GuardedCall
from retrysafe.testing.simulation import queue_shop, webhook_shop
from retrysafe.testing.simulation.database import NAMES
from retrysafe.testing.simulation.database_store import DatabaseStoreServer
from retrysafe.webhooks import inbox
from retrysafe.webhooks.event import Event
from retrysafe.webhooks.receiver import Receiver
from retrysafe.worker.enqueuer import TopicQueue
from tests.simulation.ablations.base import Ablation, Situation, always, calm, change, substitute, together
from tests.simulation.scenarios.deadly import DEADLY

OUTBOX, BOUNDED, EATEN = "I19 outbox", "I21 bounded attempts", "S21 nothing is eaten"


def delete_by_range(original: Any) -> Any:
    """What was published is deleted together with everything that was staged before it."""

    def carry_out(self: DatabaseStoreServer, ops: Any) -> Any:
        replies = original(self, ops)
        for op in ops:
            if isinstance(op, FinishJobs) and op.ids:
                last = f"SELECT seq FROM sqlite_sequence WHERE name = '{NAMES.outbox.strip(chr(34))}'"
                self._database.connection.execute(f"DELETE FROM {NAMES.outbox} WHERE sequence <= ({last})")
        return replies

    return carry_out


def kill_after_one_failure(original: Any) -> Any:
    def fail_job(self: TopicQueue, staged: Any, token: bytes, error: BaseException, *, dead: bool) -> Any:
        return (yield from original(self, staged, token, error, dead=True))

    return fail_job


def count_no_deliveries(original: Any) -> Any:
    return lambda self, staged: original(self, staged._replace(attempts=0))


def begin_for_ever(original: Any) -> Any:
    def call(self: GuardedCall, given: Any) -> Any:
        self._limit = None
        return original(self, given)

    return call


def note_nothing(original: Any) -> Any:
    def record_unsent(*args: Any) -> Any:
        return
        yield

    return record_unsent


def handle_nothing(original: Any) -> Any:
    """A worker without a handler marks the event as handled."""

    def require_handler(operation: Any, handlers: Handlers, event: Event) -> Any:
        found = handlers.find(event.type)
        if found is not None:
            return found
        silent = Handlers()

        async def ignore(event: Event) -> None:
            """Nobody handles it."""

        return silent.add("*", ignore)

    return require_handler


class _MarkAsSeen:
    """The work of a claim that only takes the event's place."""

    def call(self, record: Any) -> Any:
        return Answer(200)

    def answer(self, result: Any) -> Answer:
        return Answer(200)

    def failure(self, error: Exception) -> Answer:
        return Answer(200)


def mark_before_verifying(original: Any) -> Any:
    async def areceive(self: Receiver, headers: Any, body: bytes) -> Any:
        try:
            self.verify(headers, body)
        except VerificationError:
            event = Event(self.provider, headers[0][1], headers[0][1], "order.paid", body)
            handler = self.handlers.find(event.type)
            if handler is not None:
                await self.safe.aguard(self.build_task(event, handler), _MarkAsSeen())
        return await original(self, headers, body)

    return areceive


DEADLY_CALM = calm(hosts=2, workers=2, tick=60.0)

ABLATIONS = (
    Ablation(
        "what was published is deleted by range",
        OUTBOX,
        substitute(DatabaseStoreServer, "carry_out", delete_by_range),
        Situation(queue_shop.SCENARIO, ("job", "job_keyed"), change(purchases=3)),
    ),
    Ablation(
        "a job is dead after one failure",
        OUTBOX,
        substitute(TopicQueue, "_fail_job", kill_after_one_failure),
        Situation(queue_shop.SCENARIO, ("job", "job_keyed"), change(refused=0.2)),
    ),
    Ablation(
        "a delivery that ends its process is not counted",
        OUTBOX,
        substitute(TopicQueue, "_deliver", count_no_deliveries),
        Situation(DEADLY, ("deadly_publisher",), DEADLY_CALM),
    ),
    Ablation(
        "a job that kills its process is begun for ever",
        BOUNDED,
        substitute(GuardedCall, "call", begin_for_ever),
        Situation(DEADLY, ("deadly_task",), DEADLY_CALM),
    ),
    Ablation(
        "a sender that could not send keeps its lease",
        OUTBOX,
        together(substitute(enqueue_flow, "record_unsent", note_nothing), always(enqueue_flow, "is_being_sent", False)),
        Situation(DEADLY, ("enqueued",), change(refused=0.2)),
    ),
    Ablation(
        "a worker without a handler marks the event",
        EATEN,
        together(substitute(inbox, "require_handler", handle_nothing), always(inbox, "explain_missing_handler", "")),
        Situation(webhook_shop.SCENARIO, None, change(workers=2)),
    ),
    Ablation(
        "an event is marked before it is verified",
        EATEN,
        substitute(Receiver, "_areceive", mark_before_verifying),
        Situation(webhook_shop.SCENARIO),
    ),
)
