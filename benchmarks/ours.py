"""Our stores, the same work: a claim and its completion, each an operation of the seam."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

from benchmarks.floors import BODY
from retrysafe.core.fingerprint import fingerprint_body
from retrysafe.core.ops import Claim, Complete
from retrysafe.core.records import Answer
from retrysafe.core.times import SECOND_MICROS
from retrysafe.stores.registry import open_async_store, open_store

FINGERPRINT = fingerprint_body("application/json", [b'{"amount":10000,"currency":"usd"}'])
ANSWER = Answer(201, BODY, (("content-type", "application/json"),))


def new_claim() -> Claim:
    drawn = os.urandom(64)
    return Claim(
        id=drawn[:32],
        namespace="default",
        kind="http",
        scope="account-7",
        key="8e03978e-40d5-43e8-bc93-6894a57f9324",
        target="POST /payments",
        fingerprint=FINGERPRINT,
        token=drawn[32:48],
        run=drawn[48:],
        lease=60 * SECOND_MICROS,
        retention=86_400 * SECOND_MICROS,
        on_lapse="uncertain",
    )


@asynccontextmanager
async def async_pairs(url: str, batching: bool) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    store = open_async_store(url, batching=batching)
    await store.migrate()

    async def pair() -> None:
        op = new_claim()
        reply = await store.execute(op)
        assert reply.granted
        assert reply.record is not None
        assert await store.execute(Complete(op.id, reply.record.fence, ANSWER))

    yield pair
    await store.aclose()


@contextmanager
def thread_pairs(url: str, batching: bool) -> Iterator[Callable[[], Any]]:
    store = open_store(url, batching=batching)
    store.migrate()

    def pair() -> None:
        op = new_claim()
        reply = store.execute(op)
        assert reply.granted
        assert reply.record is not None
        assert store.execute(Complete(op.id, reply.record.fence, ANSWER))

    yield pair
    store.close()


@asynccontextmanager
async def async_claims(url: str, batching: bool) -> AsyncIterator[Callable[[], Awaitable[Any]]]:
    """Only the claim, of a new key among all the others."""
    store = open_async_store(url, batching=batching)
    await store.migrate()

    async def claim() -> None:
        assert (await store.execute(new_claim())).granted

    yield claim
    await store.aclose()
