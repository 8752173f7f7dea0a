"""Operations of long ago: one whose record has expired and that is resumed by an old list, one that waited for a worker
for longer than the provider remembers a key."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

from retrysafe.core.keys import Key
from retrysafe.core.ops import List
from retrysafe.core.records import Answer
from retrysafe.errors import RetrySafeError
from retrysafe.operations import Accepted
from retrysafe.policy import Policy
from retrysafe.testing.simulation import AppHost, ClientReply, Handler, Outcome, Purchase, Scenario
from retrysafe.testing.simulation.stage import SimulationStage
from tests.simulation.scenarios.base import SCOPE, reply_to

KINDS = ("expired", "submitted")
LIST_SECONDS, ACT_SECONDS = 30.0, 6000.0
"""When the list is made, and when somebody goes through it: an answer is kept for an hour at least."""
KEY_LIFE_SECONDS = 100.0


class OldList:
    """A person with a list of this morning."""

    name = "old list"

    def __init__(self, stage: SimulationStage) -> None:
        self.host = stage.add_host("old list")
        self.next_act = ACT_SECONDS
        self._stage, self._is_done = stage, False

    def start(self, fleet: Any) -> None:
        self.host.run_inside(self._stage.loop.create_task, self._act(fleet))

    def is_settled(self) -> bool:
        return self._is_done

    async def _act(self, fleet: Any) -> None:
        await asyncio.sleep(LIST_SECONDS)
        node = fleet.open_application(self.host)
        try:
            page = await node.safe.aexecute(List(fleet.namespace, limit=20))
            await asyncio.sleep(ACT_SECONDS - self._stage.now)
            for record in page.records:
                if record.target.startswith("expired@"):
                    await node.safe.operations[record.target].resume(record)
        except RetrySafeError as error:
            self._stage.note(self.host.name, "refused", why=type(error).__name__)
        self._is_done = True


def deploy(node: AppHost) -> Handler:
    provider = node.provider
    expired = node.safe.operation("expired", policy=Policy(retention=60.0, failures="release"))
    submitted = node.safe.operation("submitted", policy=Policy(start="worker", failures="release", retention=200_000))

    @expired.foreign(timeout=20)
    async def charge(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @expired.body
    async def place(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge(purchase)})

    @submitted.foreign(timeout=20, key_life=KEY_LIFE_SECONDS)
    async def charge_later(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @submitted.body
    async def place_later(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge_later(purchase)})

    operations = {"expired": expired, "submitted": submitted}

    async def call(purchase: Purchase) -> Any:
        answer = await operations[purchase.kind](purchase.name, key=Key(purchase.key, SCOPE))
        return ClientReply(409, b"accepted") if isinstance(answer, Accepted) else answer

    async def handle(purchase: Purchase) -> ClientReply:
        return await reply_to(call(purchase))

    return handle


def check_asked_for_something(outcome: Outcome) -> Iterator[str]:
    """A person is asked about a key that may be too old only if it may have been sent (I17). Where a process died just
    before it sent, that cannot be known: this holds where nothing else goes wrong."""
    if outcome.faults or outcome.host_faults:
        return
    for purchase in outcome.purchases:
        sent = [event.at for event in outcome.history.find("sends", purchase.name)]
        for event in outcome.history.find("resolved", purchase.name):
            if not any(at < event.at for at in sent):
                yield f"I17 asked for something: a person was asked about a charge of {purchase.name} that nobody sent"


LONG_AGO = Scenario(deploy, KINDS, (OldList,), (check_asked_for_something,))
