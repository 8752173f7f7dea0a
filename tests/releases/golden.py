"""The golden records: every kind in every state, as operations that any release can carry out, and what each must mean.

Nothing in them is drawn or read from a clock: tokens are digests of names, and the moment is the first of January
2100, so that no server sweeps them away. What a release makes of these operations is its stored form.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

SECOND = 1_000_000
HOUR = 3600 * SECOND
DAY = 24 * HOUR
BEGAN = 4_102_444_800 * SECOND
NOW = BEGAN + 10 * SECOND
"""When the other release looks at them."""
NAMESPACE = "golden"

KINDS = ("http", "function", "operation", "webhook", "job", "message", "tool")
POINT = "charge"
PROGRESS = b'{"v":1,"entries":[["charge","done","[]","\\"ch_1\\"",1,"",0]],"undoing":null,"cause":"","at":1}'
INPUT = '{"order":{"item":"Bücher","cents":500}}'.encode()
ANSWER = {
    "status": 201,
    "body": b"\x00\xff" + "Grüße".encode(),
    "headers": [["content-type", "text/plain"], ["x-note", "a, b"], ["X-Note", "é"]],
    "gone": "",
}
OTHER_ANSWER = {"status": 200, "body": b"the other release", "headers": [], "gone": ""}

Op = dict[str, Any]


def digest(*words: str) -> bytes:
    return hashlib.sha256("\n".join(words).encode()).digest()


def fingerprint(body: str) -> str:
    return f"golden1:{len(body)}:{digest(body).hex()}"


def record_id(kind: str, scope: str, key: str) -> bytes:
    """Written down once more, so that a change of the form is seen."""
    return hashlib.sha256(framed([part.encode() for part in ("1", kind, NAMESPACE, scope, key)])).digest()


def derived(run: bytes, step: str, place: int, *, undo: bool = False) -> str:
    """The key of a step at somebody else's system, written down once more like the id."""
    parts = [b"derive", run, b"", step.encode(), b"undo" if undo else b"do", str(place).encode()]
    return hashlib.sha256(framed(parts)).hexdigest()[:48]


def framed(parts: list[bytes]) -> bytes:
    """Every part behind its length."""
    return b"".join(struct.pack(">I", len(part)) + part for part in parts)


@dataclass(frozen=True)
class Golden:
    """One record: how it came about, and what a claim with the same fingerprint is told."""

    kind: str
    state: str
    outcome: str
    sealed: bool = False

    @property
    def key(self) -> str:
        return f"{'sealed ' if self.sealed else ''}{self.state} «{self.kind}»"

    @property
    def id(self) -> bytes:
        return record_id(self.kind, "tenant-1", self.key)

    @property
    def run(self) -> bytes:
        return digest("run", self.key)[:16]

    def fence(self, attempt: int = 1) -> list[Any]:
        return [attempt, digest("token", self.key, str(attempt))[:16]]

    def claim(self, attempt: int = 1, *, body: str = "one", **given: Any) -> Op:
        fields = {
            "id": self.id, "namespace": NAMESPACE, "kind": self.kind, "scope": "tenant-1", "key": self.key,
            "target": f"golden {self.kind}", "fingerprint": fingerprint(body), "token": self.fence(attempt)[1],
            "run": self.run if attempt == 1 else digest("run", self.key, str(attempt))[:16], "lease": HOUR,
            "retention": DAY, "on_lapse": "uncertain", "input": INPUT if self.kind == "operation" else b"",
            "now": BEGAN,
        }  # fmt: skip
        return {"op": "Claim", **fields, **given}

    def move(self, op: str, attempt: int = 1, **given: Any) -> Op:
        return {"op": op, "id": self.id, "fence": self.fence(attempt), "now": BEGAN + SECOND, **given}

    def advance(self, **given: Any) -> Op:
        fields = {"number": 1, "point": POINT, "progress": PROGRESS, "on_lapse": "resume", "lease": HOUR, **given}
        return self.move("Advance", **fields)

    def complete(self, attempt: int = 1, **given: Any) -> Op:
        return self.move("Complete", attempt, answer={**ANSWER, **given})

    def ops(self) -> list[Op]:
        return STATES[self.state][0](self)


