"""Short functions that build operations, so that tests are easy to read.

Times are seconds here and microseconds in the operation. `now` is 0 by default; `now=None` means the store's own clock.
The owner of a key is the reply to its claim, the reply to a lookup, or the record:

    slow = do(claim("k", lease=30, on_lapse="rerun", now=0))
    fast = do(claim("k", lease=30, on_lapse="rerun", now=31))
    assert do(complete(slow, b"stale", now=32)) is False
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from typing import Any

from retrysafe.core.fingerprint import fingerprint_body
from retrysafe.core.keys import record_id
from retrysafe.core.ops import (
    Advance,
    Claim,
    ClaimReply,
    Complete,
    Forget,
    List,
    Lookup,
    LookupReply,
    Reap,
    Release,
    Renew,
    Resolve,
    Stats,
    Suspect,
    Withdraw,
)
from retrysafe.core.records import CLOSED, Answer, Fingerprint, Gone, Kind, Record
from retrysafe.core.states import OnLapse, State
from retrysafe.core.times import duration_to_micros

TICK = 1e-6
"""One microsecond in seconds, the smallest step of time. Sums of seconds stay exact for a few thousand years."""

DAY = 86_400.0
NAMESPACE = "default"
SCOPE = "t1"

KeyHolder = ClaimReply | LookupReply | Record


def record_of(owner: KeyHolder) -> Record:
    """The record of an owner."""
    record = owner if isinstance(owner, Record) else owner.record
    assert record is not None, f"{owner} has no record"
    return record


def to_micros(now: float | None) -> int | None:
    return None if now is None else duration_to_micros(now)


def fingerprint(body: bytes) -> Fingerprint:
    return fingerprint_body("application/octet-stream", [body])


def claim(
    key: str = "k",
    *,
    lease: float = 30,
    retention: float = DAY,
    on_lapse: OnLapse = "uncertain",
    body: bytes = b"{}",
    fingerprint: Fingerprint | None = None,
    scope: str = SCOPE,
    kind: Kind = "http",
    namespace: str = NAMESPACE,
    target: str = "POST /things",
    token: bytes | None = None,
    run: bytes | None = None,
    input: bytes = b"",
    now: float | None = 0,
    resumes: bytes = b"",
) -> Claim:
    """Claim a key. Token and run are random unless given."""
    return Claim(
        id=record_id(kind, namespace, scope, key),
        namespace=namespace,
        kind=kind,
        scope=scope,
        key=key,
        target=target,
        fingerprint=fingerprint or fingerprint_body("application/octet-stream", [body]),
        token=secrets.token_bytes(16) if token is None else token,
        run=secrets.token_bytes(16) if run is None else run,
        lease=duration_to_micros(lease),
        retention=duration_to_micros(retention),
        on_lapse=on_lapse,
        input=input,
        now=to_micros(now),
        resumes=resumes,
    )


def renew(owner: KeyHolder, *, lease: float = 30, now: float | None = 0) -> Renew:
    record = record_of(owner)
    return Renew(record.id, record.fence, duration_to_micros(lease), to_micros(now))


def advance(
    owner: KeyHolder,
    point: str = "charged",
    progress: bytes = b"progress",
    *,
    on_lapse: OnLapse = "resume",
    lease: float = 30,
    now: float | None = 0,
    number: int | None = None,
) -> Advance:
    """The advance that follows those in the record. Give `number` if the record is not up to date."""
    record = record_of(owner)
    next_number = min(record.advances + 1, CLOSED) if number is None else number
    return Advance(
        record.id, record.fence, next_number, point, progress, on_lapse, duration_to_micros(lease), to_micros(now)
    )


def answer(
    body: Any = b"done",
    *,
    status: int = 201,
    headers: Mapping[str, str] | Iterable[tuple[str, str]] = (("content-type", "text/plain"),),
    gone: Gone = "",
) -> Answer:
    return Answer(status, body, headers, gone)


def complete(owner: KeyHolder, body: Answer | Any = b"done", *, now: float | None = 0) -> Complete:
    """Settle with an answer: an `Answer`, or only its body."""
    record = record_of(owner)
    return Complete(record.id, record.fence, body if isinstance(body, Answer) else answer(body), to_micros(now))


def release(owner: KeyHolder, note: str = "", *, now: float | None = 0) -> Release:
    record = record_of(owner)
    return Release(record.id, record.fence, note, to_micros(now))


def withdraw(owner: KeyHolder, note: str = "", *, now: float | None = 0) -> Withdraw:
    record = record_of(owner)
    return Withdraw(record.id, record.fence, note, to_micros(now))


def suspect(owner: KeyHolder, note: str = "who knows", *, lapsed_only: bool = False, now: float | None = 0) -> Suspect:
    record = record_of(owner)
    return Suspect(record.id, record.fence, note, lapsed_only, to_micros(now))


def resolve(
    owner: KeyHolder, body: Answer | bytes | None, note: str = "asked the provider", *, now: float | None = 0
) -> Resolve:
    """Resolve an uncertain key: it happened, with this answer; or, with None, it did not happen."""
    record = record_of(owner)
    resolved = answer(body) if isinstance(body, bytes) else body
    return Resolve(record.id, record.fence, resolved, note, to_micros(now))


def forget(owner: KeyHolder, *, now: float | None = 0) -> Forget:
    record = record_of(owner)
    return Forget(record.id, record.fence, to_micros(now))


def lookup(owner: KeyHolder | str | Claim, *, now: float | None = 0) -> Lookup:
    """Look up a key by its name in the default scope, by its claim, or by its owner."""
    if isinstance(owner, str):
        return Lookup(record_id("http", NAMESPACE, SCOPE, owner), to_micros(now))
    return Lookup(owner.id if isinstance(owner, Claim) else record_of(owner).id, to_micros(now))


def reap(limit: int = 1000, *, namespace: str | None = None, now: float | None = 0) -> Reap:
    return Reap(limit, to_micros(now), namespace)


def listing(
    *,
    namespace: str | None = None,
    state: State | None = None,
    kind: str | None = None,
    scope: str | None = None,
    lapsed: bool = False,
    cursor: str = "",
    limit: int = 100,
    now: float | None = 0,
    resting: bool = False,
    examine: int = 0,
) -> List:
    return List(namespace, state, kind, scope, lapsed, cursor, limit, to_micros(now), resting, examine)


def stats(*, namespace: str | None = None, now: float | None = 0) -> Stats:
    return Stats(to_micros(now), namespace)
