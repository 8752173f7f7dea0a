"""What is kept of a key: the record, its fence, its fingerprint and its answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from retrysafe.core.states import OnLapse, State

Kind = Literal["http", "function", "operation", "webhook", "job", "message", "tool"]
"""Keeps HTTP tenants, functions, webhooks … apart: the same scope and key under two kinds are two records."""

Gone = Literal["", "too_large", "stream", "unstorable", "forgotten"]
"""Why a completed record has no answer to show; empty when it has one."""

Headers = tuple[tuple[str, str], ...]

CLOSED = 2**31 - 1
"""In the place of a number of advances: the owner gave up. Neither an advance nor a renewal of it counts any more."""

MAX_ENDED_TOKENS = 8
"""How many ended tokens a record keeps. A copy of a claim that arrives after more attempts than that is a stranger."""


class Fence(NamedTuple):
    """The right to write: which attempt, and the random token its claim was made with."""

    attempt: int
    token: bytes


class Fingerprint(NamedTuple):
    """What a request was, boiled down. All three parts are compared, so two algorithms never agree by chance."""

    algorithm: str
    """How it was made; where it is keyed, `+` and the name of the key behind it: `json1+2026-11`."""
    digest: bytes
    length: int

    @property
    def key(self) -> str:
        """The name of the key it was made with, as it is written; empty where there is none."""
        return self.algorithm.partition("+")[2]

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.length}:{self.digest.hex()}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        algorithm, length, digest = text.split(":")
        return cls(algorithm, bytes.fromhex(digest), int(length))


@dataclass(frozen=True, slots=True, init=False)
class Answer:
    """What the first caller was told and every later one is told again, byte for byte.

    `Answer(201, {"order": 7})` stores JSON; bytes are stored as they are. `gone` marks a tombstone: the
    work was done, but its answer could not or must not be kept.
    """

    status: int
    body: bytes
    headers: Headers
    gone: Gone

    def __init__(
        self,
        status: int = 200,
        body: Any = b"",
        headers: Mapping[str, str] | Iterable[tuple[str, str]] = (),
        gone: Gone = "",
    ) -> None:
        pairs = tuple(headers.items()) if isinstance(headers, Mapping) else tuple([(n, v) for n, v in headers])
        if not isinstance(body, bytes):
            body = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            if not any(name.lower() == "content-type" for name, _ in pairs):
                pairs = (*pairs, ("content-type", "application/json"))
        put = object.__setattr__
        put(self, "status", status)
        put(self, "body", body)
        put(self, "headers", pairs)
        put(self, "gone", gone)

    def json(self) -> Any:
        return json.loads(self.body)


class Record(NamedTuple):
    """One life of one key. Field order is column order in every SQL store (see stores/sql/rows.py)."""

    id: bytes
    namespace: str
    kind: str
    scope: str
    key: str
    target: str
    """What it is for: `POST /payments`, or an operation's name and version."""
    fingerprint: Fingerprint
    state: State
    attempt: int
    token: bytes
    run: bytes
    """Minted when this life began, kept over its attempts: downstream keys derive from it."""
    lease_until: int
    on_lapse: OnLapse
    point: str
    progress: bytes
    input: bytes
    answer: Answer | None
    note: str
    """For people: why it is uncertain, who resolved it."""
    created: int
    started: int
    completed: int
    """When it was settled; 0 while it is open."""
    expires: int
    retention: int
    advances: int = 0
    """How many recovery points this attempt has committed; CLOSED once its owner said that it gives up."""
    ended: tuple[bytes, ...] = ()
    """The tokens of attempts that ended before this one, newest first: none of them is granted again."""

    @property
    def fence(self) -> Fence:
        return Fence(self.attempt, self.token)

    @property
    def ended_with_this(self) -> tuple[bytes, ...]:
        """What `ended` becomes when the next attempt begins."""
        return (self.token, *self.ended)[:MAX_ENDED_TOKENS]

    def expired(self, now: int) -> bool:
        """By comparison, never by presence. Open records carry FOREVER here, so they never are."""
        return self.expires <= now

    def lapsed(self, now: int) -> bool:
        return self.state is State.CLAIMED and self.lease_until <= now
