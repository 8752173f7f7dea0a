"""Converts a record to a DynamoDB item, and back. Empty values are left out, because every byte costs at each write.

Large values are compressed (deflate) if that makes them smaller. An item may have 400 KB, and a write costs by the
kilobyte.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from typing import Any

from retrysafe.core.records import Answer, Fingerprint, Record, pack_tokens, unpack_tokens
from retrysafe.core.states import SETTLED, STATES, State
from retrysafe.core.times import FOREVER_MICROS, HOUR_MICROS, SECOND_MICROS, add_micros
from retrysafe.errors import CorruptRecord, StoreError

Item = dict[str, dict[str, Any]]
"""Attribute name → typed value, in the form of the API: `{"attempt": {"N": "1"}}`."""

Fields = dict[str, dict[str, Any] | None]
"""The attributes that an update sets. None removes an attribute."""

SHARD_COUNT = 4
"""The index by state has this many partitions for each state, because one partition takes about 1,000 writes a second.
The number is fixed: a reader that used fewer partitions than the writers would miss records."""

MAX_ITEM_BYTES = 400 * 1024
"""DynamoDB's limit for one item, attribute names included."""

MIN_DEFLATE_BYTES = 512
"""Smaller values are not compressed: it would gain nothing."""

RAW, DEFLATED = b"\x00", b"\x01"

TEXT_ATTRIBUTES = {"namespace": "ns", "kind": "kind", "scope": "scope", "key": "key", "target": "target"}
TIME_ATTRIBUTES = {"created": "created", "started": "started", "completed": "completed", "expires": "expires"}


def encode_number(value: int) -> dict[str, Any]:
    return {"N": str(value)}


def encode_text(value: str) -> dict[str, Any] | None:
    return {"S": value} if value else None


def encode_bytes(value: bytes) -> dict[str, Any]:
    return {"B": value}


def encode_packed(value: bytes) -> dict[str, Any] | None:
    """Encode bytes, compressed if that is smaller. None for empty bytes."""
    if not value:
        return None
    small = zlib.compress(value, 6) if len(value) > MIN_DEFLATE_BYTES else value
    return encode_bytes(DEFLATED + small if len(small) < len(value) else RAW + value)


def decode_packed(value: bytes) -> bytes:
    kind, data = value[:1], value[1:]
    if kind == DEFLATED:
        return zlib.decompress(data)
    if kind != RAW:
        raise ValueError(f"a value is packed in a way this version does not know ({kind!r})")
    return data


def encode_shelf(state: State, record_id: bytes) -> dict[str, Any]:
    """The `shelf` attribute: the partition of the index in which a record is listed."""
    return {"S": shelf_name(state, record_id[0] % SHARD_COUNT)}


def shelf_name(state: State, shard: int) -> str:
    return f"{state.value}.{shard}"


