"""Jobs that end the process which runs them, and senders that cannot send: outbox, fence and `enqueue` beside death."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from retrysafe.core.jobs import Job
from retrysafe.core.records import Answer
from retrysafe.jobs.queue_adapter import QueueAdapter
from retrysafe.operations import stage
from retrysafe.testing.simulation import AppHost, ClientReply, Handler, Outcome, Purchase, Scenario
from retrysafe.testing.simulation.broker import Published, SimulatedBroker
from retrysafe.testing.simulation.database_store import open_database_with_store
from retrysafe.testing.simulation.local_shop import count_rows
from retrysafe.testing.simulation.queue_shop import build_task_entry, check_nothing_behind, decide
from retrysafe.testing.simulation.replies import reply_safely
from retrysafe.testing.simulation.stage import SimulationStage

KINDS = ("deadly_task", "deadly_publisher", "enqueued")
"""`deadly_task`: a job kills each process that begins it; `deadly_publisher`: a staged job kills each worker that
publishes it; `enqueued`: a job that is sent by `aenqueue`."""

MAX_DEATHS = 25
"""A fenced job is begun ten times, and once as one that may not run again; a staged one is delivered twenty times. Some
of the processes are killed before they come to that."""


class Executioner:
    """Kills the process that asks for it."""

    name = "executioner"

    def __init__(self, stage: SimulationStage) -> None:
        self.host = stage.add_host("executioner")
        self.deaths: dict[str, int] = {}
        self._stage = stage
        self._fleet: Any = None

    def start(self, fleet: Any) -> None:
        self._fleet = fleet

    def is_settled(self) -> bool:
        return True

    async def kill(self, node: AppHost, purchase: str) -> None:
        """The process does not come back from this."""
        self.deaths[purchase] = self.deaths.get(purchase, 0) + 1
        self._stage.loop.call_at_true_time(self._stage.now, self._fleet.kill, node.host.name, 1.0)
        await asyncio.sleep(100_000)


def deploy(node: AppHost) -> Handler:
    broker: SimulatedBroker = node.actors["broker"]
    executioner: Executioner = node.actors["executioner"]
    database = node.safe.tx = node.actors["database"]
    jobs = QueueAdapter(node.safe)

    async def die(purchase: str) -> None:
        await executioner.kill(node, purchase)

    async def send_mail(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "mail")
        return purchase

    mail = jobs.fence(send_mail, name="send_mail", tx=database)
    for task in (jobs.fence(die, name="die"), mail):
        node.entries[task.name] = build_task_entry(task)

    @node.safe.publish("deadly")
    async def publish(job: Job) -> None:
        await executioner.kill(node, job.json()["purchase"])

    @node.safe.transactional("{purchase}", tx=database, scope="transactional")
    async def record(tx: Any, purchase: str) -> str:
        await tx.write(purchase, "record")
        await stage(tx, "deadly", {"purchase": purchase})
        return purchase

    async def publish_task(topic: str, id: str, purchase: str) -> None:
        await broker.publish(Published(id, topic, json.dumps({"purchase": purchase}).encode(), purchase))

    async def place(purchase: Purchase) -> Answer:
        number = await node.provider.charge(purchase.name, f"own-{purchase.name}")
        if purchase.kind == "deadly_task":
            await publish_task("die", f"message-{purchase.name}", purchase.name)
        elif purchase.kind == "deadly_publisher":
            await record(purchase.name)
        else:
            await jobs.aenqueue(
                mail,
                kwargs={"purchase": purchase.name},
                key=f"mail-{purchase.name}",
                send=lambda message: publish_task("send_mail", message.id, purchase.name),
            )
        return Answer(201, {"charge": number})

    async def handle(purchase: Purchase) -> ClientReply:
        reply = await reply_safely(place(purchase))
        # The charge before it is the application's own: what retrysafe says of the rest is not true of the whole.
        return ClientReply(503, b"") if reply.status == 503 else reply

    return handle


def check_deaths(outcome: Outcome) -> Iterator[str]:
    """What kills whoever tries it is put aside after a bounded number of deaths (I21)."""
    executioner: Executioner = outcome.actors["executioner"]
    for purchase, deaths in executioner.deaths.items():
        if deaths > MAX_DEATHS:
            yield f"I21 bounded attempts: the job of {purchase} has killed {deaths} processes"


def check_enqueued(outcome: Outcome) -> Iterator[str]:
    """Whoever was told that a job is enqueued has his mail, once."""
    broker: SimulatedBroker = outcome.actors["broker"]
    dead = {message.about for message, _ in broker.log.dead}
    for purchase in outcome.purchases:
        mails = count_rows(outcome, purchase.name)["mail"]
        if mails > 1:
            yield f"I20 one effect: {purchase.name} has {mails} mails"
        told = {reply.status for reply in outcome.replies.get(purchase.name, ())}
        if purchase.kind == "enqueued" and 201 in told and not mails and purchase.name not in dead:
            yield f"I19 outbox: {purchase.name} was told that its mail is enqueued, and nobody has sent it"


DEADLY = Scenario(
    deploy,
    KINDS,
    (open_database_with_store, SimulatedBroker, Executioner),
    (check_deaths, check_enqueued, check_nothing_behind),
    store="database",
    decide=decide,
)
