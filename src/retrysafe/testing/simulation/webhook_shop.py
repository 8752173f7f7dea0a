"""Webhooks under simulation: the receiver verifies, deduplicates and handles, or hands over to the worker (inbox).

The rules: one effect for each event over the sender's whole schedule (I25), never a 2xx before the event is safe, and a
crash in the handler never eats the event (S21).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from retrysafe import webhooks
from retrysafe.core.keys import Key
from retrysafe.core.records import Answer, Record
from retrysafe.core.states import State
from retrysafe.testing.simulation.application import AppHost, Handler, Purchase
from retrysafe.testing.simulation.database import SimulatedDatabase
from retrysafe.testing.simulation.database_store import RecordTable, open_database_with_store
from retrysafe.testing.simulation.local_shop import count_rows
from retrysafe.testing.simulation.outcome import Outcome
from retrysafe.testing.simulation.replies import ClientReply, reply_safely
from retrysafe.testing.simulation.scenario import Scenario
from retrysafe.testing.simulation.stage import SimulationStage
from retrysafe.testing.simulation.webhook_sender import ENTRY, SECRET, WebhookSender

MODES = ("row", "call", "inbox row", "inbox call")
"""How the events of a history are handled: by a row in the transaction of the mark, or by a call with a key; at once,
or by the worker."""


class ReceiverLog:
    """What every host of a history knows of its receiver: the mode, and the 2xx that were given too soon."""

    name = "receiver"

    def __init__(self, stage: SimulationStage) -> None:
        self.host = stage.add_host("receiver log")
        self.mode = stage.draw("receiver").choice(MODES)
        self.flaky = stage.draw("flaky").choice((0.0, 0.0, 0.3))
        """How many calls of the handler fail."""
        self.chance = stage.draw("handler")
        self.too_soon: list[str] = []
        self.lacking = stage.draw("lacking").choice(("", "worker-1")) if stage.plan.workers > 1 else ""
        """The process whose code has no handler for the event."""

    def start(self, fleet: Any) -> None:
        """It only takes notes."""

    def is_settled(self) -> bool:
        return True


def deploy(node: AppHost) -> Handler:
    """Start the shop on one host: it takes orders, and webhooks."""
    database: SimulatedDatabase = node.actors["database"]
    sender: WebhookSender = node.actors["sender"]
    log: ReceiverLog = node.actors["receiver"]
    node.safe.tx = database
    receiver = webhooks.Receiver(
        node.safe,
        webhooks.StandardWebhooks(SECRET),
        inbox=log.mode.startswith("inbox"),
        clock=sender.read_clock,
    )

    def stumble() -> None:
        if log.chance.random() < log.flaky:
            raise ConnectionError("the handler failed")

    async def write_row(event: webhooks.Event, tx: Any) -> None:
        stumble()
        await tx.write(event.id, "paid")
        stumble()

    async def call(event: webhooks.Event) -> None:
        stumble()
        await node.provider.charge("p1", f"paid-{event.id}", kind=f"paid {event.id}", in_step=False)
        stumble()

    if node.host.name != log.lacking:
        receiver.on("order.paid")(write_row if log.mode.endswith("row") else call)

    async def receive(headers: list[tuple[str, str]], body: bytes) -> int:
        response = await receiver.areceive(headers, body)
        event = headers[0][1]
        if 200 <= response.status < 300 and not is_safe(node, log, event):
            log.too_soon.append(f"{event} was answered {response.status} by {node.host.name}")
        return response.status

    node.entries[ENTRY] = receive
    order = node.safe.operation("order")

    @order.foreign(timeout=20, key_life=80_000)
    async def charge(purchase: str, *, key: str) -> int:
        return await node.provider.charge(purchase, key)

    @order.body
    async def place(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge(purchase)})

    async def handle(purchase: Purchase) -> ClientReply:
        return await reply_safely(order(purchase.name, key=Key(purchase.key, "account")))

    return handle


def is_safe(node: AppHost, log: ReceiverLog, event: str) -> bool:
    """Whether a sender may be told that all is well: the effect is there, or the event is in the store."""
    database: SimulatedDatabase = node.actors["database"]
    if log.mode.startswith("inbox"):
        return any(event in record.key for record in RecordTable(database).values())
    return bool(database.list_effects(event)) or node.provider.count("p1", f"paid {event}") > 0


async def decide(node: AppHost, record: Record) -> str:
    """A person goes on with what was given up."""
    await node.safe.operations[record.target].resume_id(record.id, because="the handler takes it again")
    return "resumed"


# Checks ---------------------------------------------------------------------------------------------------------------


def check_events(outcome: Outcome) -> Iterator[str]:
    """One effect for each event, however often and however late it was sent (I25); and none is lost (S21)."""
    sender: WebhookSender = outcome.actors["sender"]
    unfinished = [record.key for record in outcome.records.values() if record.state is State.UNCERTAIN]
    for event in sender.events:
        effects = count_rows(outcome, event)["paid"] + outcome.provider.count("p1", f"paid {event}")
        if effects > 1:
            yield f"I25 one effect: {event} was handled {effects} times"
        shown = any(event in key for key in unfinished) or event in sender.given_up
        if effects == 0 and not shown:
            yield f"S21 nothing is eaten: {event} was answered 2xx and never handled"


def check_answers(outcome: Outcome) -> Iterator[str]:
    """Never 2xx before it is safe."""
    log: ReceiverLog = outcome.actors["receiver"]
    for each in log.too_soon:
        yield f"S21 no 2xx before it is safe: {each}"


SCENARIO = Scenario(
    deploy,
    ("order",),
    (open_database_with_store, WebhookSender, ReceiverLog),
    (check_events, check_answers),
    store="database",
    quiet=100 * 3600.0,
    decide=decide,
)
