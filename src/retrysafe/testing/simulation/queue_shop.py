"""Outbox, jobs and message consumers under simulation, around a broker that delivers again and out of order.

The rules: a job exists if and only if its phase committed (I19), each publication of it has the same id, and its effect
happens once (I20). A consumer's mark commits with its writes. Nothing stays behind, and dead letters are seen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from retrysafe.consumers.inbox import Inbox
from retrysafe.consumers.message import Message
from retrysafe.consumers.verdicts import Dead, Later
from retrysafe.core.jobs import Job
from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Record
from retrysafe.errors import InProgress, OutcomeUnknown
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.operations import Stop, stage
from retrysafe.testing.simulation.application import AppHost, Handler, Purchase
from retrysafe.testing.simulation.broker import Consumed, Delivery, Published, SimulatedBroker
from retrysafe.testing.simulation.database import SimulatedDatabase
from retrysafe.testing.simulation.database_store import open_database_with_store
from retrysafe.testing.simulation.local_shop import count_rows
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.replies import ClientReply, reply_safely
from retrysafe.testing.simulation.scenario import Scenario

KINDS = ("job", "job_keyed", "job_stopped", "job_transactional", "message", "message_keyed")
"""`job`: an operation stages a job, which writes a row in its own transaction; `job_keyed`: the job calls the provider
with a key; `job_stopped`: the step that stages it is rolled back, for some; `job_transactional`: staged by a
transactional function; `message`: the consumer writes a row with its mark; `message_keyed`: it calls the provider."""

OPERATIONS = ("job", "job_keyed", "job_stopped")


def deploy(node: AppHost) -> Handler:
    """Start the shop on one host."""
    node.safe.tx = node.actors["database"]
    if node.kinds & {*OPERATIONS, "job_transactional"}:
        deploy_jobs(node)
    if node.kinds & {"message", "message_keyed"}:
        deploy_consumers(node)
    operations = {kind: declare_operation(node, kind) for kind in OPERATIONS if kind in node.kinds}
    transactional, announce = declare_transactional(node), declare_producer(node)

    async def handle(purchase: Purchase) -> ClientReply:
        if purchase.kind in operations:
            return await reply_safely(operations[purchase.kind](purchase.name, key=Key(purchase.key, "account")))
        work = transactional(purchase.name) if purchase.kind == "job_transactional" else None
        reply = await reply_safely(work or announce(purchase.name, purchase.kind))
        # The charge before it is the application's own: what retrysafe says of the rest is not true of the whole.
        return ClientReply(503, b"") if reply.status == 503 else reply

    return handle


# Producers ------------------------------------------------------------------------------------------------------------


def declare_operation(node: AppHost, kind: str) -> Any:
    """A charge, then a row and a staged job in one commit."""
    operation = node.safe.operation(kind)

    @operation.foreign(timeout=20, key_life=80_000)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @operation.local
    async def record(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "record")
        await stage(tx, "send_mail_keyed" if kind == "job_keyed" else "send_mail", {"purchase": purchase})
        if kind == "job_stopped" and purchase.endswith("1"):
            raise Stop(410, {"stopped": True})
        return "recorded"

    @operation.body
    async def place(purchase: str) -> Answer:
        number = await charge(purchase)
        return Answer(201, {"charge": number, "row": await record(purchase)})

    return operation


def declare_transactional(node: AppHost) -> Callable[[str], Any]:
    """The same without steps: a charge with a key of its own, then a transactional function."""

    @node.safe.transactional("{purchase}", tx=node.actors["database"], scope="transactional")
    async def record(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "record")
        await stage(tx, "send_mail", {"purchase": purchase})
        return purchase

    async def place(purchase: str) -> Answer:
        number = await node.provider.charge(purchase, f"own-{purchase}")
        await record(purchase)
        return Answer(201, {"charge": number})

    return place


def declare_producer(node: AppHost) -> Callable[[str, str], Any]:
    """A charge, then a message. A client's retry sends the message again, with the same id."""
    broker: SimulatedBroker = node.actors["broker"]

    async def place(purchase: str, kind: str) -> Answer:
        number = await node.provider.charge(purchase, f"own-{purchase}")
        await broker.publish(Published(f"message-{purchase}", kind, purchase.encode(), purchase))
        return Answer(201, {"charge": number})

    return place


# Jobs and consumers ---------------------------------------------------------------------------------------------------


def deploy_jobs(node: AppHost) -> None:
    """The publisher of staged jobs, and the tasks behind the fence."""
    jobs, broker, database = QueueAdapter(node.safe), node.actors["broker"], node.actors["database"]

    async def send_mail(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "mail")
        return purchase

    async def send_mail_keyed(purchase: str) -> int:
        number: int = await node.provider.charge(purchase, f"mail-{purchase}", kind="mail")
        return number

    for task in (
        jobs.fence(send_mail, name="send_mail", tx=database),
        jobs.fence(send_mail_keyed, name="send_mail_keyed"),
    ):
        node.entries[task.name] = build_task_entry(task)

    @node.safe.publish("*")
    async def publish(job: Job) -> None:
        await broker.publish(Published(job.id, job.topic, job.payload, job.json()["purchase"]))