LONG_AGO = BEGAN - 2 * DAY


def expired(g: Golden, end: str, **given: Any) -> list[Op]:
    claim = g.claim(now=LONG_AGO, retention=HOUR)
    return [claim, g.move(end, now=LONG_AGO + SECOND, **given)]


def tombstone(gone: str) -> Callable[[Golden], list[Op]]:
    return lambda g: [g.claim(), g.complete(body=b"", headers=[], gone=gone)]


STATES: dict[str, tuple[Callable[[Golden], list[Op]], str]] = {
    "live": (lambda g: [g.claim()], "Busy"),
    "live, renewed": (lambda g: [g.claim(lease=SECOND), g.move("Renew", lease=HOUR)], "Busy"),
    "live at a point": (lambda g: [g.claim(), g.advance()], "Busy"),
    "lapsed, resume": (lambda g: [g.claim(lease=SECOND, on_lapse="resume")], "Execute"),
    "lapsed, rerun": (lambda g: [g.claim(lease=SECOND, on_lapse="rerun")], "Execute"),
    "lapsed, uncertain": (lambda g: [g.claim(lease=SECOND)], "Uncertain"),
    "lapsed at a point": (lambda g: [g.claim(), g.advance(lease=SECOND)], "Execute"),
    "lapsed in an intent": (lambda g: [g.claim(), g.advance(lease=SECOND, on_lapse="uncertain")], "Uncertain"),
    "released": (lambda g: [g.claim(), g.move("Release", note="it failed")], "Execute"),
    "released at a point": (lambda g: [g.claim(), g.advance(), g.move("Release", note="stopped")], "Execute"),
    "released and expired": (lambda g: expired(g, "Release", note=""), "Rebirth"),
    "completed": (lambda g: [g.claim(), g.complete()], "Replay"),
    "completed, second attempt": (
        lambda g: [g.claim(), g.move("Release", note="again"), g.claim(2), g.complete(2)],
        "Replay",
    ),
    "completed and expired": (lambda g: expired(g, "Complete", answer=ANSWER), "Rebirth"),
    "expired, to be reaped": (lambda g: expired(g, "Complete", answer=ANSWER), "Reap"),
    "uncertain": (lambda g: [g.claim(), g.move("Suspect", note="who knows", lapsed_only=False)], "Uncertain"),
    "resolved": (
        lambda g: [
            g.claim(),
            g.move("Suspect", note="who knows", lapsed_only=False),
            g.move("Resolve", answer=ANSWER, note="asked the provider"),
        ],
        "Replay",
    ),
    "forgotten": (lambda g: [g.claim(), g.complete(), g.move("Forget")], "Replay"),
    "too large": (tombstone("too_large"), "Replay"),
    "a stream": (tombstone("stream"), "Replay"),
    "unstorable": (tombstone("unstorable"), "Replay"),
}

SEALED = (
    *("live at a point", "lapsed at a point", "released at a point", "completed", "resolved", "forgotten", "too large"),
)
"""States in which something of the user's is stored."""

EVERY = [Golden(kind, state, outcome) for state, (_, outcome) in STATES.items() for kind in KINDS]
SEALED_ONES = [Golden(kind, state, STATES[state][1], sealed=True) for state in SEALED for kind in ("http", "operation")]
ROTATED = [
    Golden(KINDS[place % len(KINDS)], state, outcome) for place, (state, (_, outcome)) in enumerate(STATES.items())
]
"""Each state once, the kinds in turn: what is kept as data, and what the other direction goes through."""

JOBS = [
    ["a" * 32, "receipts", b'{"order":1}', "order-1"],
    ["b" * 32, "receipts", b'{"order":2}', "order-1"],
    ["c" * 32, "mails", b"\x00\xff", ""],
]


def stage() -> Op:
    return {"op": "Stage", "jobs": JOBS, "now": BEGAN}


def planted(records: list[Golden]) -> list[Op]:
    return [op for record in records for op in record.ops()]
