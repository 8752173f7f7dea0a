"""What the cutting and killing tests have in common: an operation to break, and what must be true afterwards."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from retrysafe.core.ops import Claim, ClaimReply, Op
from retrysafe.core.records import Record
from retrysafe.core.states import State
from retrysafe.errors import StoreOutage, StoreUnclear
from retrysafe.testing import Do
from retrysafe.testing.builders import (
    advance,
    answer,
    claim,
    complete,
    lookup,
    release,
    renew,
    resolve,
    suspect,
)

LEASE = 600.0
"""Longer than any test: nobody may take over because a test was slow."""

DEADLINE = 60.0


@dataclass(frozen=True)
class Case:
    """An operation, made for a key that `healthy` prepared; and the state it leads to."""

    name: str
    make: Callable[[Do, str], Op[Any]]
    leads_to: State


def asked(key: str) -> Claim:
    return claim(key, lease=LEASE, now=None)


def held(healthy: Do, key: str) -> ClaimReply:
    reply = healthy(asked(key))
    assert reply.granted
    return reply


def doubted(healthy: Do, key: str) -> ClaimReply:
    reply = held(healthy, key)
    assert healthy(suspect(reply, now=None)) is True
    return reply


CASES = [
    Case("claim", lambda healthy, key: asked(key), State.CLAIMED),
    Case("renew", lambda healthy, key: renew(held(healthy, key), lease=LEASE, now=None), State.CLAIMED),
    Case("advance", lambda healthy, key: advance(held(healthy, key), lease=LEASE, now=None), State.CLAIMED),
    Case("complete", lambda healthy, key: complete(held(healthy, key), now=None), State.COMPLETED),
    Case("release", lambda healthy, key: release(held(healthy, key), now=None), State.RELEASED),
    Case("suspect", lambda healthy, key: suspect(held(healthy, key), now=None), State.UNCERTAIN),
    Case("resolve", lambda healthy, key: resolve(doubted(healthy, key), b"known", now=None), State.COMPLETED),
]


def sent(do: Do, op: Op[Any], healthy: Do) -> tuple[Any, str]:
    """Send as the engine does: once more after StoreUnclear. Returns the reply and how the first sending went.

    StoreUnavailable alone is a promise that nothing was done, and is held to it here.
    """
    before = healthy(lookup_of(op)).record
    try:
        return do(op), "told"
    except StoreUnclear:
        return resend(lambda: do(op)), "unclear"
    except StoreOutage:
        assert healthy(lookup_of(op)).record == before, f"{op} was refused as not sent, yet something was done"
        return resend(lambda: do(op)), "unavailable"


def lookup_of(op: Any) -> Any:
    from retrysafe.core.ops import Lookup

    return Lookup(op.id)


def resend(send: Callable[[], Any]) -> Any:
    """Until it gets through: the store is healthy again, or about to be."""
    return eventually(send, StoreOutage)


def eventually(attempt: Callable[[], Any], trouble: type[Exception], deadline: float = DEADLINE) -> Any:
    """Try until it works; the deadline is only for a broken implementation."""
    end = time.monotonic() + deadline
    while True:
        try:
            return attempt()
        except trouble:
            if time.monotonic() > end:
                raise
            time.sleep(0.005)


def warm(do: Do, times: int = 1, key: str = "nobody's") -> None:
    """A connection that has been used. The cut before may have killed the pooled one: that is found out here."""
    for _ in range(times):
        resend(lambda: do(lookup(key, now=None)))


def check_truth(healthy: Do, case: Case, op: Any, reply: Any) -> None:
    """What the caller was told is what is stored; nothing was lost, nothing happened twice, no rival gets in."""
    record = stored(healthy, op)
    assert record.state is case.leads_to
    assert record.attempt == 1, "an operation that is sent again is not another attempt"
    if isinstance(op, Claim):
        assert reply.granted is True
        assert reply.record.fence == (1, op.token) == record.fence
    else:
        assert reply is True
        assert record.fence == op.fence
    if case.name in ("complete", "resolve"):
        assert record.answer == op.answer == answer(op.answer.body)
    rival(healthy, record)


def stored(healthy: Do, op: Any) -> Record:
    record: Record | None = healthy(lookup_of(op)).record
    assert record is not None, "the key was lost"
    return record


def rival(healthy: Do, record: Record) -> None:
    """Another caller with a token of its own: granted only where the first gave the key back, as attempt 2."""
    reply = healthy(asked(record.key))
    assert reply.granted is (record.state is State.RELEASED)
    assert reply.record is not None
    if reply.granted:
        assert reply.record.attempt == 2
        assert healthy(complete(record, b"stale", now=None)) is False
    else:
        assert reply.record.fence == record.fence
