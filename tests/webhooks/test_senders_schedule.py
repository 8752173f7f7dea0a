"""A sender over its whole retry schedule, in virtual time, with a receiver whose processes fail and die (I25).

Each try is signed anew, as senders do. Each try but the last ends at random in one of the ways that give no 2xx. Then
the event is sent again by hand, as late as the sender allows. The reaper runs all the time.
"""

from __future__ import annotations

import random
import sqlite3
from contextlib import suppress
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

import pytest

from retrysafe.core.ops import Reap, Stats
from retrysafe.engine.safe import RetrySafe
from retrysafe.stores.memory import MemoryStore
from retrysafe.stores.registry import open_store
from retrysafe.stores.sql.names import build_names
from retrysafe.testing.faults import Crashed
from retrysafe.webhooks import Event, Receiver
from tests.webhooks.senders import SENDERS, Sender
from tests.webhooks.worlds import DyingConnection, Timed, TimedReceiver, World

WITH_SCHEDULE = [name for name, sender in SENDERS.items() if sender.scheme.schedule.delays]
SEEDS = range(10)


class Tries(NamedTuple):
    """What the sender saw: the statuses of its tries, 0 for no answer."""

    statuses: list[int]

    @property
    def delivered(self) -> bool:
        return 200 in self.statuses


def deliver(world: World, receiver: Receiver, sender: Sender, id_: str, endings: list[str]) -> Tries:
    """One event, over the schedule of its sender, until it is answered 2xx."""
    statuses: list[int] = []
    delays = (0.0, *sender.scheme.schedule.delays)
    for delay, dies in zip_longest(delays, endings[: len(delays) - 1], fillvalue=""):
        assert isinstance(delay, float)
        world.now += delay
        world.start(dies)
        statuses.append(attempt(receiver, sender, id_, world.now))
        world.start()
        if statuses[-1] // 100 == 2:
            break
    return Tries(statuses)


def attempt(receiver: Receiver, sender: Sender, id_: str, now: float) -> int:
    with suppress(Crashed):
        return receiver.receive(*sender.send(id_, now=now)).status
    return 0


def by_hand(world: World, receiver: Receiver, sender: Sender, id_: str, first: float) -> None:
    """Send the event by hand again and again, up to the end of what the sender allows, while the reaper runs."""
    schedule = sender.scheme.schedule
    last = first + max(schedule.horizon, schedule.by_hand)
    while world.now < last:
        world.now = min(world.now + 43_200.0, last)
        receiver.safe.execute(Reap(1_000))
        assert attempt(receiver, sender, id_, world.now) == 200


# A handler that is not in a transaction ---------------------------------------------------------

ENDINGS = ("before the claim", "after the claim", "in the handler", "after completion", "it fails")


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("name", WITH_SCHEDULE)
def test_each_event_is_handled_once_over_the_whole_schedule(name: str, seed: int) -> None:
    """The handler's effect is its last act. The next test has the process that dies between effect and completion."""
    rng, world, sender = random.Random(seed), World(), SENDERS[name]
    safe = RetrySafe(Timed(MemoryStore(), world))
    receiver = Receiver(safe, sender.scheme, clock=world.clock)
    effects: list[str] = []

    @receiver.on()
    def handle(event: Event) -> None:
        world.at("in the handler")
        if world.dies == "it fails":
            raise RuntimeError("not now")
        effects.append(event.id)

    ids = [f"evt-{number}" for number in range(6)]
    for id_ in ids:
        first = world.now
        endings = [rng.choice(ENDINGS) for _ in range(rng.randrange(len(sender.scheme.schedule.delays) + 1))]
        assert deliver(world, receiver, sender, id_, endings).delivered, endings
        by_hand(world, receiver, sender, id_, first)
    assert sorted(effects) == ids
    found = safe.execute(Stats())
    assert found.claimed + found.released + found.uncertain == 0
    safe.close()


def test_without_tx_a_death_between_effect_and_completion_runs_it_again() -> None:
    """The limit of this guarantee, and the reason for `tx`."""
    world, sender = World(), SENDERS["stripe"]
    safe = RetrySafe(Timed(MemoryStore(), world))
    receiver = Receiver(safe, sender.scheme, clock=world.clock)
    effects: list[str] = []

    @receiver.on()
    def handle(event: Event) -> None:
        effects.append(event.id)
        world.at("after the effect")

    assert deliver(world, receiver, sender, "evt-1", ["after the effect"]).delivered
    assert effects == ["evt-1", "evt-1"]
    safe.close()


def test_a_death_keeps_the_event_until_the_lease_lapses_and_no_longer() -> None:
    world, sender = World(), SENDERS["slack"]
    safe = RetrySafe(Timed(MemoryStore(), world))
    receiver = Receiver(safe, sender.scheme, clock=world.clock)
    receiver.on()(lambda event: world.at("in the handler"))
    tries = deliver(world, receiver, sender, "evt-1", ["in the handler"])
    assert tries.statuses == [0, 409, 200], "at once: still held; after a minute: free"
    safe.close()


def test_forgetting_too_early_would_handle_it_twice() -> None:
    """The ablation: ids that are kept for five minutes, as the specification suggests, do not outlive its own
    schedule."""
    world, sender = World(), SENDERS["standard"]
    safe = RetrySafe(Timed(MemoryStore(), world))
    receiver = Receiver(safe, sender.scheme, clock=world.clock, retention=300)
    effects: list[str] = []
    receiver.on()(lambda event: effects.append(event.id))
    for delay in (0.0, *sender.scheme.schedule.delays):  # the 2xx is lost each time
        world.now += delay
        assert attempt(receiver, sender, "evt-1", world.now) == 200
    assert len(effects) > 1
    safe.close()


# A handler in a transaction ---------------------------------------------------------------------

TX_ENDINGS = (*ENDINGS[2:3], "after the effect", "before the commit", "after the commit", "it fails")


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("name", ["stripe", "standard", "shopify"])
def test_with_tx_each_event_is_handled_once_wherever_the_process_dies(name: str, seed: int, tmp_path: Path) -> None:
    rng, world, sender = random.Random(seed), World(), SENDERS[name]
    path = tmp_path / "app.db"
    Connection = type("Connection", (DyingConnection,), {"world": world, "__module__": "sqlite3"})

    def connect() -> sqlite3.Connection:
        return sqlite3.connect(path, isolation_level=None, factory=Connection)

    safe = RetrySafe(Timed(open_store(f"sqlite:///{path}"), world, build_names()), tx=connect)
    safe.migrate()
    receiver = TimedReceiver(world, safe, sender.scheme)
    with connect() as db:
        db.execute("CREATE TABLE effects (id TEXT)")  # no constraint makes it unique
    db.close()

    @receiver.on()
    def handle(event: Event, tx: sqlite3.Connection) -> None:
        world.at("in the handler")
        tx.execute("INSERT INTO effects VALUES (?)", [event.id])
        world.at("after the effect")
        if world.dies == "it fails":
            raise RuntimeError("not now")

    ids = [f"evt-{number}" for number in range(4)]
    for id_ in ids:
        first = world.now
        endings = [rng.choice(TX_ENDINGS) for _ in range(rng.randrange(len(sender.scheme.schedule.delays) + 1))]
        assert deliver(world, receiver, sender, id_, endings).delivered, endings
        by_hand(world, receiver, sender, id_, first)
    db = sqlite3.connect(path)
    assert [row[0] for row in db.execute("SELECT id FROM effects ORDER BY id")] == ids
    db.close()
    safe.close()
