"""A record as JSON text and back, for stores and caches that keep text. Bytes are written as base64; nothing is
pickled.
"""

from __future__ import annotations

import base64
import json
from typing import Any

from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.core.states import State

BYTES_FIELDS = ("id", "token", "run", "progress", "input")


def dump_record(record: Record) -> str:
    fields: dict[str, Any] = record._asdict()
    for name in BYTES_FIELDS:
        fields[name] = base64.b64encode(fields[name]).decode()
    # These fields are left out if they are empty: the release before does not know them and could not read the entry.
    ended = [base64.b64encode(token).decode() for token in fields.pop("ended")]
    if ended:
        fields["ended"] = ended
    if not record.advances:
        del fields["advances"]
    fields["state"] = record.state.value
    fields["fingerprint"] = str(record.fingerprint)
    if record.answer is not None:
        answer = record.answer
        fields["answer"] = [answer.status, base64.b64encode(answer.body).decode(), list(answer.headers), answer.gone]
    return json.dumps(fields)


def load_record(text: str) -> Record:
    fields = json.loads(text)
    for name in BYTES_FIELDS:
        fields[name] = base64.b64decode(fields[name])
    fields["ended"] = tuple(base64.b64decode(token) for token in fields.get("ended", ()))
    fields["state"] = State(fields["state"])
    fields["fingerprint"] = Fingerprint.parse(fields["fingerprint"])
    if fields["answer"] is not None:
        status, body, headers, gone = fields["answer"]
        fields["answer"] = Answer(status, base64.b64decode(body), [(name, value) for name, value in headers], gone)
    return Record(**fields)
