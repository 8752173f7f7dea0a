"""Sixty-four claimers run the same course of keys in heats: in crews of threads and crews of tasks, in processes of
their own where the store lets several use it.

All crews wait for each other before each heat, and within a heat everybody wants the same HEAT keys at once: two of a
crew one by one, the others in one batch, so that single claims and batches meet on every key. What is unclear or
refused for want of a connection is sent again, as the engine does; a claimer reports only what it was granted.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from queue import Queue
from typing import Any, NamedTuple

from retrysafe.core.ops import Claim, ClaimReply
from retrysafe.errors import StoreError, StoreOutage
from retrysafe.stores.base import BatchRefused
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing.builders import claim, record_of
from tests.forks import FORKS
from tests.races.racers import Grant

CREW = 16
HEAT = 25
SINGLES = 2
"""Of a crew: those who claim one by one."""
PATIENCE = 1000.0
"""A crew that is not ready by then has died; one that is slow has not."""
LEASE = 30.0
BREATH = 0.005


class Step(NamedTuple):
    """One heat: these keys, at this moment."""

    keys: range
    now: float


@dataclass(frozen=True)
class Course:
    """`crews` names a colour for each crew. `apart`: in processes of their own, else all in this one."""

    url: str
    steps: tuple[Step, ...]
    crews: tuple[str, ...]
    apart: bool


def course(url: str, keys: int, again: int, crews: tuple[str, ...], apart: bool) -> Course:
    """Every key once; then the leases of the first `again` keys have lapsed, and everybody races for attempt 2."""
    return Course(url, (*heats(keys, 0), *heats(again, LEASE + 1)), crews, apart)


def heats(keys: int, now: float) -> Iterator[Step]:
    for first in range(0, keys, HEAT):
        yield Step(range(first, min(first + HEAT, keys)), now)


def run(race: Course) -> list[Grant]:
    """Every grant anybody was told of."""
    crews = _apart(race) if race.apart else _together(race)
    failed = [told for told in crews if isinstance(told, str)]
    assert not failed, f"{len(failed)} crews failed, the first with: {failed[0]}"
    return [Grant(*grant) for grants in crews for grant in grants]


def _apart(race: Course) -> list[Any]:
    barrier, told = FORKS.Barrier(len(race.crews)), FORKS.Queue()
    crews = [FORKS.Process(target=crew, args=(race, colour, barrier, told)) for colour in race.crews]
    for each in crews:
        each.start()
    try:
        return [told.get(timeout=PATIENCE) for _ in crews]
    finally:
        for each in crews:
            each.join(5)
            each.kill()
            each.join()
        told.close()


def _together(race: Course) -> list[Any]:
    barrier, told = threading.Barrier(len(race.crews)), Queue[Any]()
    crews = [threading.Thread(target=crew, args=(race, colour, barrier, told)) for colour in race.crews]
    for each in crews:
        each.start()
    for each in crews:
        each.join()
    return [told.get_nowait() for _ in crews]


def crew(race: Course, colour: str, barrier: Any, told: Any) -> None:
    """One crew, to its end. What it was granted is what it tells, or why it gave up."""
    try:
        grants = (threads if colour == "sync" else tasks)(race, lambda: barrier.wait(PATIENCE))
    except BaseException as error:
        barrier.abort()
        told.put(repr(error))
    else:
        told.put([tuple(grant) for grant in grants])


# Threads ------------------------------------------------------------------------------------------


def threads(race: Course, ready: Callable[[], object]) -> list[Grant]:
    store = open_store(race.url)
    gate = threading.Barrier(CREW, action=ready)
    grants: list[Grant] = []
    errors: list[BaseException] = []

    def claimer(number: int) -> None:
        try:
            for step in race.steps:
                gate.wait(PATIENCE)
                for ops in portions(step, number):
                    grants.extend(granted(step, ops, sent(store.execute_many, store.execute, ops)))
        except BaseException as error:
            errors.append(error)
            gate.abort()

    members = [threading.Thread(target=claimer, args=(number,)) for number in range(CREW)]
    for member in members:
        member.start()
    for member in members:
        member.join()
    store.close()
    if errors:
        raise errors[0]
    return grants


def sent(many: Callable[[Any], Any], one: Callable[[Any], Any], ops: Sequence[Claim]) -> Sequence[ClaimReply]:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return [one(ops[0])] if len(ops) == 1 else many(ops)
        except BatchRefused:
            return [reply for op in ops for reply in sent(many, one, [op])]
        except StoreOutage as error:
            late(error, deadline)
            time.sleep(BREATH)


# Tasks --------------------------------------------------------------------------------------------


def tasks(race: Course, ready: Callable[[], object]) -> list[Grant]:
    async def whole() -> list[Grant]:
        store = open_async_store(race.url)
        grants: list[Grant] = []

        async def claimer(step: Step, number: int) -> None:
            for ops in portions(step, number):
                grants.extend(granted(step, ops, await asent(store.execute_many, store.execute, ops)))

        try:
            for step in race.steps:
                await asyncio.to_thread(ready)
                await asyncio.gather(*(claimer(step, number) for number in range(CREW)))
        finally:
            await store.aclose()
        return grants

    return asyncio.run(whole())


async def asent(many: Callable[[Any], Any], one: Callable[[Any], Any], ops: Sequence[Claim]) -> Sequence[ClaimReply]:
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            return [await one(ops[0])] if len(ops) == 1 else await many(ops)
        except BatchRefused:
            return [reply for op in ops for reply in await asent(many, one, [op])]
        except StoreOutage as error:
            late(error, deadline)
            await asyncio.sleep(BREATH)


# What both do -------------------------------------------------------------------------------------


def portions(step: Step, number: int) -> Iterator[list[Claim]]:
    """What one claimer sends in a heat: each key alone, or all at once."""
    ops = [claim(f"k{key}", lease=LEASE, on_lapse="rerun", now=step.now) for key in step.keys]
    if number >= SINGLES:
        yield ops
    else:
        yield from ([op] for op in ops)


def granted(step: Step, ops: Sequence[Claim], replies: Sequence[ClaimReply]) -> Iterator[Grant]:
    for op, reply in zip(ops, replies, strict=True):
        if reply.granted:
            yield Grant(int(op.key[1:]), record_of(reply).attempt, op.token)


def late(error: StoreError, deadline: float) -> None:
    if time.monotonic() > deadline:
        raise error
