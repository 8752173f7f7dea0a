"""Conversion between a Record and a document. Fields have the names of the Record; `_id` is the id, 32 bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast, get_args

from retrysafe.core.records import Answer, Fingerprint, Gone, Record, past_tokens
from retrysafe.core.states import STATES
from retrysafe.errors import CorruptRecord

_ON_LAPSE = frozenset({"resume", "uncertain", "rerun"})
_GONE = frozenset(get_args(Gone))
_BYTES = ("token", "run", "progress", "input")
_NUMBERS = ("attempt", "lease_until", "created", "started", "completed", "expires", "retention")
_TEXTS = ("namespace", "kind", "scope", "key", "target", "point", "note", "on_lapse")

Document = dict[str, Any]


def write_record(record: Record) -> Document:
    fields: Document = {"_id": record.id, **record._asdict()}
    del fields["id"]
    fields["fingerprint"] = str(record.fingerprint)
    fields["state"] = record.state.value
    fields["answer"] = write_answer(record.answer)
    fields["ended"] = [record.token, *record.ended]
    return fields


def write_answer(answer: Answer | None) -> Document | None:
    if answer is None:
        return None
    headers = [list(pair) for pair in answer.headers]
    return {"status": answer.status, "headers": headers, "body": answer.body, "gone": answer.gone}


def read_record(found: Mapping[str, Any]) -> Record:
    """Read a record. Raises CorruptRecord if a field is missing or has the wrong type: no value is guessed."""
    try:
        return _read_fields(found)
    except (ValueError, KeyError, TypeError) as error:
        record_id = found.get("_id")
        shown = record_id if isinstance(record_id, bytes) else b""
        raise CorruptRecord(shown, f"{type(error).__name__}: {error}") from error


def _read_fields(found: Mapping[str, Any]) -> Record:
    for kind, fields in ((bytes, ("_id", *_BYTES)), (int, _NUMBERS), (str, _TEXTS)):
        for name in fields:
            if not isinstance(found[name], kind):
                raise TypeError(f"{name} is {found[name]!r}")
    if found["on_lapse"] not in _ON_LAPSE:
        raise ValueError(f"on_lapse is {found['on_lapse']!r}")
    return Record(
        found["_id"], found["namespace"], found["kind"], found["scope"], found["key"], found["target"],
        Fingerprint.parse(found["fingerprint"]), STATES[found["state"]], found["attempt"], found["token"],
        found["run"], found["lease_until"], found["on_lapse"], found["point"], found["progress"], found["input"],
        _read_answer(found["answer"]), found["note"], found["created"], found["started"], found["completed"],
        found["expires"], found["retention"], found.get("advances", 0),
        past_tokens(found.get("ended", ()), found["token"]),
    )  # fmt: skip


def _read_answer(found: Mapping[str, Any] | None) -> Answer | None:
    if found is None:
        return None
    gone, body = found["gone"], found["body"]
    if gone not in _GONE or not isinstance(body, bytes):
        raise ValueError(f"gone is {gone!r}, the body a {type(body).__name__}")
    return Answer(found["status"], body, [(name, value) for name, value in found["headers"]], cast(Gone, gone))
