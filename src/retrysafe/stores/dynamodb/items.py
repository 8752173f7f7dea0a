"""A record as an item, and back. What is empty is left out: every byte of an item is paid for at each write.

Large values are deflated where that makes them smaller. An item may have 400 KB, and a write costs by the kilobyte.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.core.states import SETTLED, STATES, State
from retrysafe.core.times import FOREVER, HOUR, SECOND, later
from retrysafe.core.tokens import pack_tokens, unpack_tokens
from retrysafe.errors import CorruptRecord, StoreError

Item = dict[str, dict[str, Any]]
"""Attribute name → typed value, as the wire has it: `{"attempt": {"N": "1"}}`."""

Fields = dict[str, dict[str, Any] | None]
"""What an update sets; None removes."""

SHARDS = 4
"""The index by state is spread over so many partitions for each state: one takes about 1,000 writes a second. Fixed: a
reader that looked into fewer than the writers use would not see everything."""

LIMIT = 400 * 1024
"""What DynamoDB takes as one item, names included."""

SMALL = 512
"""Below this, deflating gains nothing worth a header."""

RAW, DEFLATED = b"\x00", b"\x01"

TEXTS = {"namespace": "ns", "kind": "kind", "scope": "scope", "key": "key", "target": "target"}
TIMES = {"created": "created", "started": "started", "completed": "completed", "expires": "expires"}


def number(value: int) -> dict[str, Any]:
    return {"N": str(value)}


def text(value: str) -> dict[str, Any] | None:
    return {"S": value} if value else None


def raw(value: bytes) -> dict[str, Any]:
    return {"B": value}


def packed(value: bytes) -> dict[str, Any] | None:
    """Bytes of any size; None if there are none."""
    if not value:
        return None
    small = zlib.compress(value, 6) if len(value) > SMALL else value
    return raw(DEFLATED + small if len(small) < len(value) else RAW + value)


def unpacked(value: bytes) -> bytes:
    kind, data = value[:1], value[1:]
    if kind == DEFLATED:
        return zlib.decompress(data)
    if kind != RAW:
        raise ValueError(f"a value is packed in a way this version does not know ({kind!r})")
    return data


def shelf(state: State, record_id: bytes) -> dict[str, Any]:
    """Which partition of the index a record is listed in."""
    return {"S": shelf_name(state, record_id[0] % SHARDS)}


def shelf_name(state: State, shard: int) -> str:
    return f"{state.value}.{shard}"


def ttl_of(expires: int) -> dict[str, Any]:
    """When DynamoDB may delete it, in seconds. An hour late on purpose: who judges by `expires` is never surprised."""
    return number(later(expires, HOUR) // SECOND)


def kept(record: Record) -> int:
    """Until when it is kept once it is settled, unless it is settled in its last hour."""
    return later(record.created, record.retention)


# Parts, as fields of an update ----------------------------------------------------------------------------------------


def state_fields(state: State, record_id: bytes) -> Fields:
    return {"state": {"S": state.value}, "shelf": shelf(state, record_id)}


def answer_fields(answer: Answer | None) -> Fields:
    if answer is None:
        return dict.fromkeys(("status", "headers", "body", "gone"))
    headers = packed(json.dumps(answer.headers, ensure_ascii=False).encode()) if answer.headers else None
    return {
        "status": number(answer.status),
        "headers": headers,
        "body": packed(answer.body),
        "gone": text(answer.gone),
    }


def present(fields: Fields) -> Item:
    return {name: value for name, value in fields.items() if value is not None}


# The whole record -----------------------------------------------------------------------------------------------------


def to_item(record: Record, revision: int) -> Item:
    settled = record.state in SETTLED and record.expires < FOREVER
    fields: Fields = {
        "id": raw(record.id),
        **{name: text(getattr(record, field)) for field, name in TEXTS.items()},
        "fp": text(str(record.fingerprint)),
        **state_fields(record.state, record.id),
        "attempt": number(record.attempt),
        "token": raw(record.token),
        "run": raw(record.run),
        "lease": number(record.lease_until),
        "on_lapse": text(record.on_lapse),
        "point": text(record.point),
        "progress": packed(record.progress),
        "input": packed(record.input),
        **answer_fields(record.answer),
        "note": text(record.note),
        **{name: number(getattr(record, field)) for field, name in TIMES.items()},
        "retention": number(record.retention),
        "advances": number(record.advances) if record.advances else None,
        "ended": raw(pack_tokens(record.ended)) if record.ended else None,
        "kept": number(kept(record)),
        "kept_ttl": ttl_of(kept(record)),
        "ttl": ttl_of(max(record.expires, record.completed)) if settled else None,
        "rev": number(revision),
    }
    return present(fields)


def from_item(item: Mapping[str, Mapping[str, Any]]) -> Record:
    record_id = _bytes(item, "id")
    texts: Any = {field: _text(item, name) for field, name in TEXTS.items()}
    try:
        times: Any = {field: _int(item, name) for field, name in TIMES.items()}
        return Record(
            id=record_id,
            **texts,
            fingerprint=Fingerprint.parse(_text(item, "fp")),
            state=STATES[_text(item, "state")],
            attempt=_int(item, "attempt"),
            token=_bytes(item, "token"),
            run=_bytes(item, "run"),
            lease_until=_int(item, "lease"),
            on_lapse=_text(item, "on_lapse"),  # type: ignore[arg-type]  # one of OnLapse: only we write it
            point=_text(item, "point"),
            progress=_packed(item, "progress"),
            input=_packed(item, "input"),
            answer=_answer(item),
            note=_text(item, "note"),
            **times,
            retention=_int(item, "retention"),
            advances=_int(item, "advances") if "advances" in item else 0,
            ended=unpack_tokens(_bytes(item, "ended")) if "ended" in item else (),
        )
    except (KeyError, ValueError, zlib.error) as error:
        raise CorruptRecord(record_id, f"its item is not one of ours: {type(error).__name__} {error}") from error


def revision_of(item: Mapping[str, Mapping[str, Any]]) -> int:
    return _int(item, "rev")


def _answer(item: Mapping[str, Mapping[str, Any]]) -> Answer | None:
    if "status" not in item:
        return None
    headers = json.loads(_packed(item, "headers") or b"[]")
    gone: Any = _text(item, "gone")
    return Answer(_int(item, "status"), _packed(item, "body"), [(name, value) for name, value in headers], gone)


def _text(item: Mapping[str, Mapping[str, Any]], name: str) -> str:
    found: str = item[name]["S"] if name in item else ""
    return found


def _int(item: Mapping[str, Mapping[str, Any]], name: str) -> int:
    return int(item[name]["N"])


def _bytes(item: Mapping[str, Mapping[str, Any]], name: str) -> bytes:
    return bytes(item[name]["B"])


def _packed(item: Mapping[str, Mapping[str, Any]], name: str) -> bytes:
    return unpacked(_bytes(item, name)) if name in item else b""


# Sizes ----------------------------------------------------------------------------------------------------------------


def size_of(item: Mapping[str, Mapping[str, Any] | None]) -> int:
    """At least what DynamoDB counts: names and values."""
    return sum(len(name.encode()) + _size(value) for name, value in item.items() if value is not None)


def _size(value: Mapping[str, Any]) -> int:
    ((kind, held),) = value.items()
    return len(held) if kind == "B" else len(held.encode())


def fitting(item: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Refuse what cannot be stored, before it is sent."""
    try:
        size = size_of(item)
    except UnicodeError as error:  # half a surrogate pair
        raise StoreError(f"a text of this operation cannot be stored in DynamoDB: {error}; nothing was done") from error
    if size > LIMIT:
        raise too_large(f"{size} bytes, even packed")


def too_large(how: str) -> StoreError:
    return StoreError(
        f"the record would be too large for DynamoDB ({how}; an item may have {LIMIT}); nothing was done: "
        "lower max_answer in the policy, so that a tombstone is stored instead; keep less as input; or make it "
        "an operation with fewer steps, or whose steps return less"
    )
