"""The public API as a user writes it, for mypy --strict: never run. A line that must not pass carries the error code it
must get, so a type that is loosened by accident is found (mypy reports an ignore that nothing needs).
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, assert_type

from retrysafe import (
    Answer,
    Key,
    KeyRing,
    Lease,
    Policy,
    RetrySafe,
    current_lease,
    derive,
    open_async_store,
    open_store,
)
from retrysafe.core.ops import ClaimReply, Lookup, LookupReply, Renew
from retrysafe.core.records import Fence
from retrysafe.engine.trace import TraceEvent
from retrysafe.stores.base import AsyncStore, Store
from retrysafe.testing import builders

safe = RetrySafe("sqlite:///app.db", namespace="shop", policy=Policy(lease=5), keyring=KeyRing({"a": b""}))

durations: dict[str, float] = {}


def note_duration(event: TraceEvent) -> None:
    if event.seconds is not None:
        durations[event.name] = event.seconds


RetrySafe("memory://", trace=note_duration)
RetrySafe("memory://", trace=lambda name, seconds: None)  # type: ignore[arg-type, misc]


# `once` keeps the signature ----------------------------------------------------------------------


@safe.once("receipt:{order_id}", ignore=("mailer",))
def receipt(order_id: int, mailer: object, *, copies: int = 1) -> str:
    return str(order_id * copies)


@safe.once("charge:{order_id}")
async def charge(order_id: int) -> dict[str, int]:
    return {"order": order_id}


assert_type(receipt(1, object()), str)
assert_type(receipt(1, mailer=None, copies=2), str)
receipt("1", object())  # type: ignore[arg-type]
receipt(1)  # type: ignore[call-arg]
receipt(1, object(), 2)  # type: ignore[call-arg]
receipt(1, object(), colour="red")  # type: ignore[call-arg]

plain: Callable[[int], Coroutine[Any, Any, dict[str, int]]] = charge


async def use() -> None:
    assert_type(await charge(1), dict[str, int])
    await charge("1")  # type: ignore[arg-type]
    async with safe as same:
        assert_type(same, RetrySafe)


class Mailer:
    @safe.once("mail:{order_id}", ignore="self")
    def send(self, order_id: int) -> bytes:
        return b""


assert_type(Mailer().send(7), bytes)
Mailer().send(b"7")  # type: ignore[arg-type]


# Policy ------------------------------------------------------------------------------------------

policy = Policy(mode="observe", busy="wait", failures=lambda status, error: status < 500, retention=60)
assert_type(policy.replace(lease=3), Policy)
assert_type(Policy.preset("ietf"), Policy)
assert_type(policy.heartbeat, float)
Policy(mode="sometimes")  # type: ignore[arg-type]
Policy(retain=60)  # type: ignore[call-arg]
Policy(max_body=1.5)  # type: ignore[arg-type]
policy.lease = 5  # type: ignore[misc]


# Keys, answers, leases ---------------------------------------------------------------------------

assert_type(derive("order-7", "stripe", "charge"), str)
assert_type(derive(Key("k", "tenant"), "stripe", "charge", part="2", undo=True), str)
Key("k")  # type: ignore[call-arg]
assert_type(Answer(201, {"order": 7}, {"location": "/7"}).body, bytes)
assert_type(current_lease(), Lease | None)


# Stores ------------------------------------------------------------------------------------------

assert_type(open_store("memory://"), Store)
assert_type(open_async_store("memory://"), AsyncStore)
assert_type(safe.execute(Lookup(b"")), LookupReply)
assert_type(safe.execute(builders.claim("k")), ClaimReply)
RetrySafe(open_store("memory://"), async_store=open_async_store("memory://"))
RetrySafe(open_async_store("memory://"))  # type: ignore[arg-type]
assert_type(safe.counters, dict[str, int])

# An operation is a value: whoever writes to its fields is told so by the type checker (not at run time, for speed).
renew = Renew(b"id", Fence(1, b"token"), lease=1)
renew.lease = 2  # type: ignore[misc]  # this very error is what is tested: without it mypy reports an unused ignore
