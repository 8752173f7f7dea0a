"""Conversion between a Record and a row. Every statement uses the column order of COLUMNS."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from retrysafe.core.ops import Claim
from retrysafe.core.records import Answer, Fingerprint, Headers, Record, pack_tokens, read_past_tokens
from retrysafe.core.states import STATES
from retrysafe.errors import CorruptRecord

COLUMNS = (
    "id", "namespace", "kind", "scope", "key", "target", "fingerprint", "state", "attempt", "token", "run",
    "lease_until", "on_lapse", "point", "progress", "input", "status", "headers", "body", "gone", "note",
    "created", "started", "completed", "expires", "retention", "advances", "ended",
)  # fmt: skip

_encode_text = json.encoder.encode_basestring_ascii

ON_LAPSE = frozenset({"resume", "uncertain", "rerun"})

MAX_REMEMBERED_HEADERS = 512
MAX_REMEMBERED_CHARS = 1_024
"""Longer headers are read anew each time: clients may have a part in their length."""


def read_record(row: Sequence[Any], expected: Fingerprint | None = None) -> Record:
    """Read a record. Raises CorruptRecord if a column has an impossible value: no value is guessed. `expected` is the
    fingerprint that the record probably has: comparing texts costs half as much as reading one."""
    (
        record_id, namespace, kind, scope, key, target, fingerprint, state, attempt, token, run,
        lease_until, on_lapse, point, progress, input_, status, headers, body, gone, note,
        created, started, completed, expires, retention, advances, ended,
    ) = row  # fmt: skip
    try:
        if on_lapse not in ON_LAPSE:
            raise ValueError(f"on_lapse is {on_lapse!r}")
        # Some drivers return another type, and a conversion costs something also where there is nothing to convert.
        if not (type(token) is type(run) is type(progress) is type(input_) is type(ended) is type(record_id) is bytes):
            record_id, token, run = bytes(record_id), bytes(token), bytes(run)
            progress, input_, ended = bytes(progress), bytes(input_), bytes(ended)
        answer = None if status is None else Answer.from_parts(status, bytes(body), read_headers(headers), gone)
        # From one tuple, which nobody counts: two dozen arguments cost four times as much.
        return tuple.__new__(Record, (
            record_id, namespace, kind, scope, key, target,
            expected if expected is not None and fingerprint == str(expected) else Fingerprint.parse(fingerprint),
            STATES[state], attempt, token, run, lease_until, on_lapse, point, progress, input_, answer, note,
            created, started, completed, expires, retention, advances, read_past_tokens(ended, token),
        ))  # fmt: skip
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise CorruptRecord(bytes(record_id), f"{type(error).__name__}: {error}") from error


def read_headers(text: str) -> Headers:
    if not text:
        return ()
    can_be_remembered = isinstance(text, str) and len(text) <= MAX_REMEMBERED_CHARS
    return _parse_headers_cached(text) if can_be_remembered else _parse_headers(text)


def _parse_headers(text: str) -> Headers:
    return tuple([(name, value) for name, value in json.loads(text)])


_parse_headers_cached = lru_cache(MAX_REMEMBERED_HEADERS)(_parse_headers)  # most answers have the same few headers


def write_headers(answer: Answer) -> str:
    """A JSON array of pairs. It is joined here, because json creates an encoder for each call."""
    if not answer.headers:
        return ""
    return "[" + ",".join([f"[{_encode_text(name)},{_encode_text(value)}]" for name, value in answer.headers]) + "]"


def claim_values(op: Claim) -> dict[str, Any]:
    return {
        "id": op.id,
        "namespace": op.namespace,
        "kind": op.kind,
        "scope": op.scope,
        "key": op.key,
        "target": op.target,
        "fingerprint": str(op.fingerprint),
        "token": op.token,
        "tokens": pack_tokens((op.token,)),
        "run": op.run,
        "lease": op.lease,
        "retention": op.retention,
        "on_lapse": op.on_lapse,
        "input": op.input,
        "now": op.now,
    }


def takeover_values(found: Record, op: Claim) -> dict[str, Any]:
    """Values of a claim that replaces the record that was read. The statement compares attempt and token with it."""
    return {
        "seen_attempt": found.attempt,
        "seen_token": found.token,
        "tokens": pack_tokens((op.token, *found.ended_with_this)),
    }


def answer_values(answer: Answer | None) -> dict[str, Any]:
    if answer is None:
        return {"status": None, "headers": "", "body": b"", "gone": ""}
    return {
        "status": answer.status,
        "headers": write_headers(answer),
        "body": answer.body,
        "gone": answer.gone,
    }
