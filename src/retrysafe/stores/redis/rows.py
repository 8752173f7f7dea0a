"""A record as Redis holds it: bytes in a hash, and back.

Text is UTF-8 (lone surrogates included: an error message may quote anything), numbers are decimal digits,
bytes are bytes. A record without an answer has no `status` field.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import cast, get_args

from retrysafe.core.ops import Claim
from retrysafe.core.records import Answer, Fingerprint, Gone, Record
from retrysafe.core.states import STATES, OnLapse
from retrysafe.errors import CorruptRecord
from retrysafe.stores.redis.layout import FIELDS

_ON_LAPSE = frozenset(get_args(OnLapse))
_GONE = frozenset(get_args(Gone))
_written = json.JSONEncoder(separators=(",", ":")).encode  # made once: json.dumps would make one for each answer


def text(value: str) -> bytes:
    return value.encode("utf-8", "surrogatepass")


def number(value: int) -> bytes:
    return b"%d" % value


def newborn(op: Claim) -> tuple[bytes, ...]:
    """What only a newborn record takes from a claim, in the order claim.lua reads it."""
    named = (op.namespace, op.kind, op.scope, op.key, op.target)
    return (number(op.retention), *map(text, named), op.run, op.input)


def answer_parts(answer: Answer) -> tuple[bytes, bytes, bytes, bytes]:
    """Status, headers, body, gone: equal bytes exactly when the answers are equal."""
    headers = _written(answer.headers).encode()
    return number(answer.status), headers, answer.body, answer.gone.encode()


def record(record_id: bytes, values: Sequence[bytes | None]) -> Record:
    """Read a record's values, given in the order of FIELDS."""
    try:
        return _record(record_id, dict(zip(FIELDS, values, strict=True)))
    except (ValueError, KeyError, TypeError) as error:
        raise CorruptRecord(record_id, f"{type(error).__name__}: {error}") from error


def _record(record_id: bytes, row: dict[str, bytes | None]) -> Record:
    def raw(field: str) -> bytes:
        value = row[field]
        if value is None:
            raise ValueError(f"the field {field!r} is missing")
        return value

    def words(field: str) -> str:
        return str(raw(field), "utf-8", "surrogatepass")

    return Record(
        id=record_id,
        namespace=words("namespace"),
        kind=words("kind"),
        scope=words("scope"),
        key=words("key"),
        target=words("target"),
        fingerprint=Fingerprint.parse(words("fingerprint")),
        state=STATES[words("state")],
        attempt=int(raw("attempt")),
        token=raw("token"),
        run=raw("run"),
        lease_until=int(raw("lease_until")),
        on_lapse=_on_lapse(words("on_lapse")),
        point=words("point"),
        progress=raw("progress"),
        input=raw("input"),
        answer=None if row["status"] is None else _answer(raw("status"), raw("headers"), raw("body"), words("gone")),
        note=words("note"),
        created=int(raw("created")),
        started=int(raw("started")),
        completed=int(raw("completed")),
        expires=int(raw("expires")),
        retention=int(raw("retention")),
    )


def _answer(status: bytes, headers: bytes, body: bytes, gone: str) -> Answer:
    if gone not in _GONE:
        raise ValueError(f"gone is {gone!r}")
    pairs = [(str(name), str(value)) for name, value in json.loads(headers)]
    return Answer(int(status), body, pairs, cast(Gone, gone))


def _on_lapse(value: str) -> OnLapse:
    if value not in _ON_LAPSE:
        raise ValueError(f"on_lapse is {value!r}")
    return cast(OnLapse, value)