def ttl_of(expires: int) -> dict[str, Any]:
    """The time from which DynamoDB may delete an item, in seconds. It is an hour after `expires`, so that no record is
    deleted while a caller's clock still counts it as alive."""
    return encode_number(add_micros(expires, HOUR_MICROS) // SECOND_MICROS)


def retention_end(record: Record) -> int:
    """Until when a settled record is kept, unless it is settled within the last hour before this time."""
    return add_micros(record.created, record.retention)


# Parts, as fields of an update ----------------------------------------------------------------------------------------


def state_fields(state: State, record_id: bytes) -> Fields:
    return {"state": {"S": state.value}, "shelf": encode_shelf(state, record_id)}


def answer_fields(answer: Answer | None) -> Fields:
    if answer is None:
        return dict.fromkeys(("status", "headers", "body", "gone"))
    headers = encode_packed(json.dumps(answer.headers, ensure_ascii=False).encode()) if answer.headers else None
    return {
        "status": encode_number(answer.status),
        "headers": headers,
        "body": encode_packed(answer.body),
        "gone": encode_text(answer.gone),
    }


def drop_absent(fields: Fields) -> Item:
    return {name: value for name, value in fields.items() if value is not None}


# The whole record -----------------------------------------------------------------------------------------------------


def to_item(record: Record, revision: int) -> Item:
    settled = record.state in SETTLED and record.expires < FOREVER_MICROS
    fields: Fields = {
        "id": encode_bytes(record.id),
        **{name: encode_text(getattr(record, field)) for field, name in TEXT_ATTRIBUTES.items()},
        "fp": encode_text(str(record.fingerprint)),
        **state_fields(record.state, record.id),
        "attempt": encode_number(record.attempt),
        "token": encode_bytes(record.token),
        "run": encode_bytes(record.run),
        "lease": encode_number(record.lease_until),
        "on_lapse": encode_text(record.on_lapse),
        "point": encode_text(record.point),
        "progress": encode_packed(record.progress),
        "input": encode_packed(record.input),
        **answer_fields(record.answer),
        "note": encode_text(record.note),
        **{name: encode_number(getattr(record, field)) for field, name in TIME_ATTRIBUTES.items()},
        "retention": encode_number(record.retention),
        "advances": encode_number(record.advances) if record.advances else None,
        "ended": encode_bytes(pack_tokens(record.ended)) if record.ended else None,
        "kept": encode_number(retention_end(record)),
        "kept_ttl": ttl_of(retention_end(record)),
        "ttl": ttl_of(max(record.expires, record.completed)) if settled else None,
        "rev": encode_number(revision),
    }
    return drop_absent(fields)


def from_item(item: Mapping[str, Mapping[str, Any]]) -> Record:
    record_id = _read_bytes(item, "id")
    texts: Any = {field: _read_text(item, name) for field, name in TEXT_ATTRIBUTES.items()}
    try:
        times: Any = {field: _read_int(item, name) for field, name in TIME_ATTRIBUTES.items()}
        return Record(
            id=record_id,
            **texts,
            fingerprint=Fingerprint.parse(_read_text(item, "fp")),
            state=STATES[_read_text(item, "state")],
            attempt=_read_int(item, "attempt"),
            token=_read_bytes(item, "token"),
            run=_read_bytes(item, "run"),
            lease_until=_read_int(item, "lease"),
            on_lapse=_read_text(item, "on_lapse"),  # type: ignore[arg-type]  # one of OnLapse: only we write it
            point=_read_text(item, "point"),
            progress=_read_packed(item, "progress"),
            input=_read_packed(item, "input"),
            answer=_read_answer(item),
            note=_read_text(item, "note"),
            **times,
            retention=_read_int(item, "retention"),
            advances=_read_int(item, "advances") if "advances" in item else 0,
            ended=unpack_tokens(_read_bytes(item, "ended")) if "ended" in item else (),
        )
    except (KeyError, ValueError, zlib.error) as error:
        raise CorruptRecord(record_id, f"its item is not one of ours: {type(error).__name__} {error}") from error


def revision_of(item: Mapping[str, Mapping[str, Any]]) -> int:
    return _read_int(item, "rev")


def _read_answer(item: Mapping[str, Mapping[str, Any]]) -> Answer | None:
    if "status" not in item:
        return None
    headers = json.loads(_read_packed(item, "headers") or b"[]")
    gone: Any = _read_text(item, "gone")
    return Answer(
        _read_int(item, "status"), _read_packed(item, "body"), [(name, value) for name, value in headers], gone
    )


def _read_text(item: Mapping[str, Mapping[str, Any]], name: str) -> str:
    found: str = item[name]["S"] if name in item else ""
    return found


def _read_int(item: Mapping[str, Mapping[str, Any]], name: str) -> int:
    return int(item[name]["N"])


def _read_bytes(item: Mapping[str, Mapping[str, Any]], name: str) -> bytes:
    return bytes(item[name]["B"])


def _read_packed(item: Mapping[str, Mapping[str, Any]], name: str) -> bytes:
    return decode_packed(_read_bytes(item, name)) if name in item else b""


# Sizes ----------------------------------------------------------------------------------------------------------------


def size_of(item: Mapping[str, Mapping[str, Any] | None]) -> int:
    """The size in bytes as DynamoDB counts it: names and values."""
    return sum(len(name.encode()) + _value_bytes(value) for name, value in item.items() if value is not None)


def _value_bytes(value: Mapping[str, Any]) -> int:
    ((kind, content),) = value.items()
    return len(content) if kind == "B" else len(content.encode())


def check_size(item: Mapping[str, Mapping[str, Any] | None]) -> None:
    """Raise StoreError before sending what DynamoDB cannot store."""
    try:
        size = size_of(item)
    except UnicodeError as error:  # half a surrogate pair
        raise StoreError(f"a text of this operation cannot be stored in DynamoDB: {error}; nothing was done") from error
    if size > MAX_ITEM_BYTES:
        raise too_large_error(f"{size} bytes, even packed")


def too_large_error(how: str) -> StoreError:
    return StoreError(
        f"the record would be too large for DynamoDB ({how}; an item may have {MAX_ITEM_BYTES}); nothing was done: "
        "lower max_answer in the policy, so that a tombstone is stored instead; keep less as input; or make it "
        "an operation with fewer steps, or whose steps return less"
    )