def build_task_entry(task: Any) -> Callable[..., Any]:
    async def run(message: Published, delivery: Delivery) -> Consumed:
        try:
            await task.arun(message.id, (), json.loads(message.body))
        except InProgress as busy:
            return Consumed(min(busy.retry_after, 5.0))
        except OutcomeUnknown as unknown:
            return Consumed(dead=str(unknown))
        return Consumed()

    return run


def deploy_consumers(node: AppHost) -> None:
    """Two inboxes: one whose handler writes in the transaction of its mark, and one whose handler calls the provider
    with the message's id as the key."""
    by_row, by_call = Inbox(node.safe, "mailer"), Inbox(node.safe, "caller", max_attempts=40)

    @by_row.handler
    async def write_mail(message: Message, tx: Any) -> None:
        await tx.write(message.body.decode(), "mail")

    @by_call.handler
    async def call(message: Message) -> None:
        await node.provider.charge(message.body.decode(), f"mail-{message.id}", kind="mail")

    node.entries |= {"message": build_inbox_entry(by_row), "message_keyed": build_inbox_entry(by_call)}


def build_inbox_entry(inbox: Inbox) -> Callable[..., Any]:
    async def consume(message: Published, delivery: Delivery) -> Consumed:
        verdict = await inbox.aprocess(
            Message(
                body=message.body,
                source=message.topic,
                id=message.id,
                deliveries=delivery.count,
                failures=delivery.failures,
            )
        )
        if isinstance(verdict, Dead):
            return Consumed(dead=verdict.why)
        if isinstance(verdict, Later):
            delivery.failures += verdict.failed
            return Consumed(verdict.seconds)
        return Consumed()

    return consume


async def decide(node: AppHost, record: Record) -> str:
    """A person goes on with an operation that was given up, and says of a job what the ledger shows."""
    operation = node.safe.operations.get(record.target)
    if operation is None:
        return ""
    await operation.resume_id(record.id, because="every step takes its key again")
    return "resumed"


# Checks ---------------------------------------------------------------------------------------------------------------


def count_mails(outcome: Outcome, purchase: Purchase) -> int:
    return count_rows(outcome, purchase.name)["mail"] + outcome.provider.count(purchase.name, "mail")


def check_one_mail(outcome: Outcome) -> Iterator[str]:
    """One mail for each purchase whose client was told 2xx, and none for one whose step was rolled back (I19, I20)."""
    broker: SimulatedBroker = outcome.actors["broker"]
    dead = {message.about for message, _ in broker.log.dead}
    for purchase in outcome.purchases:
        rows, mails = count_rows(outcome, purchase.name), count_mails(outcome, purchase)
        if mails > 1 or rows["record"] > 1:
            yield f"I20 one effect: {purchase.name} ({purchase.kind}) has {mails} mails and {rows['record']} rows"
        if mails and not rows["record"] and not purchase.kind.startswith("message"):
            yield f"I19 outbox: {purchase.name} ({purchase.kind}) has a mail, and its phase never committed"
        told = {reply.status for reply in outcome.replies.get(purchase.name, ())}
        if 201 in told and not mails and purchase.name not in dead:
            yield f"I19 outbox: {purchase.name} ({purchase.kind}) was told 201, and there is no mail and no dead letter"
        if 410 in told and (mails or rows["record"]):
            yield f"I19 outbox: {purchase.name} was stopped, and has {mails} mails and {rows['record']} rows"


def check_stable_ids(outcome: Outcome) -> Iterator[str]:
    """Every publication of a job has one id, whatever died between two of them (I20)."""
    broker: SimulatedBroker = outcome.actors["broker"]
    ids: dict[tuple[str, str], set[str]] = {}
    for message in broker.log.published:
        ids.setdefault((message.about, message.topic), set()).add(message.id)
    for (about, topic), found in ids.items():
        if len(found) > 1:
            yield f"I20 stable id: {about} was published to {topic} under {len(found)} ids"


def check_nothing_behind(outcome: Outcome) -> Iterator[str]:
    """The outbox is empty, but for dead letters, which a person sees."""
    database: SimulatedDatabase = outcome.actors["database"]
    waiting = database.count_jobs()
    if waiting:
        yield f"I19 outbox: {waiting} jobs stay behind and are not dead letters"


def check_dead_letters(outcome: Outcome) -> Iterator[str]:
    """No message of these histories is wrong: the only dead letters are of attempts that were used up."""
    broker: SimulatedBroker = outcome.actors["broker"]
    for message, why in broker.log.dead:
        if "begun" not in why and "too often" not in why and "failed" not in why:
            yield f"I20 dead letter: {message.about} ({message.topic}): {why}"


SCENARIO = Scenario(
    deploy,
    KINDS,
    (open_database_with_store, SimulatedBroker),
    (check_one_mail, check_stable_ids, check_nothing_behind, check_dead_letters),
    store="database",
    decide=decide,
)
