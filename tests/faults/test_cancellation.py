"""A caller is cancelled at every place where it waits, one after the other (I29).

The store's only connection must come back clean, the next reply must belong to the next operation, and the record
must say what is known: given back if nothing had begun, uncertain if it was stopped half way, completed if it was
done. Never left claimed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from retrysafe import Policy, RetrySafe
from retrysafe.core.ops import Lookup
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import OutcomeUnknown
from retrysafe.stores.base import AsyncStore
from retrysafe.stores.registry import open_async_store, open_store
from retrysafe.testing.builders import claim, complete, lookup
from tests.faults.cancelling import NEVER, at_every_await, attempt
from tests.opening import patient, unique, with_option

STORES = ["sqlite", "postgres", "redis", "mysql", "mongodb"]
LONG = [pytest.param("dynamodb", marks=[pytest.mark.store("dynamodb"), pytest.mark.campaign])]
"""Its client awaits often and takes milliseconds each time: part of the proof."""
each_store = pytest.mark.parametrize(
    "store", [*(pytest.param(name, marks=pytest.mark.store(name)) for name in STORES), *LONG]
)
each_that_opens = pytest.mark.parametrize(
    # pymongo drops a socket whose opening is cancelled, and leaves it to the garbage collector, which says so.
    "store",
    [pytest.param(name, marks=pytest.mark.store(name)) for name in STORES if name != "mongodb"],
)
insisting = pytest.mark.parametrize("again", [False, True], ids=["once", "insisting"])


@pytest.fixture
def one_connection(store: str, request: pytest.FixtureRequest) -> str:
    """A URL whose store has a single connection: one that is lost or left dirty is noticed by the next operation."""
    url = patient(store, request.getfixturevalue(f"{store}_url"))
    if store in ("postgres", "mysql"):
        url = with_option(with_option(url, "pool", "1"), "table", unique("cancel_"))
    elif store == "dynamodb":
        url = with_option(url, "table", unique("cancel_"))
    elif store == "mongodb":
        url = with_option(with_option(url, "maxPoolSize", "1"), "collection", unique("cancel_"))
    elif store == "redis":
        url = with_option(with_option(url, "max_connections", "1"), "prefix", unique())
    opened = open_store(url)
    opened.migrate()
    opened.close()
    return url


@pytest.fixture
async def subject(one_connection: str) -> AsyncIterator[AsyncStore]:
    opened = open_async_store(one_connection)
    yield opened
    await opened.aclose()


async def works(subject: AsyncStore) -> None:
    """The connection is there and clean: each reply belongs to its own question."""
    async with asyncio.timeout(60):
        for _ in range(3):
            op = claim(unique(), input=unique().encode(), now=None)
            reply = await subject.execute(op)
            assert reply.granted is True
            assert reply.record is not None
            assert (reply.record.id, reply.record.input) == (op.id, op.input)
        pair = [claim(unique(), now=None) for _ in range(2)]
        assert [reply.record.id for reply in await subject.execute_many(pair)] == [op.id for op in pair]
        assert (await subject.execute(lookup(unique(), now=None))).record is None


async def record_of(subject: AsyncStore, record_id: bytes) -> Record | None:
    return (await subject.execute(Lookup(record_id))).record


# The store alone ----------------------------------------------------------------------------------


@each_store
@insisting
async def test_a_claim_cancelled_anywhere(subject: AsyncStore, again: bool) -> None:
    async def story(number: int) -> int:
        op = claim(unique(), now=None)
        _, _, awaits = await attempt(subject.execute(op), number, again=again)
        await works(subject)
        # Cancelled or not, sending it again tells the truth, and nobody else has it.
        reply = await subject.execute(op)
        assert reply.granted is True
        assert reply.record is not None
        assert reply.record.fence == (1, op.token)
        return awaits

    await works(subject)
    await at_every_await(story)


@each_that_opens
async def test_opening_cancelled_anywhere(one_connection: str) -> None:
    """The first operation of a store also opens it; whoever comes next finds it usable."""

    async def story(number: int) -> int:
        subject = open_async_store(one_connection)
        _, _, awaits = await attempt(subject.execute(claim(unique(), now=None)), number)
        await works(subject)
        await subject.aclose()
        return awaits

    await at_every_await(story)


@each_store
@insisting
async def test_complete_cancelled_anywhere(subject: AsyncStore, again: bool) -> None:
    async def story(number: int) -> int:
        held = await subject.execute(claim(unique(), now=None))
        op = complete(held, unique().encode(), now=None)
        _, _, awaits = await attempt(subject.execute(op), number, again=again)
        await works(subject)
        assert await subject.execute(op) is True
        record = await record_of(subject, op.id)
        assert record is not None
        assert record.answer == op.answer
        return awaits

    await works(subject)
    await at_every_await(story)


@each_store
@insisting
async def test_a_batch_cancelled_anywhere(subject: AsyncStore, again: bool) -> None:
    async def story(number: int) -> int:
        batch = [claim(unique(), now=None) for _ in range(3)]
        _, _, awaits = await attempt(subject.execute_many(batch), number, again=again)
        await works(subject)
        for op, reply in zip(batch, await subject.execute_many(batch), strict=True):
            assert reply.granted is True
            assert reply.record.fence == (1, op.token)
        return awaits

    await works(subject)
    await at_every_await(story)


# The engine ---------------------------------------------------------------------------------------


class Charge:
    """A function with a beginning, a wait in the middle, and an end."""

    def __init__(self, safe: RetrySafe, key: str) -> None:
        self.began = self.ended = 0
        self.key = key

        @safe.once("charge:{key}", scope="cancel", policy=Policy.preset("function", busy="conflict"))
        async def charge(key: str) -> int:
            self.began += 1
            for _ in range(4):
                await asyncio.sleep(0)
            self.ended += 1
            return self.ended

        self.call: Any = charge

    def id(self, namespace: str = "default") -> bytes:
        from retrysafe.core.keys import record_id

        return record_id("function", namespace, "cancel", f'charge:{{"{self.key}"}}')

    def truth(self) -> State:
        """What the record must say, from what the function itself has seen."""
        if self.ended:
            return State.COMPLETED
        return State.UNCERTAIN if self.began else State.RELEASED


@each_store
@insisting
async def test_once_cancelled_anywhere(one_connection: str, again: bool) -> None:
    safe = RetrySafe(one_connection)
    seen = set()

    async def story(number: int) -> int:
        charge = Charge(safe, unique())
        how, result, awaits = await attempt(charge.call(charge.key), number, again=again)
        record = await record_of(safe.async_store, charge.id())
        assert charge.began <= 1
        # Whoever is cancelled hears of it, also where the driver swallowed it on the way.
        assert how == ("cancelled" if awaits >= number else "done")
        if how == "done":
            assert result == 1
        if record is None:
            assert (how, charge.began) == ("cancelled", 0), "it ran without a record"
        else:
            assert record.state is charge.truth()
            seen.add(record.state)
        await works(safe.async_store)
        await asks_again(charge)
        return awaits

    try:
        await Charge(safe, unique()).call(unique("warm"))
        await at_every_await(story)
    finally:
        await safe.aclose()
    # Not vacuous: each of the three endings was met.
    assert seen == {State.RELEASED, State.UNCERTAIN, State.COMPLETED}


async def asks_again(charge: Charge) -> None:
    """The next caller runs it, gets the result, or is told that nobody knows; the effect happens once at most."""
    if charge.truth() is State.UNCERTAIN:
        with pytest.raises(OutcomeUnknown):
            await charge.call(charge.key)
        assert (charge.began, charge.ended) == (1, 0)
    else:
        assert await charge.call(charge.key) == 1
        assert (charge.began, charge.ended) == (1, 1)


@each_store
async def test_it_is_the_callers_cancellation(one_connection: str) -> None:
    """A guarded call is cancelled like any other: that is neither swallowed nor made an error of ours."""
    safe = RetrySafe(one_connection)
    begun = asyncio.Event()

    @safe.once("wait:{key}")
    async def waits(key: str) -> None:
        begun.set()
        await asyncio.Event().wait()

    try:
        task = asyncio.create_task(waits(unique()))
        await asyncio.wait_for(begun.wait(), 60)
        task.cancel("enough")
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
        await works(safe.async_store)
    finally:
        await safe.aclose()


async def test_the_tool_cancels_where_it_says() -> None:
    async def three() -> str:
        for _ in range(3):
            await asyncio.sleep(0)
        return "done"

    assert await attempt(three(), NEVER) == ("done", "done", 3)
    assert [(await attempt(three(), number))[::2] for number in (1, 2, 3)] == [("cancelled", n) for n in (1, 2, 3)]
    assert (await attempt(three(), 4))[0] == "done"
