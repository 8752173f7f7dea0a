"""Audit rows: who changed a record by hand, when, why, and what came of it.

An audit row is a record of kind `audit` in the namespace of the application, written by the same operations as any
other: a claim before the action, a completion after it. So no migration is needed, other releases leave the rows alone,
the reaper deletes them after their retention, and an action whose process died shows as uncertain.

A row names records by their ids and holds no key, no scope and no body (S28). Its own id begins with a hash of the
namespace and the time, so a store that lists by id lists the rows of an application in the order of time.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from typing import Any, NamedTuple

from retrysafe.core.keys import frame
from retrysafe.core.ops import Claim, Complete, Renew
from retrysafe.core.records import Answer, Fingerprint, Record
from retrysafe.core.states import State
from retrysafe.core.times import DAY_MICROS, SECOND_MICROS
from retrysafe.engine.effects import Flow

AUDIT_KIND = "audit"
AUDIT_RETENTION_DAYS = 400
AUDIT_LEASE_SECONDS = 600
PREFIX_BYTES = 8
MAX_NAMED_RECORDS = 1_000
"""How many ids a row names. A bulk action changes no more records than that at once."""


class AuditEntry(NamedTuple):
    """What is about to be done."""

    action: str
    """The command: `keys resolve`."""
    actor: str
    because: str
    records: tuple[str, ...] = ()
    """The ids of the records, in hex, or the ids of the jobs."""
    details: dict[str, Any] = {}  # noqa: RUF012  # never changed

    def encode(self) -> bytes:
        return json.dumps(self._asdict(), ensure_ascii=False, separators=(",", ":")).encode()


class AuditRow(NamedTuple):
    """An audit row as it is read."""

    id: str
    at: int
    action: str
    actor: str
    because: str
    records: tuple[str, ...]
    details: dict[str, Any]
    outcome: str
    """`done`, `refused`, `failed`; `unknown` if the process died, `running` before that."""
    result: dict[str, Any]


def audit_prefix(namespace: str) -> bytes:
    """The first bytes of the ids of an application's audit rows."""
    return hashlib.sha256(frame("audit", namespace)).digest()[:PREFIX_BYTES]


def build_audit_claim(namespace: str, entry: AuditEntry, now: int) -> Claim:
    """The claim of a new row. `now` is the store's time."""
    drawn = os.urandom(48)
    row_id = audit_prefix(namespace) + now.to_bytes(8, "big") + drawn[:16]
    body = entry.encode()
    return Claim(
        id=row_id,
        namespace=namespace,
        kind=AUDIT_KIND,
        scope=entry.actor,
        key=row_id.hex(),
        target=entry.action,
        fingerprint=Fingerprint("audit1", hashlib.sha256(body).digest(), len(body)),
        token=drawn[16:32],
        run=drawn[32:],
        lease=AUDIT_LEASE_SECONDS * SECOND_MICROS,
        retention=AUDIT_RETENTION_DAYS * DAY_MICROS,
        on_lapse="uncertain",
        input=body,
    )


def begin_audit(namespace: str, entry: AuditEntry, now: int) -> Flow[Record]:
    """Write the row before the action. The store commits it before this returns."""
    reply = yield build_audit_claim(namespace, entry, now)
    record: Record = reply.record
    return record


def renew_audit(row: Record) -> Flow[None]:
    """For long actions: the row is not lost yet."""
    yield Renew(row.id, row.fence, AUDIT_LEASE_SECONDS * SECOND_MICROS)


def end_audit(row: Record, outcome: str, result: dict[str, Any]) -> Flow[bool]:
    """Write what came of the action."""
    answer = Answer(200, {"outcome": outcome, **result})
    done: bool = yield Complete(row.id, row.fence, answer)
    return done


def read_audit(record: Record, now: int) -> AuditRow:
    """`now` is the store's time: a row whose lease has lapsed is not running."""
    try:
        entry = json.loads(record.input) if record.input else {}
    except ValueError:
        entry = {}  # sealed, and this program has no key ring
    result = _read_result(record)
    outcome = str(
        result.pop("outcome", "running" if record.state is State.CLAIMED and not record.lapsed(now) else "unknown")
    )
    return AuditRow(
        record.id.hex(),
        record.created,
        record.target,
        record.scope,
        str(entry.get("because", "")),
        tuple(entry.get("records", ())),
        dict(entry.get("details", {})),
        outcome,
        result,
    )


def _read_result(record: Record) -> dict[str, Any]:
    if record.answer is None:
        return {}
    try:
        found = record.answer.json()
    except ValueError:
        return {}
    return dict(found) if isinstance(found, dict) else {}


def name_records(ids: Iterable[str]) -> tuple[str, ...]:
    return tuple(each for each, _ in zip(ids, range(MAX_NAMED_RECORDS), strict=False))
