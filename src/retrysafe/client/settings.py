"""The client's settings: `Retries` (attempts, delays, limits) and `Clock` (time, sleep and randomness)."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Literal, get_args

from retrysafe.client.errors import RetriesError

Streams = Literal["refuse", "once"]

UNSAFE_METHODS = frozenset({"POST", "PUT", "PATCH", "DELETE"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Retries:
    """When and how often to retry. Durations are seconds, or a `timedelta`.

    attempts         the maximum number of attempts of one call; 5, which with these delays covers an outage of some
                     seconds. The answer "still in progress" does not count: only the deadline ends the waiting
    deadline         after this no further attempt begins; 120 s, twice the default lease of a server that died
    base, cap        attempt n waits a random time between 0 and min(cap, base · 2ⁿ⁻¹): full jitter, so that a
                     server that recovers does not get all retries at once
    max_retry_after  a longer Retry-After is cut to this; a minute
    key_life         how long the server keeps keys; 24 h, what Stripe promises. A journal refuses to send an older key
    new_keys         how often a call may rotate its key when the server says that nothing happened under the old one; 1
    methods          which methods get a key; the others are retried without one if they are safe
    header           the name of the header that carries the key
    max_body         a stream of known length up to this many bytes is read into memory, so that it can be sent again;
                     1 MiB
    max_answer       up to this many bytes of the answer to a keyed request are read before the caller gets it, so that
                     a connection that breaks in the middle of the body is retried too; 1 MiB. Zero: never
    streams          what to do with other streams: `refuse` them, or send them `once` (with a key, without retries)
    """

    attempts: int = 5
    deadline: float = 120.0
    base: float = 0.25
    cap: float = 20.0
    max_retry_after: float = 60.0
    key_life: float = 24 * 3600.0
    new_keys: int = 1
    methods: frozenset[str] = UNSAFE_METHODS
    header: str = "Idempotency-Key"
    max_body: int = 1 << 20
    max_answer: int = 1 << 20
    streams: Streams = "refuse"

    def __post_init__(self) -> None:
        for name in ("deadline", "base", "cap", "max_retry_after", "key_life"):
            object.__setattr__(self, name, _check_seconds(name, getattr(self, name)))
        for name, least in (("attempts", 1), ("new_keys", 0), ("max_body", 0), ("max_answer", 0)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise RetriesError(name, value, f"give a whole number, {least} or more")
        if self.streams not in get_args(Streams):
            raise RetriesError("streams", self.streams, "choose 'refuse' or 'once'")
        object.__setattr__(self, "methods", frozenset(method.upper() for method in self.methods))

    def is_keyed(self, method: str) -> bool:
        return method.upper() in self.methods


def _check_seconds(name: str, value: object) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if (
        isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0
    ):  # not `<`: this way NaN is refused too
        raise RetriesError(name, value, "give seconds or a timedelta, zero or more")
    return float(value)


def _generate_token() -> str:
    return secrets.token_hex(24)


@dataclass(frozen=True, slots=True, kw_only=True)
class Clock:
    """Clocks, sleeping and randomness. Tests pass their own and never sleep.

    `wall` is the time of day and `clock` a monotonic clock, in seconds. `draw` returns a random number below 1, `token`
    a new key. `asleep` sleeps on the event loop; None means the event loop's own sleep.
    """

    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep
    asleep: Callable[[float], Awaitable[None]] | None = None
    draw: Callable[[], float] = random.random
    token: Callable[[], str] = _generate_token


SYSTEM_CLOCK = Clock()
