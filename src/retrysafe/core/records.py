"""The record, which is what a store keeps of a key, and its parts: fence, fingerprint, answer, and the tokens of past
attempts in their packed form.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, NamedTuple

from retrysafe.core.states import OnLapse, State

Kind = Literal["http", "function", "operation", "webhook", "job", "message", "tool"]
"""Where a key comes from. The same scope and key under two kinds are two records."""

Gone = Literal["", "too_large", "stream", "unstorable", "forgotten"]
"""Why a completed record has no answer to show; empty when it has one."""

Headers = tuple[tuple[str, str], ...]

CLOSED = 2**31 - 1
"""Stored instead of the number of advances when the owner has given up: its advances and renewals no longer count."""

MAX_ENDED_TOKENS = 8
"""How many ended tokens a record keeps. A copy of a claim that arrives after more attempts than that is not
recognised."""


_CLAIMED = State.CLAIMED
"""Before Python 3.12 an enum's member costs several times as much as a variable."""


class Fence(NamedTuple):
    """The fencing token of a grant: the attempt's number, and the random token of its claim."""

    attempt: int
    token: bytes


class Fingerprint(NamedTuple):
    """A hash of a request. All three parts are compared, so two algorithms never agree by chance."""

    algorithm: str
    """How the digest was made; for a keyed one with `+` and the name of the key: `json1+2026-11`."""
    digest: bytes
    length: int

    @property
    def key(self) -> str:
        """The name of the key it was made with, as it is written; empty if it was made without a key."""
        return self.algorithm.partition("+")[2]

    def __str__(self) -> str:
        return f"{self.algorithm}:{self.length}:{self.digest.hex()}"

    @classmethod
    def parse(cls, text: str) -> Fingerprint:
        algorithm, length, digest = text.split(":")
        return tuple.__new__(cls, (algorithm, bytes.fromhex(digest), int(length)))


@dataclass(frozen=True, slots=True, init=False)
class Answer:
    """The stored response: the first caller gets it, and every later one gets the same bytes.

    `Answer(201, {"order": 7})` stores JSON; bytes are stored unchanged. `gone` marks a tombstone: the
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
        # List and tuple first: asking an abstract class costs as much as all the rest.
        if not isinstance(headers, list | tuple) and isinstance(headers, Mapping):
            headers = headers.items()
        pairs = tuple([(n, v) for n, v in headers])
        if not isinstance(body, bytes):
            body = json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode()
            if not any(name.lower() == "content-type" for name, _ in pairs):
                pairs = (*pairs, ("content-type", "application/json"))
        put = object.__setattr__
        put(self, "status", status)
        put(self, "body", body)
        put(self, "headers", pairs)
        put(self, "gone", gone)

    @classmethod
    def from_parts(cls, status: int, body: bytes, headers: Headers, gone: Gone = "") -> Answer:
        """An answer whose parts have their stored form already: every request makes one. The constructor reads other
        forms, too, and frozen fields are slow to set."""
        draft: Any = _Draft()  # its fields are not frozen yet
        draft.status = status
        draft.body = body
        draft.headers = headers
        draft.gone = gone
        draft.__class__ = cls
        return draft  # type: ignore[no-any-return]

    def json(self) -> Any:
        return json.loads(self.body)


class _Draft:
    """An answer before its fields are frozen: the same slots."""

    __slots__ = tuple(field.name for field in fields(Answer))


class Record(NamedTuple):
    """One life of one key. Field order is column order in every SQL store (see stores/sql/rows.py)."""

    id: bytes
    namespace: str
    kind: str
    scope: str
    key: str
    target: str
    """What the key is for: `POST /payments`, or an operation's name and version."""
    fingerprint: Fingerprint
    state: State
    attempt: int
    token: bytes
    run: bytes
    """The id of this life, drawn when it began and kept over its attempts. Keys for other services are derived from
    it."""
    lease_until: int
    on_lapse: OnLapse
    point: str
    progress: bytes
    input: bytes
    answer: Answer | None
    note: str
    """A text for people: why the record is uncertain, who resolved it."""
    created: int
    started: int
    completed: int
    """When the record was settled; 0 while it is open."""
    expires: int
    retention: int
    advances: int = 0
    """How many recovery points this attempt has committed; CLOSED once its owner has given up."""
    ended: tuple[bytes, ...] = ()
    """The tokens of earlier attempts, newest first. None of them is granted again."""

    @property
    def fence(self) -> Fence:
        return Fence(self.attempt, self.token)

    @property
    def ended_with_this(self) -> tuple[bytes, ...]:
        """The value of `ended` for the next attempt."""
        return (self.token, *self.ended)[:MAX_ENDED_TOKENS]

    def expired(self, now: int) -> bool:
        """Whether `expires` has passed. Open records have FOREVER_MICROS there, so they never expire."""
        return self.expires <= now

    def lapsed(self, now: int) -> bool:
        return self.state is _CLAIMED and self.lease_until <= now


# The tokens of past attempts, as one value in a row -----------------------------------------------
#
# Each token follows its length in one byte. A claim writes its own token together with those of the attempts before it.
# So the token is still there when a process of the release before, which does not know the list, takes the record over.


def pack_tokens(tokens: Iterable[bytes]) -> bytes:
    return b"".join([b"%c%b" % (len(token), token) for token in tokens])


def unpack_tokens(data: bytes) -> tuple[bytes, ...]:
    """Raises ValueError for bytes that `pack_tokens` did not make."""
    tokens, start = [], 0
    while start < len(data):
        end = start + 1 + data[start]
        if end > len(data):
            raise ValueError("its ended tokens are cut off")
        tokens.append(data[start + 1 : end])
        start = end
    return tuple(tokens)


def read_past_tokens(data: bytes, token: bytes) -> tuple[bytes, ...]:
    """The packed tokens without that of the present attempt, `token`. Nearly always there is no other."""
    if len(data) == 1 + len(token) and data[0] == len(token) and data[1:] == token:
        return ()
    return past_tokens(unpack_tokens(data), token)


def past_tokens(noted: Iterable[bytes], token: bytes) -> tuple[bytes, ...]:
    """The stored tokens without that of the present attempt, `token`."""
    return tuple([each for each in noted if each != token])[:MAX_ENDED_TOKENS]
