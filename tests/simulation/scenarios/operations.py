"""Operations in the situations that cost us something: one kind of purchase for each. Where that matters
(`FORGETTING`), the provider remembers keys for two minutes only."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator
from typing import Any

from retrysafe.core.records import Answer
from retrysafe.operations import StepFailed, Stop, Undo
from retrysafe.testing.simulation import AppHost, Handler, Outcome, Scenario
from tests.simulation.scenarios.base import run_operations, start_actor

KINDS = ("forgotten", "undone", "given_up", "two_undos", "swallowed", "hurried", "found", "poison")
"""`forgotten`: the provider may have forgotten the key; `undone` the same for the key of a refund; `given_up` undoes a
step that may have happened; `two_undos` has two steps to undo; `swallowed` catches the end of the operation; `hurried`
puts a timeout of its own around a step; `found` asks the provider what happened, after a person was wrong; `poison`
fails for a while, and must not be tried for ever."""

FORGETTING = ("forgotten", "undone")
MEMORY_SECONDS = 120.0
KEY_LIFE_SECONDS = 100.0
POISON_SECONDS = 400.0
POISON_ATTEMPTS = 3
POISON_SPACING_SECONDS = 2.5
"""Three failures that count are three seconds apart at least (`min_failure_spacing`)."""
QUIET_SINCE_SECONDS = 1500.0


def deploy(node: AppHost) -> Handler:
    provider, safe = node.provider, node.safe
    if node.kinds & set(FORGETTING):
        provider.memory = MEMORY_SECONDS

    async def refund(purchase: str, result: int | None = None, *, key: str) -> None:
        await provider.charge(purchase, key, kind="refund")

    async def release(purchase: str, result: int | None = None, *, key: str) -> None:
        await provider.charge(purchase, key, kind="unreserve")

    forgotten = safe.operation("forgotten")

    @forgotten.foreign(timeout=20, key_life=KEY_LIFE_SECONDS)
    async def charge(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @forgotten.body
    async def place(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge(purchase)})

    undone = safe.operation("undone")

    @undone.foreign(timeout=20, key_life=KEY_LIFE_SECONDS, undo=refund)
    async def charge_first(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @undone.body
    async def charge_and_decline(purchase: str) -> Answer:
        await charge_first(purchase)
        raise Undo(402, {"shipped": False})

    given_up = safe.operation("given_up")

    @given_up.foreign(timeout=20, tries=1, undo=refund)
    async def charge_once(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @given_up.body
    async def charge_or_undo(purchase: str) -> Answer:
        try:
            return Answer(201, {"charge": await charge_once(purchase)})
        except StepFailed as failure:
            raise Undo(402, {"charged": False}) from failure

    two_undos = safe.operation("two_undos")

    @two_undos.foreign(timeout=20, key_life=KEY_LIFE_SECONDS, undo=release)
    async def reserve(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key, kind="reserve")

    @two_undos.foreign(timeout=20, key_life=KEY_LIFE_SECONDS, undo=refund)
    async def charge_reserved(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @two_undos.body
    async def reserve_and_charge(purchase: str) -> Answer:
        await reserve(purchase)
        await charge_reserved(purchase)
        raise Undo(402, {"shipped": False})

    swallowed = safe.operation("swallowed")

    @swallowed.foreign(timeout=20)
    async def decline(purchase: str, *, key: str) -> int:
        raise Stop(402, {"declined": True})

    @swallowed.body
    async def place_whatever(purchase: str) -> Answer:
        try:
            await decline(purchase)
        except BaseException as error:
            if isinstance(error, asyncio.CancelledError):
                raise
        return Answer(201, {"charge": 0})

    hurried = safe.operation("hurried", max_attempts=3)

    @hurried.foreign(timeout=20)
    async def charge_slowly(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase, key)

    @hurried.body
    async def place_in_a_hurry(purchase: str) -> Answer:
        try:
            async with asyncio.timeout(2.0):
                return Answer(201, {"charge": await charge_slowly(purchase)})
        except TimeoutError:
            return Answer(402, {"charged": False})

    found = safe.operation("found")

    async def find(purchase: str, *, key: str) -> int | None:
        return await provider.look_up(purchase)

    @found.foreign(timeout=20, repeatable=False, find=find)
    async def charge_unrepeatably(purchase: str, *, key: str) -> int:
        return await provider.charge(purchase)

    @found.body
    async def place_carefully(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge_unrepeatably(purchase)})

    poison = safe.operation("poison", max_attempts=POISON_ATTEMPTS)

    @poison.foreign(timeout=20, tries=1)
    async def charge_at_last(purchase: str, *, key: str) -> int:
        if provider.now < POISON_SECONDS:
            provider.history.note(provider.now, node.host.name, "tried", purchase)
            raise ConnectionError("the provider is away")
        return await provider.charge(purchase, key)

    @poison.body
    async def place_at_last(purchase: str) -> Answer:
        return Answer(201, {"charge": await charge_at_last(purchase)})

    if node.host.name == "app-1":
        start_actor(decide_carelessly(node))
    operations = {
        each.name: each for each in (forgotten, undone, given_up, two_undos, swallowed, hurried, found, poison)
    }
    return run_operations(operations)


async def decide_carelessly(node: AppHost) -> None:
    """A person who says of every unknown charge of the kind `found` that it did not happen, without looking."""
    from retrysafe.core.ops import List
    from retrysafe.core.states import State
    from retrysafe.errors import RetrySafeError

    while node.provider.now < 850.0:
        await asyncio.sleep(random.uniform(20.0, 60.0))
        try:
            page = await node.safe.aexecute(List(node.safe.namespace, State.UNCERTAIN))
            for record in page.records:
                if record.target == "found@1":
                    await node.safe.aresolve(record.id, happened=False, because="no time to look")
        except RetrySafeError:
            continue


def check_order_of_undos(outcome: Outcome) -> Iterator[str]:
    """What was done last is undone first (I24), as the undos were sent: one that is held up was sent before."""
    for purchase in outcome.purchases:
        sent = [event.data["kind"] for event in outcome.history.find("sends", purchase.name)]
        undos = [kind for kind in sent if kind in ("refund", "unreserve")]
        if undos[:1] == ["unreserve"] and "refund" in undos:
            yield f"I24 reverse order: the reservation of {purchase.name} was released before its refund"


def check_bounded_attempts(outcome: Outcome) -> Iterator[str]:
    """What always fails is given to a person after a bounded number of failures (I21)."""
    for purchase in outcome.purchases:
        asked = len(outcome.history.find("resolved", purchase.name)) + 1
        tried = len(outcome.history.find("tried", purchase.name))
        # Failures that follow each other too soon are not counted: a few of them come between those that are.
        if tried > 4 * POISON_ATTEMPTS * asked:
            yield f"I21 bounded attempts: {purchase.name} was tried {tried} times"


def check_spaced_failures(outcome: Outcome) -> Iterator[str]:
    """A client that asks again each second does not use up the attempts (I21)."""
    for purchase in outcome.purchases if outcome.purchases[0].kind == "poison" else ():
        tried = [event.at for event in outcome.history.find("tried", purchase.name)]
        given_up = [event.at for event in outcome.history.find("answers", purchase.name) if event.data["status"] == 500]
        if given_up and given_up[0] - tried[0] < POISON_SPACING_SECONDS:
            seconds = given_up[0] - tried[0]
            yield f"I21 spaced failures: {purchase.name} was given up {seconds:.1f} s after it was tried first"


def check_persons_word(outcome: Outcome) -> Iterator[str]:
    """When nothing goes wrong any more, what a person says counts: nobody asks again and again (I30)."""
    for purchase in outcome.purchases:
        said = [event for event in outcome.history.find("resolved", purchase.name) if event.at > QUIET_SINCE_SECONDS]
        if len([event for event in said if not event.data["happened"]]) > 2:
            yield f"I30 an operator is believed: {purchase.name} was asked about {len(said)} times after all faults"


OPERATIONS = Scenario(
    deploy,
    KINDS,
    (),
    (check_order_of_undos, check_bounded_attempts, check_spaced_failures, check_persons_word),
)


def list_kinds(*kinds: str) -> tuple[str, ...]:
    unknown: Any = set(kinds) - set(KINDS)
    assert not unknown, unknown
    return kinds
